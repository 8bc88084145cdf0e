"""Cluster metadata: brokers, topics with their ids, and the leader of each partition. Pure values.

Also partitions as requests and responses list them: grouped by topic, and split to bound a request.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kafka.protocol.metadata import MetadataRequest

from maxbrod.kafka.state.cluster_state import Broker
from maxbrod.kafka.wire.error_codes import Code, Reaction, answered_with, reaction
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from maxbrod.kafka.wire.connection import Message


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The replicas of a partition. `leader` is None while there is none."""

    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic is identified by its id: a topic of the same name may be deleted and created again."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: Mapping[int, Partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The metadata of one response. A topic that does not exist is not in `topics`."""

    cluster_id: str | None
    controller: int
    brokers: Mapping[int, Broker]
    topics: Mapping[str, Topic]


def metadata_request(topics: Iterable[str] | None) -> Message:
    """A request for these topics, or for all that this user may see. It must never create a topic."""
    wanted = None
    if topics is not None:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(set(topics))]
    return MetadataRequest(topics=wanted, allow_auto_topic_creation=False)


def read_metadata(answer: Message) -> Metadata:
    """Convert a response of kafka-python. An error that is not retriable is raised."""
    brokers = {
        broker.node_id: Broker(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
        for broker in answer.brokers
    }
    return Metadata(
        cluster_id=answer.cluster_id,
        controller=answer.controller_id,
        brokers=brokers,
        topics={topic.name: _topic(topic) for topic in answer.topics if _exists(topic)},
    )


def _exists(topic: Message) -> bool:
    code = topic.error_code
    if code and reaction(code) is Reaction.FATAL:
        raise answered_with(code, operation="read metadata", object_name=topic.name)
    return code not in {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID}


def _topic(topic: Message) -> Topic:
    return Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        internal=bool(topic.is_internal),
        partitions={
            partition.partition_index: Partition(
                leader=partition.leader_id if partition.leader_id >= 0 else None,
                leader_epoch=partition.leader_epoch,
                replicas=tuple(partition.replica_nodes),
                in_sync=tuple(partition.isr_nodes),
                offline=tuple(partition.offline_replicas),
            )
            for partition in topic.partitions
        },
    )


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
