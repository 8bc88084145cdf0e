"""The errors for refused appends. Each names the partition, the archive offset, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import (
    CorruptDataError,
    LogTruncatedError,
    MaxbrodError,
    MisplacedBatchError,
    ProducerFencedError,
    RefusedError,
    SequenceGapError,
    TopicGoneError,
    UnavailableError,
    UnsupportedFormatError,
    UsageError,
)
from maxbrod.kafka.wire.error_codes import Code, code_name

if TYPE_CHECKING:
    from uuid import UUID

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.deadline import Deadline
    from maxbrod.model import TopicPartition

OPERATION: Final = "produce"
_AGAIN: Final = "run the restore again: it resumes at the end of the target"
_REFUSALS: Final[dict[int, tuple[type[MaxbrodError], str, str]]] = {
    Code.CORRUPT_MESSAGE: (
        CorruptDataError,
        "the broker reports the batch as damaged",
        "check the archive (maxbrod check --deep); on a compacted topic a record without a key is refused the same way",
    ),
    Code.MESSAGE_TOO_LARGE: (
        RefusedError,
        "the batch exceeds the size limit of the topic",
        "raise the topic's max.message.bytes",
    ),
    Code.RECORD_LIST_TOO_LARGE: (
        RefusedError,
        "the batch is larger than a segment of the topic",
        "raise the topic's segment.bytes",
    ),
    Code.INVALID_TIMESTAMP: (
        RefusedError,
        "the topic does not accept the timestamp of a record",
        "set the topic's message.timestamp.type=CreateTime and raise message.timestamp.before.max.ms and .after.max.ms",
    ),
    Code.INVALID_RECORD: (
        RefusedError,
        "the topic does not accept a record of the batch",
        "a compacted topic accepts no record without a key: restore with cleanup.policy=delete",
    ),
    Code.UNSUPPORTED_COMPRESSION_TYPE: (
        UnsupportedFormatError,
        "the broker does not support the codec of the batch",
        "upgrade the broker",
    ),
    Code.TOPIC_AUTHORIZATION_FAILED: (
        UsageError,
        "this user may not write to the topic",
        "this user needs an ACL that allows it to Write to the topic",
    ),
    Code.CLUSTER_AUTHORIZATION_FAILED: (
        UsageError,
        "this user may not do this on the cluster",
        "markers need an ACL that allows ClusterAction on the cluster; empty transactions do not",
    ),
    Code.POLICY_VIOLATION: (RefusedError, "a policy of the cluster forbids the batch", "ask the cluster's operators"),
    Code.INVALID_PRODUCER_EPOCH: (ProducerFencedError, "another producer has taken over this producer id", _AGAIN),
    Code.PRODUCER_FENCED: (ProducerFencedError, "another producer has taken over this producer id", _AGAIN),
    Code.UNKNOWN_PRODUCER_ID: (RefusedError, "the broker has forgotten this producer", _AGAIN),
}
_OVER: Final = "the transaction has ended: another attempt replaced it, or it was open for longer than its timeout"
_ATTEMPT: Final = "nothing of this attempt is committed; a longer transaction timeout may help the next one"
_IN_TRANSACTION: Final[dict[int, tuple[type[MaxbrodError], str, str]]] = {
    Code.INVALID_RECORD: (
        RefusedError,
        "the topic does not accept a record of the batch",
        "a compacted topic accepts no record without a key",
    ),
    Code.CORRUPT_MESSAGE: (
        RefusedError,
        "the broker reports the batch as damaged",
        "a compacted topic accepts no record without a key",
    ),
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        UsageError,
        "this user may not use the transactional id",
        "this user needs an ACL that allows it to Write the transactional id",
    ),
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER: (RefusedError, "the broker is missing records before this batch", _ATTEMPT),
    Code.UNKNOWN_PRODUCER_ID: (RefusedError, "the broker has forgotten this producer", _ATTEMPT),
    Code.INVALID_PRODUCER_EPOCH: (ProducerFencedError, _OVER, _ATTEMPT),
    Code.PRODUCER_FENCED: (ProducerFencedError, _OVER, _ATTEMPT),
    Code.INVALID_TXN_STATE: (RefusedError, _OVER, _ATTEMPT),
    Code.INVALID_PRODUCER_ID_MAPPING: (RefusedError, _OVER, _ATTEMPT),
    Code.TRANSACTION_ABORTABLE: (RefusedError, "the broker requires the transaction to be aborted", _ATTEMPT),
}
_UNKNOWN: Final = (MaxbrodError, "the broker refuses the batch", "see the log of the broker")


def refusal(
    code: int, details: str | None, where: TopicPartition, source_offset: int, *, transactional: bool = False
) -> MaxbrodError:
    """The error for a code that is not retriable. `details` is the broker's message, if any."""
    kind, meaning, hint = _REFUSALS.get(code, _UNKNOWN)
    if transactional:
        kind, meaning, hint = _IN_TRANSACTION.get(code, (kind, meaning, hint))
    words = f": {details}" if details else ""
    message = f"{meaning} ({code_name(code)}{words})"
    return kind(message, operation=OPERATION, object_name=str(where), offset=source_offset, hint=hint)


def misplaced(where: TopicPartition, source_offset: int, *, landed: int, expected: int) -> MisplacedBatchError:
    return MisplacedBatchError(
        f"a batch was appended at offset {landed} of the target instead of {expected}",
        operation=OPERATION,
        object_name=str(where),
        offset=source_offset,
        hint="another writer uses this partition, or its log was truncated: stop that, and restore into an empty topic",
    )


def gap_in_sequence(where: TopicPartition, source_offset: int, *, acknowledged_to: int, log_end: int) -> RefusedError:
    """The broker is missing records before this batch, although all of them were acknowledged."""
    if log_end < acknowledged_to:
        return LogTruncatedError(
            f"the target's log ends at {log_end}, but records up to {acknowledged_to} were acknowledged",
            operation=OPERATION,
            object_name=str(where),
            offset=source_offset,
            hint="an unclean election lost acknowledged records; " + _AGAIN,
        )
    return SequenceGapError(
        f"the broker is missing records before this batch (its log ends at {log_end})",
        operation=OPERATION,
        object_name=str(where),
        offset=source_offset,
        hint="another process uses the same producer id, or the log was changed; " + _AGAIN,
    )


def gone(where: TopicPartition, source_offset: int | None, *, recreated: bool) -> TopicGoneError:
    return TopicGoneError(
        "the topic was deleted and created again" if recreated else "the topic was deleted",
        operation=OPERATION,
        object_name=str(where),
        offset=source_offset,
        hint="plan the restore again",
    )


def prove_topic(
    client: KafkaClient, where: TopicPartition, topic_id: UUID, *, deadline: Deadline | None = None
) -> None:
    """Verify the topic id before a request that names the topic. TopicGoneError if another topic has the name."""
    found = client.metadata([where.topic], deadline=deadline).topics.get(where.topic)
    if found is None:
        raise UnavailableError("there is no such topic now", operation=OPERATION, object_name=str(where))
    if found.topic_id != topic_id:
        raise gone(where, None, recreated=True)


def moved_log(where: TopicPartition, end: int, expected: int) -> UnavailableError:
    """The error for a log that ends elsewhere. Whoever starts again reads what is there."""
    return UnavailableError(
        f"the log ends at offset {end}, not at {expected}: another process may be writing to it",
        operation=OPERATION,
        object_name=str(where),
    )
