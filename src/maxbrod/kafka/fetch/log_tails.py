"""The last batch of a log, and what its leader remembers of a producer: sequence numbers, epochs of markers.

A process that resumes the work of another must neither repeat what was written nor assume that all that was sent has
arrived: a request may still be in flight. With the same producer id and the next sequence numbers, a broker appends
each batch once, whichever process sends it first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafka.protocol.admin import DescribeProducersRequest

from maxbrod.batch.headers import HEADER_BYTES
from maxbrod.kafka.fetch.offsets import ask_leaders
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.produce.appends import sequence_after
from maxbrod.kafka.wire.metadata import each_partition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    import numpy as np
    from numpy.typing import NDArray

    from maxbrod.kafka.wire.client import KafkaClient, Leader
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline
    from maxbrod.model import TopicPartition

_NONE: Final = -1


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

    def request(asked: Mapping[TopicPartition, tuple[None, Leader]]) -> Message:
        topic = DescribeProducersRequest.TopicRequest
        return DescribeProducersRequest(
            topics=[topic(name=place.topic, partition_indexes=[place.partition]) for place in asked]
        )

    def read(answer: Message) -> Iterator[tuple[TopicPartition, int, Message | None]]:
        for asked, partition in each_partition(answer.topics):
            known = [one for one in partition.active_producers or () if one.producer_id == producer_id]
            yield asked, partition.error_code, known[0] if known else None

    wanted: dict[TopicPartition, None] = {where: None}
    return ask_leaders(client, wanted, request, read, operation="read producers", deadline=deadline)[where]
