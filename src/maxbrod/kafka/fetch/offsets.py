"""Requests offsets from leaders, for many partitions at once: log start, end, by timestamp, and the end of an epoch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from maxbrod.errors import MaxbrodError, UnavailableError, UsageError
from maxbrod.kafka.wire.client import KafkaClient, Leader, retry
from maxbrod.kafka.wire.error_codes import answered_with
from maxbrod.kafka.wire.metadata import by_topic, each_partition
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline


EARLIEST: Final = -2
LATEST: Final = -1
_CONSUMER: Final = -1

Wanted = TypeVar("Wanted")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """`offset` and `timestamp_ms` are -1 if a time was requested and no record is that new."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """The newest epoch up to the requested one, and its end offset (exclusive). -1 if none is known."""

    leader_epoch: int
    end_offset: int


def list_offsets(
    client: KafkaClient,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    deadline: Deadline | None = None,
    failed: dict[TopicPartition, MaxbrodError] | None = None,
) -> dict[TopicPartition, ListedOffset]:
    """The offset of EARLIEST, LATEST, or the first record at or after a time in ms, for each partition.

    With `read_committed`, LATEST is the last stable offset: below it every transaction has ended, so a record's fate
    cannot change any more. Otherwise it is the high watermark. Failed partitions are added to `failed` and left out of
    the result; without `failed`, the first failure is raised.
    """

    def request(asked: Mapping[TopicPartition, tuple[int, Leader]]) -> Message:
        topic_class = ListOffsetsRequest.ListOffsetsTopic
        topics = [
            topic_class(
                name=name,
                partitions=[
                    topic_class.ListOffsetsPartition(
                        partition_index=index, current_leader_epoch=leader.leader_epoch, timestamp=timestamp
                    )
                    for index, (timestamp, leader) in each.items()
                ],
            )
            for name, each in by_topic(asked).items()
        ]
        return ListOffsetsRequest(
            replica_id=_CONSUMER, isolation_level=int(read_committed), topics=topics, timeout_ms=10_000
        )

    def read(answer: Message) -> Iterable[tuple[TopicPartition, int, ListedOffset]]:
        for where, each in each_partition(answer.topics):
            found = ListedOffset(offset=each.offset, timestamp_ms=each.timestamp, leader_epoch=each.leader_epoch)
            yield where, each.error_code, found

    return ask_leaders(client, wanted, request, read, operation="list offsets", deadline=deadline, failed=failed)


def epoch_ends(
    client: KafkaClient,
    wanted: Mapping[TopicPartition, int],
    *,
    deadline: Deadline | None = None,
    failed: dict[TopicPartition, MaxbrodError] | None = None,
) -> dict[TopicPartition, EpochEnd]:
    """The end offset of a leader epoch in the current log, for each partition.

    An end below what was read in that epoch means that the log has been truncated since. `failed` as in `list_offsets`.
    """

    def request(asked: Mapping[TopicPartition, tuple[int, Leader]]) -> Message:
        topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        topics = [
            topic_class(
                topic=name,
                partitions=[
                    topic_class.OffsetForLeaderPartition(
                        partition=index, current_leader_epoch=leader.leader_epoch, leader_epoch=epoch
                    )
                    for index, (epoch, leader) in each.items()
                ],
            )
            for name, each in by_topic(asked).items()
        ]
        return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)

    def read(answer: Message) -> Iterable[tuple[TopicPartition, int, EpochEnd]]:
        for topic in answer.topics:
            for partition in topic.partitions:
                where = TopicPartition(topic=topic.topic, partition=partition.partition)
                yield (
                    where,
                    partition.error_code,
                    EpochEnd(leader_epoch=partition.leader_epoch, end_offset=partition.end_offset),
                )

    return ask_leaders(
        client, wanted, request, read, operation="find the end of an epoch", deadline=deadline, failed=failed
    )


def ask_leaders(
    client: KafkaClient,
    wanted: Mapping[TopicPartition, Wanted],
    request: Callable[[Mapping[TopicPartition, tuple[Wanted, Leader]]], Message],
    read: Callable[[Message], Iterable[tuple[TopicPartition, int, Found]]],
    *,
    operation: str,
    deadline: Deadline | None,
    failed: dict[TopicPartition, MaxbrodError] | None = None,
) -> dict[TopicPartition, Found]:
    """Send one request to each leader, and again for partitions with retriable errors.

    With `failed`, failed partitions are added there and the others are still answered.
    """
    requests = _LeaderRequests(client, wanted, request, read, operation, patient=failed is not None)
    try:
        what = f"the leaders of {len(wanted)} partitions to {operation}"
        retry(requests.once, deadline=deadline, what=what, stop=client.stop)
    except UnavailableError:
        if failed is None:
            raise
    if failed is not None:
        failed.update({**requests.final, **requests.retriable})
    return {where: requests.done[where] for where in wanted if where in requests.done}


class _LeaderRequests(Generic[Wanted, Found]):
    """The partitions that are answered, that failed for good, and that may be retried."""

    def __init__(
        self,
        client: KafkaClient,
        wanted: Mapping[TopicPartition, Wanted],
        request: Callable[[Mapping[TopicPartition, tuple[Wanted, Leader]]], Message],
        read: Callable[[Message], Iterable[tuple[TopicPartition, int, Found]]],
        operation: str,
        *,
        patient: bool,
    ) -> None:
        self.done: dict[TopicPartition, Found] = {}
        self.final: dict[TopicPartition, MaxbrodError] = {}
        self.retriable: dict[TopicPartition, UnavailableError] = {}
        self._client = client
        self._wanted = wanted
        self._request = request
        self._read = read
        self._operation = operation
        self._patient = patient

    def once(self, limit: Deadline) -> None:
        """Send one round of requests. Raises if partitions remain."""
        self.retriable.clear()
        for node_id, asked in self._by_leader(limit).items():
            self._ask(node_id, asked, limit)
        if self.final and not self._patient:
            raise next(iter(self.final.values()))
        if self.retriable:
            raise next(iter(self.retriable.values()))

    def _by_leader(self, limit: Deadline) -> dict[int, dict[TopicPartition, tuple[Wanted, Leader]]]:
        groups: dict[int, dict[TopicPartition, tuple[Wanted, Leader]]] = defaultdict(dict)
        for where, each in self._wanted.items():
            if where in self.done or where in self.final:
                continue
            try:
                leader = self._client.leader(where, deadline=limit)
            except (UsageError, UnavailableError) as error:
                self._record_failure(where, error)
            else:
                groups[leader.node_id][where] = (each, leader)
        return groups

    def _ask(self, node_id: int, asked: Mapping[TopicPartition, tuple[Wanted, Leader]], limit: Deadline) -> None:
        try:
            answer = self._client.ask_broker(node_id, self._request(asked), deadline=limit)
        except UnavailableError as error:
            for topic in {where.topic for where in asked}:
                self._client.forget(topic)
            self.retriable.update(dict.fromkeys(asked, error))
            return
        for where, code, found in self._read(answer):
            if code:
                self._client.forget(where.topic)
                self._record_failure(where, answered_with(code, operation=self._operation, object_name=str(where)))
            else:
                self.done[where] = found

    def _record_failure(self, where: TopicPartition, error: MaxbrodError) -> None:
        if isinstance(error, UnavailableError):
            self.retriable[where] = error
        else:
            self.final[where] = error


def log_end(client: KafkaClient, where: TopicPartition, *, deadline: Deadline | None = None) -> int:
    """The log end offset of the leader, once all in-sync replicas have reached it.

    ListOffsets returns the high watermark, which lags behind. The end of the current leader epoch is the leader's log
    end offset. Where both agree, no clean election can lose a record below.
    """
    return log_ends(client, [where], deadline=deadline)[where]


def log_ends(
    client: KafkaClient, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, int]:
    """`log_end` of many partitions."""
    wanted = list(partitions)
    found: dict[TopicPartition, int] = {}

    def once(limit: Deadline) -> None:
        missing = [where for where in wanted if where not in found]
        epochs = {where: client.leader(where, deadline=limit).leader_epoch for where in missing}
        ends = epoch_ends(client, epochs, deadline=limit)
        visible = list_offsets(client, dict.fromkeys(missing, LATEST), deadline=limit)
        found.update(
            {where: ends[where].end_offset for where in missing if ends[where].end_offset == visible[where].offset}
        )
        behind = [where for where in missing if where not in found]
        if behind:
            raise UnavailableError("replicas have not caught up with their leader", object_name=str(behind[0]))

    retry(once, deadline=deadline, what="replicas to catch up")
    return found
