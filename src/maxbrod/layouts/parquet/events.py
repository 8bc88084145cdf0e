"""The records that the tool's instances exchange through topics: checkpoints and segment events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from maxbrod.errors import CorruptDataError, UnsupportedFormatError, UsageError
from maxbrod.layouts.parquet.protobuf import Fields, message_field, number_field, text_field

_SECOND: Final = 1_000_000_000
_UINT32_MAX: Final = (1 << 32) - 1
_UINT64_MAX: Final = (1 << 64) - 1


class EventType(IntEnum):
    CREATED = 0
    REMOVED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How far a partition of a region was written to its destination: `offset` is that of the last record.

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
    fields = Fields(value)
    return Checkpoint(
        region=fields.text(1),
        topic=fields.text(2),
        partition=fields.unsigned(3, 32),
        offset=fields.unsigned(4),
        time_ns=_decode_time(fields.message(5)),
    )


def decode_segment_event(value: bytes) -> SegmentEvent:
    """Decode the value of a record of the segment events topic."""
    fields = Fields(value)
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


def _decode_time(fields: Fields) -> int:
    nanoseconds = fields.unsigned(2)
    if nanoseconds >= _SECOND:
        raise CorruptDataError(f"a time has {nanoseconds} nanoseconds beside its seconds")
    return fields.signed(1) * _SECOND + nanoseconds


def _check(narrow: int, wide: int) -> None:
    if not (0 <= narrow <= _UINT32_MAX and 0 <= wide <= _UINT64_MAX):
        raise UsageError(f"{narrow} does not fit into 32 bits, or {wide} not into 64")
