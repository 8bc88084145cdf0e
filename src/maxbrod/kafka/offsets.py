"""Where a partition begins, ends, stood at a time, or was cut: asked of the leaders, many partitions at once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from maxbrod.errors import UnavailableError
from maxbrod.kafka.client import retry
from maxbrod.kafka.error_codes import answered_with
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from maxbrod.kafka.client import KafkaClient, Leader
    from maxbrod.kafka.deadline import Deadline

EARLIEST: Final = -2
LATEST: Final = -1
_CONSUMER: Final = -1

Wanted = TypeVar("Wanted")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """`offset` and `timestamp_ms` are -1 where a time was asked for and no record is that young."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """The newest epoch up to the one asked for, and the offset it ends at (exclusive). -1 where none is known."""

    leader_epoch: int
    end_offset: int


def list_offsets(
    client: KafkaClient,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, ListedOffset]:
    """For each partition the offset of EARLIEST, of LATEST, or of the first record at or after a time in ms.

    With `read_committed`, LATEST is the last stable offset, else the high watermark.
    """

    def request(asked: Mapping[TopicPartition, tuple[int, Leader]]) -> Any:  # noqa: ANN401 - kafka-python is untyped
        topic_class = ListOffsetsRequest.ListOffsetsTopic
        topics = [
            topic_class(
                name=name,
                partitions=[
                    topic_class.ListOffsetsPartition(
                        partition_index=where.partition, current_leader_epoch=leader.leader_epoch, timestamp=timestamp
                    )
                    for where, (timestamp, leader) in each.items()
                ],
            )
            for name, each in _by_topic(asked).items()
        ]
        return ListOffsetsRequest(
            replica_id=_CONSUMER, isolation_level=int(read_committed), topics=topics, timeout_ms=10_000
        )

    def read(answer: Any) -> Iterable[tuple[TopicPartition, int, ListedOffset]]:  # noqa: ANN401 - untyped
        for topic in answer.topics:
            for each in topic.partitions:
                where = TopicPartition(topic=topic.name, partition=each.partition_index)
                found = ListedOffset(offset=each.offset, timestamp_ms=each.timestamp, leader_epoch=each.leader_epoch)
                yield where, each.error_code, found

    return ask_leaders(client, wanted, request, read, operation="list offsets", deadline=deadline)


def epoch_ends(
    client: KafkaClient, wanted: Mapping[TopicPartition, int], *, deadline: Deadline | None = None
) -> dict[TopicPartition, EpochEnd]:
    """For each partition and leader epoch, where that epoch ends in the log as it is now.

    An end below what was read in that epoch says that the log was truncated since.
    """

    def request(asked: Mapping[TopicPartition, tuple[int, Leader]]) -> Any:  # noqa: ANN401 - kafka-python is untyped
        topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        topics = [
            topic_class(
                topic=name,
                partitions=[
                    topic_class.OffsetForLeaderPartition(
                        partition=where.partition, current_leader_epoch=leader.leader_epoch, leader_epoch=epoch
                    )
                    for where, (epoch, leader) in each.items()
                ],
            )
            for name, each in _by_topic(asked).items()
        ]
        return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)

    def read(answer: Any) -> Iterable[tuple[TopicPartition, int, EpochEnd]]:  # noqa: ANN401 - kafka-python is untyped
        for topic in answer.topics:
            for each in topic.partitions:
                where = TopicPartition(topic=topic.topic, partition=each.partition)
                yield where, each.error_code, EpochEnd(leader_epoch=each.leader_epoch, end_offset=each.end_offset)

    return ask_leaders(client, wanted, request, read, operation="find the end of an epoch", deadline=deadline)


def ask_leaders(
    client: KafkaClient,
    wanted: Mapping[TopicPartition, Wanted],
    request: Callable[[Mapping[TopicPartition, tuple[Wanted, Leader]]], Any],
    read: Callable[[Any], Iterable[tuple[TopicPartition, int, Found]]],
    *,
    operation: str,
    deadline: Deadline | None,
) -> dict[TopicPartition, Found]:
    """One request for each leader; partitions that fail in a way that may pass are asked for again."""
    done: dict[TopicPartition, Found] = {}

    def once(limit: Deadline) -> dict[TopicPartition, Found]:
        missing = {where: each for where, each in wanted.items() if where not in done}
        failure: UnavailableError | None = None
        for node_id, asked in _by_leader(client, missing, limit).items():
            try:
                answer = client.ask_broker(node_id, request(asked), deadline=limit)
            except UnavailableError as error:
                _forget(client, asked)
                failure = error
                continue
            for where, code, found in read(answer):
                if not code:
                    done[where] = found
                    continue
                client.forget(where.topic)
                refusal = answered_with(code, operation=operation, object_name=str(where))
                if not isinstance(refusal, UnavailableError):
                    raise refusal
                failure = refusal
        if failure is not None:
            raise failure
        return {where: done[where] for where in wanted}

    return retry(once, deadline=deadline, what=f"the leaders of {len(wanted)} partitions to {operation}")


def _by_leader(
    client: KafkaClient, wanted: Mapping[TopicPartition, Wanted], deadline: Deadline
) -> dict[int, dict[TopicPartition, tuple[Wanted, Leader]]]:
    groups: dict[int, dict[TopicPartition, tuple[Wanted, Leader]]] = defaultdict(dict)
    for where, each in wanted.items():
        leader = client.leader(where, deadline=deadline)
        groups[leader.node_id][where] = (each, leader)
    return groups


def _by_topic(asked: Mapping[TopicPartition, Wanted]) -> dict[str, dict[TopicPartition, Wanted]]:
    groups: dict[str, dict[TopicPartition, Wanted]] = defaultdict(dict)
    for where, each in asked.items():
        groups[where.topic][where] = each
    return groups


def _forget(client: KafkaClient, asked: Iterable[TopicPartition]) -> None:
    for topic in {where.topic for where in asked}:
        client.forget(topic)
