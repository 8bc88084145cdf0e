"""The records that the tool's instances exchange through topics: checkpoints and segment events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError, UsageError
from maxbrod.layouts.varints import encode_varint

_SECOND: Final = 1_000_000_000
_UINT32_MAX: Final = (1 << 32) - 1
_UINT64_MAX: Final = (1 << 64) - 1


class EventType(IntEnum):
    CREATED = 0
    REMOVED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The progress of a partition of a region at its destination: `offset` is that of the last record written.

    Its topic is compacted and keeps the last one for each key.
    """

    region: str
    topic: str
    partition: int
    offset: int
    time_ns: int

    def __post_init__(self) -> None:
        _check(self.partition, self.offset)

    @property
    def key(self) -> bytes:
        return f"{self.region}:{self.topic}:{self.partition}".encode()

    def encode(self) -> bytes:
        return b"".join(
            (
                text_field(1, self.region),
                text_field(2, self.topic),
                number_field(3, self.partition),
                number_field(4, self.offset),
                message_field(5, _encode_time(self.time_ns)),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSegment:
    """A segment as an event names it. Both offsets are inclusive."""

    region: str
    topic: str
    partition: int
    level: int
    start: int
    end: int

    def __post_init__(self) -> None:
        _check(self.partition, self.start)
        _check(self.level, self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEvent:
    """A segment was created or removed. Records of its topic have no key. Only created segments have a size."""

    type: EventType
    time_ns: int
    segment: EventSegment
    size: int = 0

    def __post_init__(self) -> None:
        _check(0, self.size)

    def encode(self) -> bytes:
        segment = b"".join(
            (
                text_field(1, self.segment.region),
                text_field(2, self.segment.topic),
                number_field(3, self.segment.partition),
                number_field(4, self.segment.level),
                number_field(5, self.segment.start),
                number_field(6, self.segment.end),
            )
        )
        times = message_field(2, _encode_time(self.time_ns))
        return number_field(1, self.type) + times + message_field(3, segment) + number_field(4, self.size)


def decode_checkpoint(value: bytes) -> Checkpoint:
    """Decode the value of a record of the checkpoint topic. CorruptDataError: it is not a checkpoint."""
    fields = EventFields(value)
    return Checkpoint(
        region=fields.text(1),
        topic=fields.text(2),
        partition=fields.unsigned(3, 32),
        offset=fields.unsigned(4),
        time_ns=_decode_time(fields.message(5)),
    )


def decode_segment_event(value: bytes) -> SegmentEvent:
    """Decode the value of a record of the segment events topic."""
    fields = EventFields(value)
    kind = fields.unsigned(1)
    if kind not in set(EventType):
        raise UnsupportedFormatError(f"a segment event has the unknown type {kind}")
    segment = fields.message(3)
    return SegmentEvent(
        type=EventType(kind),
        time_ns=_decode_time(fields.message(2)),
        segment=EventSegment(
            region=segment.text(1),
            topic=segment.text(2),
            partition=segment.unsigned(3, 32),
            level=segment.unsigned(4, 32),
            start=segment.unsigned(5),
            end=segment.unsigned(6),
        ),
        size=fields.unsigned(4),
    )


def _encode_time(time_ns: int) -> bytes:
    """Seconds may be negative, nanoseconds never are."""
    seconds, nanoseconds = divmod(time_ns, _SECOND)
    return number_field(1, seconds) + number_field(2, nanoseconds)


def _decode_time(fields: EventFields) -> int:
    nanoseconds = fields.unsigned(2)
    if nanoseconds >= _SECOND:
        raise CorruptDataError(f"a time has {nanoseconds} nanoseconds beside its seconds")
    return fields.signed(1) * _SECOND + nanoseconds


def _check(narrow: int, wide: int) -> None:
    if not (0 <= narrow <= _UINT32_MAX and 0 <= wide <= _UINT64_MAX):
        raise UsageError(f"{narrow} does not fit into 32 bits, or {wide} not into 64")


# The parts of Protocol Buffers' wire format that these messages need: varints, strings, nested messages. Unknown fields
# are skipped, as the format requires; invalid bytes are refused.
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_VARINT_BYTES_MAX: Final = 10
_SIGN: Final = 1 << 63


def number_field(number: int, value: int) -> bytes:
    """Encode a number. 0 is omitted, as in proto3. Negative numbers take ten bytes."""
    return encode_varint(number << 3 | _VARINT) + encode_varint(value & _UINT64_MAX) if value else b""


def text_field(number: int, value: str) -> bytes:
    return message_field(number, value.encode()) if value else b""


def message_field(number: int, value: bytes) -> bytes:
    """Encode a nested message. Written even if empty: the tool's nested messages are always present."""
    return encode_varint(number << 3 | _BYTES) + encode_varint(len(value)) + value


class EventFields:
    """The fields of a message by number. The last occurrence of a field counts."""

    def __init__(self, data: bytes) -> None:
        self._numbers: dict[int, int] = {}
        self._blobs: dict[int, bytes] = {}
        for number, value in _walk(data):
            if isinstance(value, int):
                self._numbers[number] = value
            else:
                self._blobs[number] = value

    def unsigned(self, number: int, bits: int = 64) -> int:
        value = self._numbers.get(number, 0)
        if value >> bits:
            raise CorruptDataError(f"field {number} of the message has more than {bits} bits")
        return value

    def signed(self, number: int) -> int:
        value = self._numbers.get(number, 0)
        return value - (1 << 64) if value & _SIGN else value

    def text(self, number: int) -> str:
        try:
            return self._blobs.get(number, b"").decode()
        except UnicodeDecodeError as error:
            raise CorruptDataError(f"field {number} of the message is not UTF-8") from error

    def message(self, number: int) -> EventFields:
        return EventFields(self._blobs.get(number, b""))


def _walk(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise CorruptDataError("a field of the message has the number 0", position=at)
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield number, value
        elif kind == _BYTES:
            size, at = _read_varint(data, at)
            yield number, _cut(data, at, size)
            at += size
        elif kind in {_FIXED32, _FIXED64}:  # no known field: skipped
            size = 4 if kind == _FIXED32 else 8
            _cut(data, at, size)
            at += size
        else:
            raise CorruptDataError(f"field {number} of the message has the unknown type {kind}", position=at)


def _cut(data: bytes, at: int, size: int) -> bytes:
    if size > len(data) - at:
        raise TruncatedDataError(
            f"a field of {size} bytes is expected where only {len(data) - at} are left", position=at
        )
    return data[at : at + size]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= len(data):
            raise TruncatedDataError("a number of the message is cut off", position=at)
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if not byte & 0x80:
            return value & _UINT64_MAX, at + index + 1
    raise CorruptDataError("a number of the message has more than ten bytes", position=at)
