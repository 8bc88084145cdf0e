"""Partitions as Kafka's requests and responses list them: grouped by topic, and split to bound a request."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maxbrod.kafka.wire.connection import Message

Value = TypeVar("Value")


def by_topic(values: Mapping[TopicPartition, Value]) -> dict[str, dict[int, Value]]:
    """Topic name to partition index to value, in the order given."""
    groups: dict[str, dict[int, Value]] = defaultdict(dict)
    for where, value in values.items():
        groups[where.topic][where.partition] = value
    return groups


def each_partition(topics: Iterable[Message]) -> Iterator[tuple[TopicPartition, Message]]:
    """Every partition of a response whose topics have a `name` and whose partitions have a `partition_index`."""
    for topic in topics:
        for partition in topic.partitions:
            yield TopicPartition(topic=topic.name, partition=partition.partition_index), partition


def in_requests(values: Sequence[Value], per_request: int) -> Iterator[Sequence[Value]]:
    """`values` in order, at most `per_request` at a time."""
    return (values[first : first + per_request] for first in range(0, len(values), per_request))
