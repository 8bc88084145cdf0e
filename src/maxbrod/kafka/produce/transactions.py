"""Transactions that one process fills and another ends: begin, add partitions, describe, end, list; and open ones.

A coordinator lets any process that knows the producer id and epoch end a transaction. So a transaction can outlive its
producer, which two-phase commit requires. The request versions in use keep the epoch of a producer when its transaction
ends, so that the result of a commit whose response was lost can still be described afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)

from maxbrod.errors import MaxbrodError, ProducerFencedError, RefusedError, UnavailableError
from maxbrod.kafka.fetch.offsets import ask_leaders
from maxbrod.kafka.groups import committed_topics
from maxbrod.kafka.produce.producer_ids import (
    ProducerIdentity,
    ask_transaction_coordinator,
    producers_request,
    transactional_producer_id,
)
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.state.topics import BROKER, configs_request, see_topics
from maxbrod.kafka.wire.client import KafkaClient, by_topic, each_partition, retry
from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.coordination import GROUP, TRANSACTION, ask_coordinators, find_coordinator
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code, Reaction, answered_with, reaction
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
    return EndTxnRequest(**_producer_of(transaction), committed=commit)


def _producer_of(transaction: Transaction) -> dict[str, Any]:
    """The fields of a request that name the transaction and its producer."""
    identity = transaction.identity
    names = ("transactional_id", "producer_id", "producer_epoch")
    return dict(zip(names, (transaction.transactional_id, identity.producer_id, identity.epoch), strict=True))


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
        lambda: AddOffsetsToTxnRequest(**_producer_of(transaction), group_id=group_id),
        lambda answer: int(answer.error_code),
        operation=_OFFSETS,
        deadline=deadline,
    )
    wanted = {offset.where: offset for offset in offsets}

    def once(limit: Deadline) -> None:
        node_id = find_coordinator(client, group_id, GROUP, deadline=limit)
        request = TxnOffsetCommitRequest(
            **_producer_of(transaction),
            group_id=group_id,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=committed_topics(wanted, TxnOffsetCommitRequest),
        )
        answer = client.ask_broker(node_id, request, deadline=limit)
        for _, partition in each_partition(answer.topics):
            if partition.error_code:
                raise answered_with(partition.error_code, operation=_OFFSETS, object_name=group_id)

    retry(once, deadline=deadline, what=f"the coordinator of the group {group_id}")


def longest_timeout_ms(client: KafkaClient) -> int:
    """The lowest limit of all reachable brokers, because any of them may coordinate a transaction."""
    found: list[int] = []
    brokers = client.metadata([]).brokers
    deadline = Deadline.after(_PATIENCE_S)
    for node_id in brokers:
        try:
            request = configs_request([node_id], BROKER, keys=[_SETTING])
            answer = client.ask_broker(node_id, request, deadline=deadline)
        except MaxbrodError:
            continue  # an unreachable broker coordinates nothing now
        found += [
            int(config.value) for result in answer.results for config in result.configs if config.value is not None
        ]
    return min(found, default=DEFAULT_MAX_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTransaction:
    """A producer whose transaction in this partition has no marker yet.

    The last three fields are None if this user may not Describe the transactional id, or no coordinator knows it.
    """

    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp_ms: int
    """The timestamp of the producer's last batch here, by its own clock; -1 if unknown."""
    transactional_id: str | None = None
    started_at_ms: int | None = None
    timeout_ms: int | None = None


def open_transactions(
    client: KafkaClient, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[PendingTransaction, ...]]:
    """The transactions that hold back the last stable offset of each partition, by start offset.

    For reports: what this user may not read, or no broker returns in time, is left out and is no error.
    """
    deadline = Deadline.after(_PATIENCE_S)
    wanted = set(partitions)
    try:
        seen = see_topics(client, {where.topic for where in wanted}, deadline=deadline).topics
        there = (where for where in wanted if where.topic in seen and where.partition in seen[where.topic].partitions)
        found = ask_leaders(
            client,
            dict.fromkeys(sorted(there)),
            producers_request,
            _open_producers,
            operation="read producers",
            deadline=deadline,
        )
    except MaxbrodError:
        return {}
    known = {where: every for where, every in found.items() if every is not None}
    producer_ids = sorted({transaction.producer_id for every in known.values() for transaction in every})
    origins = _origins(client, producer_ids, deadline) if producer_ids else {}
    return {
        where: tuple(replace(transaction, **origins.get(transaction.producer_id, {})) for transaction in every)
        for where, every in known.items()
    }


def _open_producers(answer: Message) -> Iterator[tuple[TopicPartition, int, tuple[PendingTransaction, ...] | None]]:
    for where, partition in each_partition(answer.topics):
        if partition.error_code and reaction(partition.error_code) is Reaction.FATAL:
            yield where, 0, None  # most likely not permitted; it takes Read on the topic
            continue
        found = (
            PendingTransaction(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                start_offset=producer.current_txn_start_offset,
                last_timestamp_ms=producer.last_timestamp,
            )
            for producer in partition.active_producers
            if producer.current_txn_start_offset >= 0
        )
        yield where, partition.error_code, tuple(sorted(found, key=lambda transaction: transaction.start_offset))


def _origins(client: KafkaClient, producer_ids: Sequence[int], deadline: Deadline) -> dict[int, dict[str, Any]]:
    """The last three fields of a PendingTransaction, as far as its coordinator knows them, by producer id.

    Each broker lists the transactions that it coordinates.
    """
    found: dict[int, dict[str, Any]] = {}
    with suppress(MaxbrodError):  # the answers of the other brokers are still valid
        for node_id in client.metadata([], deadline=deadline).brokers:
            request = ListTransactionsRequest(state_filters=[], producer_id_filters=producer_ids)
            listed = client.ask_broker(node_id, request, deadline=deadline).transaction_states
            names = {transaction.producer_id: transaction.transactional_id for transaction in listed}
            if not names:
                continue
            here = {producer_id: {"transactional_id": name} for producer_id, name in names.items()}
            asked = DescribeTransactionsRequest(transactional_ids=list(names.values()))
            for state in client.ask_broker(node_id, asked, deadline=deadline).transaction_states:
                if not state.error_code:
                    started_at_ms = state.transaction_start_time_ms
                    here[state.producer_id] = {
                        "transactional_id": state.transactional_id,
                        "started_at_ms": started_at_ms if started_at_ms >= 0 else None,
                        "timeout_ms": state.transaction_timeout_ms,
                    }
            found |= here
    return found
