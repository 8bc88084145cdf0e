"""Producer ids and epochs, which brokers assign, and what a log and its leader remember of a producer.

With them brokers distinguish retries from new records. A process that resumes the work of another must neither repeat
what was written nor assume that all that was sent has arrived: a request may still be in flight. With the same producer
id and the next sequence numbers, a broker appends each batch once, whichever process sends it first.

A producer without a transactional id may ask any broker. One with a transactional id must ask its coordinator, which
fences the previous owner of that id by a new epoch and aborts its open transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np
from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.producer import InitProducerIdRequest
from numpy.typing import NDArray

from maxbrod.batch.headers import HEADER_BYTES
from maxbrod.kafka.fetch.offsets import ask_leaders
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.produce.appends import sequence_after
from maxbrod.kafka.wire.client import KafkaClient, by_topic, each_partition, retry
from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.coordination import TRANSACTION, find_coordinator, refused_with
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition

TRANSACTION_TIMEOUT_MS: Final = 60_000
_OPERATION: Final = "get a producer id"
_NONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """The producer fields of each batch header. An unused id has the epoch 0."""

    producer_id: int
    epoch: int


def new_producer_id(client: KafkaClient, *, deadline: Deadline | None = None) -> ProducerIdentity:
    """An identity that was never used before."""

    def once(limit: Deadline) -> ProducerIdentity:
        return _identity(client.ask_any(lambda: _request(None, TRANSACTION_TIMEOUT_MS), deadline=limit), "the cluster")

    return retry(once, deadline=deadline, what="a producer id")


def transactional_producer_id(
    client: KafkaClient,
    transactional_id: str,
    *,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    deadline: Deadline | None = None,
) -> ProducerIdentity:
    """The new identity of this transactional id. Its open transaction is aborted, and its previous owner is fenced."""
    answer = ask_transaction_coordinator(
        client,
        transactional_id,
        lambda: _request(transactional_id, timeout_ms),
        lambda answer: int(answer.error_code),
        operation=_OPERATION,
        deadline=deadline,
    )
    return _identity(answer, transactional_id)


def ask_transaction_coordinator(
    client: KafkaClient,
    transactional_id: str,
    build: Callable[[], Message],
    error_of: Callable[[Message], int],
    *,
    operation: str,
    deadline: Deadline | None = None,
) -> Message:
    """The first response of the coordinator without an error. Retriable errors are retried, others raised."""

    def once(limit: Deadline) -> Message:
        node_id = find_coordinator(client, transactional_id, TRANSACTION, deadline=limit)
        answer = client.ask_broker(node_id, build(), deadline=limit)
        if code := error_of(answer):
            raise refused_with(code, operation=operation, object_name=transactional_id)
        return answer

    return retry(once, deadline=deadline, what=f"the coordinator of the transactional id {transactional_id}")


def _request(transactional_id: str | None, timeout_ms: int) -> Message:
    return InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
    )


def _identity(answer: Message, object_name: str) -> ProducerIdentity:
    if answer.error_code:
        raise refused_with(answer.error_code, operation=_OPERATION, object_name=object_name)
    return ProducerIdentity(producer_id=answer.producer_id, epoch=answer.producer_epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The last batch of a log."""

    control: bool
    codec: int
    count: int
    """The number of its records."""
    producer_id: int
    next_sequence: int
    """The next one of its producer. Meaningless for a control batch."""
    records: NDArray[np.uint8]
    """The bytes after the batch header."""


def read_tail(client: KafkaClient, where: TopicPartition, end: int, *, topic_id: UUID) -> LogTail | None:
    """The batch that ends the log at `end`; None if it was deleted."""
    chunks = list(read_range(client, where, end - 1, end, topic_id=topic_id, floor=0, read_committed=False))
    for chunk in reversed(chunks):
        if len(chunk.headers):
            headers = chunk.headers
            start, size = int(headers.position[-1]), int(headers.size[-1])
            return LogTail(
                control=bool(headers.control[-1]),
                codec=int(headers.codec[-1]),
                count=int(headers["count"][-1]),
                producer_id=int(headers["producer_id"][-1]),
                next_sequence=sequence_after(int(headers["base_sequence"][-1]), int(headers["count"][-1])),
                records=chunk.data[start + HEADER_BYTES : start + size].copy(),
            )
    return None


def next_sequence(client: KafkaClient, where: TopicPartition, producer_id: int, *, deadline: Deadline) -> int:
    """The next sequence number that the partition's leader expects.

    0 for a producer that the leader does not know: it accepts any number from that one.
    """
    found = _producer_of(client, where, producer_id, deadline=deadline)
    return 0 if found is None or found.last_sequence == _NONE else sequence_after(found.last_sequence, 1)


def coordinator_epoch(client: KafkaClient, where: TopicPartition, producer_id: int, *, deadline: Deadline) -> int:
    """The coordinator epoch of the producer's last marker: the leader refuses markers with a lower one. -1: none."""
    found = _producer_of(client, where, producer_id, deadline=deadline)
    return _NONE if found is None else int(found.coordinator_epoch)


def _producer_of(client: KafkaClient, where: TopicPartition, producer_id: int, *, deadline: Deadline) -> Message | None:
    """The entry of the producer in its leader's memory, if any."""

    def read(answer: Message) -> Iterator[tuple[TopicPartition, int, Message | None]]:
        for asked, partition in each_partition(answer.topics):
            known = [one for one in partition.active_producers or () if one.producer_id == producer_id]
            yield asked, partition.error_code, known[0] if known else None

    wanted: dict[TopicPartition, None] = {where: None}
    return ask_leaders(client, wanted, producers_request, read, operation="read producers", deadline=deadline)[where]


def producers_request(asked: Iterable[TopicPartition]) -> Message:
    """A request for the producers that the leaders of these partitions remember."""
    topic = DescribeProducersRequest.TopicRequest
    topics = by_topic(dict.fromkeys(asked))
    return DescribeProducersRequest(
        topics=[topic(name=name, partition_indexes=list(indexes)) for name, indexes in topics.items()]
    )
