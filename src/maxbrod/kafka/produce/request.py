"""Produce and WriteTxnMarkers requests, and Produce responses, encoded and decoded by hand. Bytes only, no I/O.

kafka-python would join all records into one frame, and they are most of the bytes; and ten thousand equal markers are
one marker, repeated. Its decoder of responses took a fifth of the processor time of producing. It still decodes the few
responses with more than codes and offsets, such as which record was refused and why. Produce versions 9 to 13 and
WriteTxnMarkers versions 1 and 2 have this layout.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    import numpy as np
    from numpy.typing import NDArray

    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.kafka.wire.connection import Piece
    from maxbrod.model import TopicPartition

TOPIC_IDS_SINCE: Final = 13
"""The first version of Produce that names topics by id."""
TRANSACTIONS_MAX: Final = 11
"""The last version of Produce in which the producer itself adds partitions to its transaction."""
TRANSACTION_VERSION_SINCE: Final = 2
"""The first version of WriteTxnMarkers in which a marker has the version of its transaction."""
_ALL_IN_SYNC: Final = -1
_START: Final = struct.Struct(">hi")  # acks, timeout
_INDEX: Final = struct.Struct(">i")
_PRODUCER: Final = struct.Struct(">qhb")  # producer id, producer epoch, whether it is a commit
_NO_TAGS: Final = b"\0"
_NULL: Final = b"\0"

_ANSWER_START: Final = 5  # after the correlation id, and no tagged fields
_TOPIC_ID_BYTES: Final = 16
# Index, code, base offset, log-append time, log start; then, one byte each where there are none: errors of single
# records, a message, tagged fields (a new leader).
_ANSWER_PARTITION: Final = struct.Struct(">ihqq8xBBB")
_NO_RECORD_ERRORS: Final = 1  # an empty list, which is not the same as none
_ANSWER_END: Final = struct.Struct(">iB")  # throttling, and no tagged fields


class RecordsTo(NamedTuple):
    """One batch for one partition. A broker refuses a second one for it in the same request."""

    where: TopicPartition
    topic_id: UUID
    records: NDArray[np.uint8]


def produce_body(
    entries: Iterable[RecordsTo], *, version: int, timeout_ms: int, transactional_id: str | None = None
) -> list[Piece]:
    """A request to be acknowledged by all in-sync replicas. The records are pieces of their own, uncopied."""
    topics: dict[int, list[RecordsTo]] = defaultdict(list)
    for entry in entries:
        topics[entry.topic_id.int].append(entry)
    pieces: list[Piece] = []
    small = _NULL if transactional_id is None else _string(transactional_id)
    small += _START.pack(_ALL_IN_SYNC, timeout_ms) + _length(len(topics))
    for topic in topics.values():
        where, topic_id, _ = topic[0]
        small += (topic_id.bytes if version >= TOPIC_IDS_SINCE else _string(where.topic)) + _length(len(topic))
        for where, _, records in topic:
            pieces.append(small + _INDEX.pack(where.partition) + _length(len(records)))
            pieces.append(records)
            small = _NO_TAGS
        small += _NO_TAGS
    return [*pieces, small + _NO_TAGS]


def markers_body(
    counts: Iterable[tuple[TopicPartition, int]], identity: ProducerIdentity, *, version: int, coordinator_epoch: int
) -> list[Piece]:
    """A request for this many commit markers in each partition, of a producer without records there."""
    markers: list[Piece] = []
    total = 0
    end = _INDEX.pack(coordinator_epoch) + (b"\0" if version >= TRANSACTION_VERSION_SINCE else b"") + _NO_TAGS
    producer = _PRODUCER.pack(identity.producer_id, identity.epoch, 1)
    for where, count in counts:
        partitions = _length(1) + _INDEX.pack(where.partition)
        markers.append((producer + _length(1) + _string(where.topic) + partitions + _NO_TAGS + end) * count)
        total += count
    return [_length(total), *markers, _NO_TAGS]


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _length(len(encoded)) + encoded


def _length(count: int) -> bytes:
    """A compact length: the length plus one as a varint."""
    value = count + 1
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    return bytes((value & 0x7F | 0x80,)) + _length((value >> 7) - 1)


class Answer(NamedTuple):
    """The response for one partition of a request."""

    code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    details: str | None = None


class ProduceAnswer(NamedTuple):
    """Answers by topic (the bytes of its id or its name, depending on the version) and partition."""

    throttle_ms: int
    partitions: dict[tuple[bytes, int], Answer]


def read_produce_answer(frame: NDArray[np.uint8], version: int) -> ProduceAnswer | None:
    """Read a response of versions 9 to 13 from its correlation id on. None if only kafka-python can decode it."""
    data = frame.tobytes()
    try:
        return _read_answer(data, version)
    except (struct.error, IndexError):
        return None


def _read_answer(data: bytes, version: int) -> ProduceAnswer | None:
    if data[_ANSWER_START - 1]:
        return None
    partitions: dict[tuple[bytes, int], Answer] = {}
    topics, place = _count(data, _ANSWER_START)
    for _ in range(topics):
        size = _TOPIC_ID_BYTES
        if version < TOPIC_IDS_SINCE:
            size, place = _count(data, place)
        topic = data[place : place + size]
        count, place = _count(data, place + size)
        for _ in range(count):
            index, code, base_offset, time_ms, record_errors, message, tags = _ANSWER_PARTITION.unpack_from(data, place)
            if record_errors != _NO_RECORD_ERRORS or message or tags:
                return None
            partitions[topic, index] = Answer(code, base_offset, time_ms)
            place += _ANSWER_PARTITION.size
        if data[place]:
            return None
        place += 1
    throttle_ms, tags = _ANSWER_END.unpack_from(data, place)
    return None if tags or place + _ANSWER_END.size != len(data) else ProduceAnswer(throttle_ms, partitions)


def _count(data: bytes, place: int) -> tuple[int, int]:
    """A compact length, and the position after it."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return max(value - 1, 0), place
        shift += 7
