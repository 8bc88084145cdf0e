"""Where logs begin and end: the three offsets of many partitions at once, with one round trip to each leader.

A backup that follows asks for them every interval. kafka-python builds and reads an object for each partition, which
took 20 ms of processor time per thousand partitions and request; here they are columns. Whatever is not answered
plainly (an error, another version, a lost connection) is left to `list_offsets`, which retries and explains.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from kafka.protocol.consumer import ListOffsetsRequest

from maxbrod.errors import CorruptDataError, UnavailableError, UsageError
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
_HEADER_BYTES: Final = 4 + 1 + 4
"""Correlation id, no tagged field, throttle time."""
_CONSUMER: Final = b"\xff\xff\xff\xff"
_NO_TAGS: Final = b"\0"


@dataclass(frozen=True, slots=True)
class LogBounds:
    """`stable` is the last stable offset."""

    log_start: int
    stable: int
    high_watermark: int


def read_log_bounds(
    client: KafkaClient, places: Iterable[TopicPartition], *, deadline: Deadline
) -> dict[TopicPartition, LogBounds]:
    """The bounds of the partitions whose leader gives them at once; the others are left out."""
    found: dict[TopicPartition, LogBounds] = {}
    for node_id, asked in _by_leader(client, places, deadline).items():
        try:
            found |= _ask(client.connection(node_id, deadline=deadline), asked, deadline)
        except (UnavailableError, CorruptDataError):
            continue
    return found


_Asked = dict[str, list[tuple[int, int]]]
"""By topic, partitions and the epochs of their leaders."""


def _by_leader(client: KafkaClient, places: Iterable[TopicPartition], deadline: Deadline) -> dict[int, _Asked]:
    leaders: dict[int, _Asked] = defaultdict(lambda: defaultdict(list))
    topics: dict[str, Topic | None] = {}
    for where in places:
        if where.topic not in topics:
            topics[where.topic] = _topic(client, where.topic, deadline)
        topic = topics[where.topic]
        found = None if topic is None else topic.partitions.get(where.partition)
        if found is not None and found.leader is not None:
            leaders[found.leader][where.topic].append((where.partition, found.leader_epoch))
    return leaders


def _topic(client: KafkaClient, name: str, deadline: Deadline) -> Topic | None:
    try:
        return client.topic(name, deadline=deadline)
    except (UnavailableError, UsageError):
        return None


def _ask(
    connection: Connection, asked: Mapping[str, Sequence[tuple[int, int]]], deadline: Deadline
) -> dict[TopicPartition, LogBounds]:
    version = connection.versions.choose(ListOffsetsRequest)
    if version not in _VERSIONS:
        return {}
    key = int(ListOffsetsRequest.API_KEY)
    bodies = (_request(asked, moment, isolation, version) for moment, isolation in _QUESTIONS)
    tickets = [connection.put_pieces(key, version, [body], deadline) for body in bodies]
    connection.flush(deadline)
    answers = [_read(connection, connection.receive(ticket, deadline)) for ticket in tickets]
    starts, stable, high = answers
    return {
        where: bounds
        for topic, wanted in asked.items()
        if all(len(answer.get(topic, ())) == len(wanted) for answer in answers)
        for where, bounds in _bounds(topic, starts[topic], stable[topic], high[topic]).items()
    }


def _bounds(
    topic: str, starts: NDArray[Any], stable: NDArray[Any], high: NDArray[Any]
) -> dict[TopicPartition, LogBounds]:
    """The bounds of the partitions that all three answers have, without an error."""
    starts, stable, high = (each[np.argsort(each["partition"])] for each in (starts, stable, high))
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


def _read(connection: Connection, frame: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """The answers by topic. CorruptDataError: the response has another layout."""
    data = frame.tobytes()
    try:
        connection.throttle(int.from_bytes(data[5:_HEADER_BYTES], "big", signed=True))
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
        if data[4] or data[at:] != _NO_TAGS:
            raise ValueError("more than it should have")
    except (ValueError, IndexError) as error:
        connection.close()
        message = f"a response to ListOffsets cannot be read: {error}"
        raise CorruptDataError(message, object_name=connection.name) from error
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
