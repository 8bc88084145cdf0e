"""Requests offsets from leaders, for many partitions at once: log start, end, by timestamp, and the end of an epoch.

A backup that follows asks for the three bounds of its logs every interval. kafka-python builds and reads an object for
each partition, which took 20 ms of processor time per thousand partitions and request; in `LogBoundsReader` they are
columns, and a broker that gives the same answers as in the last interval has no news. Whatever is not answered plainly
(an error, another version, a lost connection) is left to `list_offsets`, which retries and explains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_not
from typing import Any, Final, TypeVar

import numpy as np
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from numpy.typing import NDArray

from maxbrod.errors import CorruptDataError, MaxbrodError, UnavailableError, UsageError
from maxbrod.kafka.wire.client import KafkaClient, Leader, Topic, each_partition, retry, topic_messages
from maxbrod.kafka.wire.connection import Connection, Message, compact_length, read_compact_length
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import answered_with
from maxbrod.model import TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
_CONSUMER: Final = -1

_VERSIONS: Final = range(6, 12)
"""All of one layout, but for the timeout at the end of the newer."""
_TIMEOUT_SINCE: Final = 10
_TIMEOUT: Final = (10_000).to_bytes(4, "big")
_QUESTIONS: Final = ((EARLIEST, 0), (LATEST, 1), (LATEST, 0))
"""Moments and isolation levels. In this order, so that each offset lies before the next: a broker answers the requests
of one connection one after another."""
_ASKED: Final = np.dtype([("partition", ">i4"), ("epoch", ">i4"), ("moment", ">i8"), ("tags", "u1")])
_ANSWERED: Final = np.dtype(
    [("partition", ">i4"), ("error", ">i2"), ("time", ">i8"), ("offset", ">i8"), ("epoch", ">i4"), ("tags", "u1")]
)
_CORRELATION_BYTES: Final = 4
_ANSWER_HEADER_BYTES: Final = 1 + 4
"""No tagged field, throttle time."""
_NO_TAGS: Final = b"\0"

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
    topic = ListOffsetsRequest.ListOffsetsTopic

    def partition(index: int, asked: tuple[int, Leader]) -> Message:
        return topic.ListOffsetsPartition(
            partition_index=index, current_leader_epoch=asked[1].leader_epoch, timestamp=asked[0]
        )

    def request(asked: Mapping[TopicPartition, tuple[int, Leader]]) -> Message:
        return ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=int(read_committed),
            topics=topic_messages(asked, topic, partition),
            timeout_ms=10_000,
        )

    def read(answer: Message) -> Iterable[tuple[TopicPartition, int, ListedOffset]]:
        for where, partition in each_partition(answer.topics):
            found = ListedOffset(
                offset=partition.offset, timestamp_ms=partition.timestamp, leader_epoch=partition.leader_epoch
            )
            yield where, partition.error_code, found

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
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    def partition(index: int, asked: tuple[int, Leader]) -> Message:
        return topic.OffsetForLeaderPartition(
            partition=index, current_leader_epoch=asked[1].leader_epoch, leader_epoch=asked[0]
        )

    def request(asked: Mapping[TopicPartition, tuple[int, Leader]]) -> Message:
        topics = topic_messages(asked, topic, partition, "topic")
        return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)

    def read(answer: Message) -> Iterable[tuple[TopicPartition, int, EpochEnd]]:
        for found in answer.topics:
            for partition in found.partitions:
                end = EpochEnd(leader_epoch=partition.leader_epoch, end_offset=partition.end_offset)
                yield TopicPartition(topic=found.topic, partition=partition.partition), partition.error_code, end

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
    done: dict[TopicPartition, Found] = {}
    final: dict[TopicPartition, MaxbrodError] = {}
    retriable: dict[TopicPartition, MaxbrodError] = {}

    def once(limit: Deadline) -> None:
        """Send one round of requests. Raises if partitions remain."""
        retriable.clear()
        missing = {where: want for where, want in wanted.items() if where not in done and where not in final}
        groups, errors = _by_leader(client, missing, limit)
        for node_id, asked in groups.items():
            errors |= _ask(
                partial(client.ask_broker, node_id, request(asked), deadline=limit), asked, read, operation, done
            )
        for topic in {where.topic for where in errors}:
            client.forget(topic)
        for where, error in errors.items():
            (retriable if isinstance(error, UnavailableError) else final)[where] = error
        remaining = [*(final.values() if failed is None else ()), *retriable.values()]
        if remaining:
            raise remaining[0]

    try:
        retry(once, deadline=deadline, what=f"the leaders of {len(wanted)} partitions to {operation}", stop=client.stop)
    except UnavailableError:
        if failed is None:
            raise
    if failed is not None:
        failed.update({**final, **retriable})
    return {where: done[where] for where in wanted if where in done}


def _by_leader(
    client: KafkaClient, wanted: Mapping[TopicPartition, Wanted], deadline: Deadline
) -> tuple[dict[int, dict[TopicPartition, tuple[Wanted, Leader]]], dict[TopicPartition, MaxbrodError]]:
    groups: dict[int, dict[TopicPartition, tuple[Wanted, Leader]]] = defaultdict(dict)
    errors: dict[TopicPartition, MaxbrodError] = {}
    for where, want in wanted.items():
        try:
            leader = client.leader(where, deadline=deadline)
        except (UsageError, UnavailableError) as error:
            errors[where] = error
        else:
            groups[leader.node_id][where] = (want, leader)
    return groups, errors


def _ask(
    ask: Callable[[], Message],
    asked: Iterable[TopicPartition],
    read: Callable[[Message], Iterable[tuple[TopicPartition, int, Found]]],
    operation: str,
    done: dict[TopicPartition, Found],
) -> dict[TopicPartition, MaxbrodError]:
    """Ask one leader: adds the answers to `done`, and returns the errors of the other partitions."""
    errors: dict[TopicPartition, MaxbrodError] = {}
    try:
        answer = ask()
    except UnavailableError as error:
        return dict.fromkeys(asked, error)
    for where, code, found in read(answer):
        if code:
            errors[where] = answered_with(code, operation=operation, object_name=str(where))
        else:
            done[where] = found
    return errors


def log_end(client: KafkaClient, where: TopicPartition, *, deadline: Deadline | None = None) -> int:
    """The log end offset of the leader, once all in-sync replicas have reached it.

    ListOffsets returns the high watermark, which lags behind. The end of the current leader epoch is the leader's log
    end offset. Where both agree, no clean election can lose a record below.
    """
    return log_ends(client, [where], deadline=deadline)[where]


def log_ends(
    client: KafkaClient, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, int]:
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


@dataclass(frozen=True, slots=True)
class LogBounds:
    """`stable` is the last stable offset."""

    log_start: int
    stable: int
    high_watermark: int


_Asked = dict[str, list[tuple[int, int]]]
"""By topic, partitions and the epochs of their leaders."""
_Bounds = dict[TopicPartition, LogBounds]


class LogBoundsReader:
    """Reads the bounds of the same topics again and again.

    While topics and leaders stay the same, the requests are not built again. A broker whose answers have the same bytes
    as the last ones has no news, and if none has, the result is the very same object: nobody may change it.
    """

    def __init__(self) -> None:
        self._topics: tuple[Topic, ...] = ()
        self._leaders: list[_Leader] = []
        self._found: _Bounds = {}

    def read(
        self, client: KafkaClient, topics: Iterable[Topic], *, deadline: Deadline
    ) -> Mapping[TopicPartition, LogBounds]:
        """The bounds of the partitions whose leader gives them at once; the others are left out."""
        wanted = tuple(topics)
        if len(wanted) != len(self._topics) or any(map(is_not, wanted, self._topics)):
            self._topics = wanted
            self._leaders = [_Leader(node_id, asked) for node_id, asked in _asked_by_leader(wanted).items()]
            self._found = {}
        before = [leader.bounds for leader in self._leaders]
        for leader in self._leaders:
            leader.ask(client, deadline)
        if not self._found or any(map(is_not, before, (leader.bounds for leader in self._leaders))):
            self._found = {where: bounds for leader in self._leaders for where, bounds in leader.bounds.items()}
        return self._found


class _Leader:
    """A broker, and the partitions that it leads."""

    def __init__(self, node_id: int, asked: _Asked) -> None:
        self.bounds: _Bounds = {}
        """As of the last answers; empty if there were none."""
        self._node_id: Final = node_id
        self._asked: Final = asked
        self._version = -1
        self._requests: list[bytes] = []
        self._answers: list[bytes] = []

    def ask(self, client: KafkaClient, deadline: Deadline) -> None:
        try:
            answers = self._exchange(client.connection(self._node_id, deadline=deadline), deadline)
            if answers != self._answers:
                self.bounds, self._answers = self._decode([_read(answer) for answer in answers]), answers
        except (UnavailableError, CorruptDataError):
            self.bounds, self._answers = {}, []

    def _decode(self, answers: Sequence[Mapping[str, NDArray[Any]]]) -> _Bounds:
        return {
            where: bounds
            for topic, wanted in self._asked.items()
            if answers and all(len(answer.get(topic, ())) == len(wanted) for answer in answers)
            for where, bounds in _bounds(topic, *(answer[topic] for answer in answers)).items()
        }

    def _exchange(self, connection: Connection, deadline: Deadline) -> list[bytes]:
        """The answers without their correlation ids; none if the broker has no version that is known here."""
        version = connection.versions.choose(ListOffsetsRequest)
        if version not in _VERSIONS:
            return []
        if version != self._version:
            self._version = version
            self._requests = [_request(self._asked, moment, isolation, version) for moment, isolation in _QUESTIONS]
        key = int(ListOffsetsRequest.API_KEY)
        tickets = [connection.put_pieces(key, version, [body], deadline) for body in self._requests]
        connection.flush(deadline)
        answers = [connection.receive(ticket, deadline)[_CORRELATION_BYTES:].tobytes() for ticket in tickets]
        for answer in answers:
            connection.throttle(int.from_bytes(answer[1:_ANSWER_HEADER_BYTES], "big", signed=True))
        return answers


def _asked_by_leader(topics: Iterable[Topic]) -> dict[int, _Asked]:
    leaders: dict[int, _Asked] = defaultdict(lambda: defaultdict(list))
    for topic in topics:
        for number, found in topic.partitions.items():
            if found.leader is not None:
                leaders[found.leader][topic.name].append((number, found.leader_epoch))
    return leaders


def _bounds(
    topic: str, starts: NDArray[Any], stable: NDArray[Any], high: NDArray[Any]
) -> dict[TopicPartition, LogBounds]:
    """The bounds of the partitions that all three answers have, without an error."""
    starts, stable, high = (answer[np.argsort(answer["partition"])] for answer in (starts, stable, high))
    same = (starts["partition"] == stable["partition"]) & (stable["partition"] == high["partition"])
    sound = same & ((starts["error"] | stable["error"] | high["error"]) == 0)
    rows = zip(
        starts["partition"][sound].tolist(),
        np.minimum(starts["offset"], stable["offset"])[sound].tolist(),
        stable["offset"][sound].tolist(),
        high["offset"][sound].tolist(),
        strict=True,
    )
    return {
        TopicPartition(topic=topic, partition=partition): LogBounds(start, end, watermark)
        for partition, start, end, watermark in rows
    }


def _request(asked: Mapping[str, Sequence[tuple[int, int]]], moment: int, isolation: int, version: int) -> bytes:
    pieces = [_CONSUMER.to_bytes(4, "big", signed=True), bytes([isolation]), compact_length(len(asked))]
    for topic, partitions in asked.items():
        rows = np.zeros(len(partitions), _ASKED)
        rows["partition"], rows["epoch"] = np.array(partitions, np.int64).T
        rows["moment"] = moment
        name = topic.encode()
        pieces += [compact_length(len(name)), name, compact_length(len(partitions)), rows.tobytes(), _NO_TAGS]
    return b"".join([*pieces, *([_TIMEOUT] if version >= _TIMEOUT_SINCE else []), _NO_TAGS])


def _read(data: bytes) -> dict[str, NDArray[Any]]:
    """The answers by topic. CorruptDataError: the response has another layout."""
    try:
        found: dict[str, NDArray[Any]] = {}
        count, at = read_compact_length(data, _ANSWER_HEADER_BYTES)
        for _ in range(count):
            size, at = read_compact_length(data, at)
            name = data[at : at + size].decode()
            count_of_topic, at = read_compact_length(data, at + size)
            rows = np.frombuffer(data, _ANSWERED, count_of_topic, at)
            at += rows.nbytes
            if rows["tags"].any() or data[at]:
                raise ValueError("tagged fields")
            found[name], at = rows, at + 1
        if data[0] or data[at:] != _NO_TAGS:
            raise ValueError("more than it should have")
    except (ValueError, IndexError) as error:
        raise CorruptDataError(f"a response to ListOffsets cannot be read: {error}") from error
    return found
