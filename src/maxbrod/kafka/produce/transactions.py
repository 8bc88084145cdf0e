"""Transactions that one process fills and another ends: begin, add partitions, describe, end, list.

A coordinator lets any process that knows the producer id and epoch end a transaction. So a transaction can outlive its
producer, which two-phase commit requires. The request versions in use keep the epoch of a producer when its transaction
ends, so that the result of a commit whose response was lost can still be described afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from kafka.protocol.admin import DescribeConfigsRequest, DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)

from maxbrod.errors import MaxbrodError, ProducerFencedError, RefusedError, UnavailableError
from maxbrod.kafka.produce.producer_ids import ProducerIdentity, ask_transaction_coordinator, transactional_producer_id
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.coordination import GROUP, TRANSACTION, ask_coordinators, find_coordinator
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code, answered_with
from maxbrod.kafka.wire.metadata import by_topic, each_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maxbrod.kafka.state.cluster_state import CommittedOffset
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.model import TopicPartition


PATIENCE_S: Final = 120.0
_OFFSETS: Final = "commit offsets in a transaction"
_ONGOING: Final = "Ongoing"
_COMMITTED: Final = frozenset({"PrepareCommit", "CompleteCommit"})
_FENCED: Final = frozenset({Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH})
# The answers to ending a transaction that has already ended the other way.
_OVER: Final = _FENCED | {
    Code.INVALID_TXN_STATE,
    Code.INVALID_PRODUCER_ID_MAPPING,
    Code.TRANSACTIONAL_ID_NOT_FOUND,
}

DEFAULT_MAX_MS: Final = 900_000
"""Kafka's default, for users that may not read the configuration of brokers."""
_BROKER: Final = 4  # a type of resource
_SETTING: Final = "transaction.max.timeout.ms"
_PATIENCE_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Everything that is needed to end a transaction."""

    transactional_id: str
    identity: ProducerIdentity


class Standing(Enum):
    """The state of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    """On request, by timeout, or by a later producer with the same transactional id."""
    FORGOTTEN = "forgotten"
    """The cluster no longer knows the transactional id. The transaction may have ended either way."""


def begin(
    client: KafkaClient, transactional_id: str, *, timeout_ms: int, patience_s: float = PATIENCE_S
) -> Transaction:
    """Take over the transactional id. Its open transaction is aborted."""
    deadline = Deadline.after(patience_s)
    identity = transactional_producer_id(client, transactional_id, timeout_ms=timeout_ms, deadline=deadline)
    return Transaction(transactional_id=transactional_id, identity=identity)


def add_partitions(
    client: KafkaClient,
    transaction: Transaction,
    partitions: Iterable[TopicPartition],
    *,
    patience_s: float = PATIENCE_S,
) -> None:
    """Add partitions. This must precede the first batch for them."""
    wanted = sorted(partitions)
    ask_transaction_coordinator(
        client,
        transaction.transactional_id,
        lambda: add_request(transaction, wanted),
        added,
        operation="add partitions to a transaction",
        deadline=Deadline.after(patience_s),
    )


def end(client: KafkaClient, transaction: Transaction, *, commit: bool, patience_s: float = PATIENCE_S) -> None:
    """Commit or abort the transaction. Idempotent. RefusedError if it has already ended the other way."""
    operation = "commit a transaction" if commit else "abort a transaction"
    over = 0

    def judged(answer: Message) -> int:
        nonlocal over
        over = int(answer.error_code) if answer.error_code in _OVER else 0
        return 0 if over else int(answer.error_code)

    ask_transaction_coordinator(
        client,
        transaction.transactional_id,
        lambda: end_request(transaction, commit=commit),
        judged,
        operation=operation,
        deadline=Deadline.after(patience_s),
    )
    if over:
        kind = ProducerFencedError if over in _FENCED else RefusedError
        raise kind(
            f"the transaction has already ended the other way (the broker answered {Code(over).name})",
            operation=operation,
            object_name=transaction.transactional_id,
        )


def standings(client: KafkaClient, transactions: Iterable[Transaction]) -> dict[str, Standing]:
    """The states by transactional id. Changes nothing. UnavailableError if a coordinator does not answer."""
    wanted = {transaction.transactional_id: transaction for transaction in transactions}

    def read(answer: Message) -> Iterator[tuple[str, int, Standing]]:
        for state in answer.transaction_states:
            gone = state.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND
            standing = Standing.FORGOTTEN if gone else _standing(state, wanted[state.transactional_id].identity)
            yield state.transactional_id, 0 if gone else int(state.error_code), standing

    answers = ask_coordinators(
        client,
        wanted,
        lambda names: DescribeTransactionsRequest(transactional_ids=list(names)),
        read,
        deadline=Deadline.after(PATIENCE_S),
        kind=TRANSACTION,
    )
    for name, why in answers.refused.items():
        raise UnavailableError(f"the state of a transaction is unknown: {why}", object_name=name)
    return answers.found


def _standing(state: Message, identity: ProducerIdentity) -> Standing:
    if (state.producer_id, state.producer_epoch) != (identity.producer_id, identity.epoch):
        return Standing.ABORTED
    if state.transaction_state == _ONGOING:
        return Standing.OPEN
    return Standing.COMMITTED if state.transaction_state in _COMMITTED else Standing.ABORTED


def ongoing(client: KafkaClient, prefix: str, *, patience_s: float = PATIENCE_S) -> list[str]:
    """The transactional ids with this prefix that have an open transaction."""

    def once(limit: Deadline) -> list[str]:
        found: set[str] = set()
        for node_id in client.metadata([], deadline=limit).brokers:
            request = ListTransactionsRequest(state_filters=[_ONGOING], producer_id_filters=[])
            answer = client.ask_broker(node_id, request, deadline=limit)
            if answer.error_code:
                raise answered_with(answer.error_code, operation="list transactions", object_name=prefix)
            found.update(state.transactional_id for state in answer.transaction_states)
        return sorted(name for name in found if name.startswith(prefix))

    return retry(once, deadline=Deadline.after(patience_s), what="the brokers to list transactions")


def add_request(transaction: Transaction, partitions: Sequence[TopicPartition]) -> Message:
    topics = by_topic(dict.fromkeys(partitions))
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transaction.transactional_id,
        v3_and_below_producer_id=transaction.identity.producer_id,
        v3_and_below_producer_epoch=transaction.identity.epoch,
        v3_and_below_topics=[topic(name=name, partitions=list(indexes)) for name, indexes in topics.items()],
    )


def added(answer: Message) -> int:
    """The first error of a partition that is not the consequence of another one."""
    codes = [
        result.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
        if result.partition_error_code
    ]
    return next((code for code in codes if code != Code.OPERATION_NOT_ATTEMPTED), codes[0] if codes else 0)


def end_request(transaction: Transaction, *, commit: bool) -> Message:
    return EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.identity.producer_id,
        producer_epoch=transaction.identity.epoch,
        committed=commit,
    )


def commit_offsets_in(
    client: KafkaClient,
    transaction: Transaction,
    group_id: str,
    offsets: Sequence[CommittedOffset],
    *,
    patience_s: float = PATIENCE_S,
) -> None:
    """Commit offsets of a group as part of the transaction: they count once it is committed.

    RefusedError: a later producer has taken over the transactional id.
    """
    deadline = Deadline.after(patience_s)
    ask_transaction_coordinator(
        client,
        transaction.transactional_id,
        lambda: AddOffsetsToTxnRequest(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.identity.producer_id,
            producer_epoch=transaction.identity.epoch,
            group_id=group_id,
        ),
        lambda answer: int(answer.error_code),
        operation=_OFFSETS,
        deadline=deadline,
    )
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    wanted = {
        offset.where: topic.TxnOffsetCommitRequestPartition(
            partition_index=offset.partition,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            committed_metadata=offset.metadata,
        )
        for offset in offsets
    }

    def once(limit: Deadline) -> None:
        node_id = find_coordinator(client, group_id, GROUP, deadline=limit)
        request = TxnOffsetCommitRequest(
            transactional_id=transaction.transactional_id,
            group_id=group_id,
            producer_id=transaction.identity.producer_id,
            producer_epoch=transaction.identity.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic(name=name, partitions=list(each.values())) for name, each in by_topic(wanted).items()],
        )
        answer = client.ask_broker(node_id, request, deadline=limit)
        for _, each in each_partition(answer.topics):
            if each.error_code:
                raise answered_with(each.error_code, operation=_OFFSETS, object_name=group_id)

    retry(once, deadline=deadline, what=f"the coordinator of the group {group_id}")


def longest_timeout_ms(client: KafkaClient) -> int:
    """The lowest limit of all reachable brokers, because any of them may coordinate a transaction."""
    found: list[int] = []
    brokers = client.metadata([]).brokers
    deadline = Deadline.after(_PATIENCE_S)
    for node_id in brokers:
        try:
            found += _allowed_ms(client, node_id, deadline)
        except MaxbrodError:
            continue  # an unreachable broker coordinates nothing now
    return min(found, default=DEFAULT_MAX_MS)


def _allowed_ms(client: KafkaClient, node_id: int, deadline: Deadline) -> list[int]:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[resource(resource_type=_BROKER, resource_name=str(node_id), configuration_keys=[_SETTING])],
        include_synonyms=False,
        include_documentation=False,
    )
    answer = client.ask_broker(node_id, request, deadline=deadline)
    return [int(config.value) for result in answer.results for config in result.configs if config.value is not None]
