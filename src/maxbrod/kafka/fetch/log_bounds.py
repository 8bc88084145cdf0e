"""Bounds of logs: the three offsets of many partitions at once, with one round trip to each leader.

A backup that follows asks for them every interval. kafka-python builds and reads an object for each partition, which
took 20 ms of processor time per thousand partitions and request; here they are columns, and a broker that gives the
same answers as in the last interval has no news. Whatever is not answered
plainly (an error, another version, a lost connection) is left to `list_offsets`, which retries and explains.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from operator import is_not
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from kafka.protocol.consumer import ListOffsetsRequest

from maxbrod.errors import CorruptDataError, UnavailableError
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.connection import Connection
    from maxbrod.kafka.wire.deadline import Deadline
    from maxbrod.kafka.wire.metadata import Topic

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
_HEADER_BYTES: Final = 1 + 4
"""No tagged field, throttle time."""
_CONSUMER: Final = b"\xff\xff\xff\xff"
_NO_TAGS: Final = b"\0"


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
            self._leaders = [_Leader(node_id, asked) for node_id, asked in _by_leader(wanted).items()]
            self._found = {}
        before = [leader.bounds for leader in self._leaders]
        for leader in self._leaders:
            leader.ask(client, deadline)
        if not self._found or any(map(is_not, before, (leader.bounds for leader in self._leaders))):
            self._found = {where: each for leader in self._leaders for where, each in leader.bounds.items()}
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
            connection.throttle(int.from_bytes(answer[1:_HEADER_BYTES], "big", signed=True))
        return answers


def _by_leader(topics: Iterable[Topic]) -> dict[int, _Asked]:
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
    pieces = [_CONSUMER, bytes([isolation]), _length(len(asked))]
    for topic, partitions in asked.items():
        rows = np.zeros(len(partitions), _ASKED)
        rows["partition"], rows["epoch"] = np.array(partitions, np.int64).T
        rows["moment"] = moment
        name = topic.encode()
        pieces += [_length(len(name)), name, _length(len(partitions)), rows.tobytes(), _NO_TAGS]
    return b"".join([*pieces, *([_TIMEOUT] if version >= _TIMEOUT_SINCE else []), _NO_TAGS])


def _read(data: bytes) -> dict[str, NDArray[Any]]:
    """The answers by topic. CorruptDataError: the response has another layout."""
    try:
        found: dict[str, NDArray[Any]] = {}
        count, at = _read_length(data, _HEADER_BYTES)
        for _ in range(count):
            size, at = _read_length(data, at)
            name = data[at : at + size].decode()
            count_of_topic, at = _read_length(data, at + size)
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


def _length(count: int) -> bytes:
    """Kafka's compact length: one more, as an unsigned varint."""
    value, encoded = count + 1, bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_length(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value - 1, at
        shift += 7
