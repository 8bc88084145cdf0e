"""The answer to a Produce request, read by hand: it comes once for every few batches. Bytes only, no I/O.

kafka-python's reader took a fifth of the processor time of producing. What it is still needed for is an answer that
tells more than codes and offsets, such as which record was refused, and why: those are few.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from maxbrod.kafka.produce.request import TOPIC_IDS_SINCE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_START: Final = 5  # after the correlation id, and no tagged fields
_TOPIC_ID_BYTES: Final = 16
# Index, code, base offset, log-append time, log start; then, one byte each where there are none: errors of single
# records, a message, tagged fields (a new leader).
_PARTITION: Final = struct.Struct(">ihqq8xBBB")
_NO_RECORD_ERRORS: Final = 1  # an empty list, which is not the same as none
_END: Final = struct.Struct(">iB")  # throttling, and no tagged fields


class Answer(NamedTuple):
    """What a broker says about one partition of a request."""

    code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    details: str | None = None


class ProduceAnswer(NamedTuple):
    """By topic (its id's bytes, or its name where the version tells that) and partition."""

    throttle_ms: int
    partitions: dict[tuple[bytes, int], Answer]


def read_produce_answer(frame: NDArray[np.uint8], version: int) -> ProduceAnswer | None:
    """From its correlation id on, of the versions 9 to 13. None: it tells more, or is none; kafka-python can tell."""
    data = frame.tobytes()
    try:
        return _read(data, version)
    except (struct.error, IndexError):
        return None


def _read(data: bytes, version: int) -> ProduceAnswer | None:
    if data[_START - 1]:
        return None
    partitions: dict[tuple[bytes, int], Answer] = {}
    topics, place = _count(data, _START)
    for _ in range(topics):
        size = _TOPIC_ID_BYTES
        if version < TOPIC_IDS_SINCE:
            size, place = _count(data, place)
        topic = data[place : place + size]
        count, place = _count(data, place + size)
        for _ in range(count):
            index, code, base_offset, time_ms, record_errors, message, tags = _PARTITION.unpack_from(data, place)
            if record_errors != _NO_RECORD_ERRORS or message or tags:
                return None
            partitions[topic, index] = Answer(code, base_offset, time_ms)
            place += _PARTITION.size
        if data[place]:
            return None
        place += 1
    throttle_ms, tags = _END.unpack_from(data, place)
    return None if tags or place + _END.size != len(data) else ProduceAnswer(throttle_ms, partitions)


def _count(data: bytes, place: int) -> tuple[int, int]:
    """A compact length, and what follows it."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return max(value - 1, 0), place
        shift += 7
