"""The open transactions that hold back the last stable offset of partitions: who opened them, where and when.

For reports: what this user may not read, or no broker returns in time, is left out and is no error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.admin import DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.fetch.offsets import ask_leaders
from maxbrod.kafka.state.topics import see_topics
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Reaction, reaction
from maxbrod.kafka.wire.metadata import by_topic, each_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from maxbrod.kafka.wire.client import KafkaClient, Leader
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.model import TopicPartition

_PATIENCE_S: Final = 15.0
_Origin = dict[str, Any]
"""The last three fields of an PendingTransaction, as far as the coordinator knows them."""


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
    client: KafkaClient, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, tuple[PendingTransaction, ...]]:
    """The open transactions of each partition, by start offset. Partitions without an answer are left out."""
    limit = deadline or Deadline.after(_PATIENCE_S)
    try:
        found = _producers(client, set(partitions), limit)
    except MaxbrodError:
        return {}
    producer_ids = {transaction.producer_id for every in found.values() for transaction in every}
    origins = _origins(client, producer_ids, limit) if producer_ids else {}
    return {
        where: tuple(replace(transaction, **origins.get(transaction.producer_id, {})) for transaction in every)
        for where, every in found.items()
    }


def _producers(
    client: KafkaClient, partitions: set[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, tuple[PendingTransaction, ...]]:
    seen = see_topics(client, {where.topic for where in partitions}, deadline=deadline).topics
    there = [where for where in partitions if where.topic in seen and where.partition in seen[where.topic].partitions]
    found = ask_leaders(
        client,
        dict.fromkeys(there),
        _producers_request,
        _open_producers,
        operation="read producers",
        deadline=deadline,
    )
    return {where: every for where, every in found.items() if every is not None}


def _producers_request(asked: Mapping[TopicPartition, tuple[None, Leader]]) -> Message:
    topics = by_topic(dict.fromkeys(sorted(asked)))
    topic = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(
        topics=[topic(name=name, partition_indexes=list(each)) for name, each in topics.items()]
    )


def _open_producers(
    answer: Message,
) -> Iterator[tuple[TopicPartition, int, tuple[PendingTransaction, ...] | None]]:
    for where, each in each_partition(answer.topics):
        if each.error_code and reaction(each.error_code) is Reaction.FATAL:
            yield where, 0, None  # most likely not permitted; it takes Read on the topic
        else:
            yield where, each.error_code, _open(each.active_producers)


def _open(producers: Iterable[Any]) -> tuple[PendingTransaction, ...]:
    found = (
        PendingTransaction(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            start_offset=producer.current_txn_start_offset,
            last_timestamp_ms=producer.last_timestamp,
        )
        for producer in producers
        if producer.current_txn_start_offset >= 0
    )
    return tuple(sorted(found, key=lambda transaction: transaction.start_offset))


def _origins(client: KafkaClient, producer_ids: set[int], deadline: Deadline) -> dict[int, _Origin]:
    """Each broker lists the transactions that it coordinates."""
    found: dict[int, _Origin] = {}
    try:
        for node_id in client.metadata([], deadline=deadline).brokers:
            found |= _origins_at(client, node_id, producer_ids, deadline)
    except MaxbrodError:
        pass  # the answers of the other brokers are still valid
    return found


def _origins_at(client: KafkaClient, node_id: int, producer_ids: set[int], deadline: Deadline) -> dict[int, _Origin]:
    request = ListTransactionsRequest(state_filters=[], producer_id_filters=sorted(producer_ids))
    listed = client.ask_broker(node_id, request, deadline=deadline).transaction_states
    if not listed:
        return {}
    found: dict[int, _Origin] = {
        transaction.producer_id: {"transactional_id": transaction.transactional_id} for transaction in listed
    }
    names = DescribeTransactionsRequest(transactional_ids=[transaction.transactional_id for transaction in listed])
    for state in client.ask_broker(node_id, names, deadline=deadline).transaction_states:
        if not state.error_code:
            found[state.producer_id] = {
                "transactional_id": state.transactional_id,
                "started_at_ms": state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
                "timeout_ms": state.transaction_timeout_ms,
            }
    return found
