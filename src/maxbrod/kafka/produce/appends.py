"""The values of appending to partitions: batches, holes, acknowledgements, refusals. Nothing is sent here.

Owns the header fields that a broker requires from a client: base offset 0, no leader epoch, whether the batch is part
of a transaction, and its producer with the sequence number of the first record. The error for a refused append names
the partition, the archive offset, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.headers import ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_TRANSACTIONAL, BatchHeaders
from maxbrod.batch.patch import patch
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
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.deadline import Deadline

Refusal = TypeVar("Refusal", bound=MaxbrodError)
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

_SEQUENCE_MASK: Final = 0x7FFFFFFF
_DROPPED: Final = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_DELETE_HORIZON
_ENCODE: Final = "decode it and encode it again"


@dataclass(frozen=True, slots=True)
class Batch:
    """One stamped batch. `source_offset` is the archive offset of its first record, which errors name."""

    data: NDArray[np.uint8]
    count: int
    source_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """A number of offsets without records. They are filled with markers, which no consumer sees."""

    count: int
    source_offset: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a hole needs at least 1 offset, not {self.count}")


class Later(Enum):
    """Nothing to append yet, but later."""

    LATER = "later"


LATER: Final = Later.LATER
Append: TypeAlias = Batch | Hole


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """All that is to be appended to one partition, in order.

    `first_offset` is the current log end offset. Each batch must be appended exactly where the one before it ended;
    otherwise somebody else writes to the partition, and that is refused. None: others may write, batches are appended
    anywhere in order, and there are no holes. Feeds that share a source may yield LATER: they are polled again when
    others have been acknowledged.
    """

    where: TopicPartition
    topic_id: UUID
    first_offset: int | None
    appends: Iterable[Append | Later]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """All in-sync replicas have the append. `log_append_time_ms` is -1 if the topic keeps the producers' times.

    `base_offset` is -1 if a batch may be appended anywhere and the broker no longer knows its offset.
    """

    where: TopicPartition
    base_offset: int
    count: int
    source_offset: int
    log_append_time_ms: int


def sequence_after(sequence: int, count: int) -> int:
    """The sequence number `count` records later. It wraps from 2**31 - 1 to 0."""
    return (sequence + count) & _SEQUENCE_MASK


def stamped(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    identity: ProducerIdentity,
    *,
    first_sequence: int,
    transactional: bool = False,
) -> list[Batch]:
    """Patch the batches of `data` in place as the next ones of this producer.

    Refused are batches that a broker accepts from no client: with control records, holes in their offsets, log-append
    time, or of magic 0 and 1. Committed transactional batches become plain ones, unless all are to be `transactional`.
    """
    _refuse_unfit(headers)
    counts = headers["count"].astype(np.int64)
    sequences = first_sequence + np.cumsum(counts) - counts
    new = patch(
        data,
        headers,
        base_offset=0,
        leader_epoch=-1,
        attributes=headers["attributes"] & ~np.int16(_DROPPED) | (ATTRIBUTE_TRANSACTIONAL if transactional else 0),
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequences & _SEQUENCE_MASK,
    )
    rows = zip(new.position.tolist(), new.size.tolist(), counts.tolist(), headers["base_offset"].tolist(), strict=True)
    return [Batch(data[start : start + size], count, offset) for start, size, count, offset in rows]


def _refuse_unfit(headers: BatchHeaders) -> None:
    span = headers["last_offset_delta"].astype(np.int64) + 1
    for unfit, what, hint in (
        (headers["magic"] != 2, "is of an old format", _ENCODE),
        (headers.control, "holds control records", "leave it out: a marker takes its place"),
        (headers.log_append, "has log-append time", f"{_ENCODE}, with create time"),
        (headers["count"] != span, "has holes in its offsets", _ENCODE),
    ):
        if unfit.any():
            row = int(np.flatnonzero(unfit)[0])
            raise UnsupportedFormatError(
                f"a broker does not accept this batch from a client: it {what}",
                operation=OPERATION,
                offset=int(headers["base_offset"][row]),
                position=int(headers.position[row]),
                hint=hint,
            )


def refusal(
    code: int, details: str | None, where: TopicPartition, source_offset: int, *, transactional: bool = False
) -> MaxbrodError:
    """The error for a code that is not retriable. `details` is the broker's message, if any."""
    kind, meaning, hint = _REFUSALS.get(code, _UNKNOWN)
    if transactional:
        kind, meaning, hint = _IN_TRANSACTION.get(code, (kind, meaning, hint))
    words = f": {details}" if details else ""
    return _error(kind, f"{meaning} ({code_name(code)}{words})", where, source_offset, hint)


def misplaced(where: TopicPartition, source_offset: int, *, landed: int, expected: int) -> MisplacedBatchError:
    what = f"a batch was appended at offset {landed} of the target instead of {expected}"
    hint = "another writer uses this partition, or its log was truncated: stop that, and restore into an empty topic"
    return _error(MisplacedBatchError, what, where, source_offset, hint)


def gap_in_sequence(where: TopicPartition, source_offset: int, *, acknowledged_to: int, log_end: int) -> RefusedError:
    """The broker is missing records before this batch, although all of them were acknowledged."""
    if log_end < acknowledged_to:
        what = f"the target's log ends at {log_end}, but records up to {acknowledged_to} were acknowledged"
        hint = f"an unclean election lost acknowledged records; {_AGAIN}"
        return _error(LogTruncatedError, what, where, source_offset, hint)
    what = f"the broker is missing records before this batch (its log ends at {log_end})"
    hint = f"another process uses the same producer id, or the log was changed; {_AGAIN}"
    return _error(SequenceGapError, what, where, source_offset, hint)


def gone(where: TopicPartition, source_offset: int | None, *, recreated: bool) -> TopicGoneError:
    what = "the topic was deleted and created again" if recreated else "the topic was deleted"
    return _error(TopicGoneError, what, where, source_offset, "plan the restore again")


def _error(kind: type[Refusal], message: str, where: TopicPartition, offset: int | None, hint: str) -> Refusal:
    return kind(message, operation=OPERATION, object_name=str(where), offset=offset, hint=hint)


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
