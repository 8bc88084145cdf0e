"""The sizes of logs on the disks of brokers. For estimates: unknown sizes are left out and are no error."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kafka.protocol.admin import DescribeLogDirsRequest

from maxbrod.errors import MaxbrodError, naming
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import answered_with
from maxbrod.kafka.wire.partitions import each_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.model import TopicPartition

_PATIENCE_S: Final = 30.0


def partition_sizes(
    client: KafkaClient, places: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, int]:
    """The bytes of each partition's log on its leader's disk, if this user may Describe the cluster.

    For a topic with remote storage it is the local part. A partition whose leader is unknown or does not answer is left
    out.
    """
    limit = deadline or Deadline.after(_PATIENCE_S)
    led: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for where in places:
        with suppress(MaxbrodError):
            led[client.leader(where, deadline=limit).node_id][where.topic].append(where.partition)
    sizes: dict[TopicPartition, int] = {}
    for leader, partitions in led.items():
        with suppress(MaxbrodError):  # no permission, no answer, or an old broker: the caller estimates
            sizes |= _sizes(_ask(client, leader, partitions, deadline=limit))
    return sizes


def topics_on_disk(client: KafkaClient, *, deadline: Deadline) -> set[str]:
    """Every topic with a replica on a broker, including those that this user may not Describe.

    An error if this user may not Describe the cluster.
    """
    brokers = client.metadata([], deadline=deadline).brokers
    found: set[str] = set()
    for node_id in brokers:
        limit = deadline.within(client.request_timeout_s)
        with naming(f"broker {node_id}"):
            found |= client.connection(node_id, deadline=limit).ask_for(_request(None), _names, limit)
    return found


def _names(answer: Message) -> frozenset[str]:
    """The topics that a broker has, from its answer about everything. The same answer is not decoded twice."""
    _demand_success(answer)
    return frozenset(
        topic.name
        for folder in answer.results
        if not folder.error_code
        for topic in folder.topics
        if any(not partition.is_future_key for partition in topic.partitions)
    )


def _ask(client: KafkaClient, node_id: int, partitions: Mapping[str, Sequence[int]], *, deadline: Deadline) -> Message:
    answer = client.ask_broker(node_id, _request(partitions), deadline=deadline)
    with naming(f"broker {node_id}"):
        _demand_success(answer)
    return answer


def _demand_success(answer: Message) -> None:
    if answer.error_code:
        raise answered_with(answer.error_code, operation="read sizes of logs", object_name="")


def _request(partitions: Mapping[str, Sequence[int]] | None) -> Message:
    wanted = None
    if partitions is not None:
        topic = DescribeLogDirsRequest.DescribableLogDirTopic
        wanted = [topic(topic=name, partitions=sorted(each)) for name, each in sorted(partitions.items())]
    return DescribeLogDirsRequest(topics=wanted)


def _sizes(answer: Message) -> dict[TopicPartition, int]:
    return {
        where: each.partition_size
        for folder in answer.results
        if not folder.error_code
        for where, each in each_partition(folder.topics)
        if not each.is_future_key  # a copy on its way to another disk of the same broker
    }
