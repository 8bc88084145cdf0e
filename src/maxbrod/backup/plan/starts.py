"""The offset at which the first backup of a partition begins. Later runs continue at the end of the archive."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from maxbrod.errors import UsageError
from maxbrod.model import TopicPartition

# A time without a zone, such as 2026-01-31T12:00:00, must not be read as topic:partition:offset.
_OFFSET: Final = re.compile(r"(?!\d{4}-\d\d-\d\dT)(?P<topic>[^:]+):(?P<partition>\d+):(?P<offset>\d+)", re.ASCII)
_EPOCH_MS: Final = re.compile(r"\d+", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_HINT: Final = (
    "give earliest, latest, a time with its zone such as 2026-01-31T12:00:00Z, milliseconds since 1970, "
    "or topic:partition:offset, once for each partition"
)


@dataclass(frozen=True, slots=True)
class Earliest:
    """Everything that the log has."""


@dataclass(frozen=True, slots=True)
class Latest:
    """Only records written from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTime:
    """The first record with this timestamp or a later one."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOffsets:
    """Partitions that are not listed begin at their earliest offset, so that nothing is left out by accident."""

    offsets: Mapping[TopicPartition, int]


Start: TypeAlias = Earliest | Latest | AtTime | AtOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOffset:
    offset: int
    note: str | None = None
    """The reason why it differs from the requested offset."""


def parse_start(given: str | Sequence[str] | Mapping[str, Mapping[int, int]]) -> Start:
    """Parse the values of the command line, or the configuration file's mapping of topic to partition to offset."""
    if isinstance(given, Mapping):
        return _at_offsets(
            [(topic, partition, offset) for topic, offsets in given.items() for partition, offset in offsets.items()]
        )
    words = [given] if isinstance(given, str) else list(given)
    offsets = [_OFFSET.fullmatch(word) for word in words]
    if offsets and all(offsets):
        return _at_offsets(
            [(match["topic"], int(match["partition"]), int(match["offset"])) for match in offsets if match]
        )
    if len(words) != 1:
        raise _unclear(" ".join(words))
    match words[0]:
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
        case word:
            return AtTime(timestamp_ms=_timestamp_ms(word))


def resolve_start(
    start: Start, where: TopicPartition, *, log_start: int, end: int, high_watermark: int, offset_for_time: int = -1
) -> StartOffset:
    """The first offset to archive. `offset_for_time` is the broker's answer for an `AtTime`; -1: no record is as new.

    A given offset between the last stable offset `end` and the high watermark is valid: its records become readable.
    """
    match start:
        case Earliest():
            return StartOffset(offset=log_start)
        case Latest():
            return StartOffset(offset=end)
        case AtTime():
            return StartOffset(offset=end if offset_for_time < 0 else max(offset_for_time, log_start))
        case AtOffsets():
            return _resolve_offset(start.offsets.get(where, log_start), where, log_start, max(end, high_watermark))


def _resolve_offset(offset: int, where: TopicPartition, log_start: int, end: int) -> StartOffset:
    if offset > end:
        raise UsageError(
            f"the backup cannot start at offset {offset}: the log ends at {end}",
            operation="plan a backup",
            object_name=str(where),
            offset=offset,
            hint="give an offset below the end of the log, or latest",
        )
    if offset < log_start:
        note = f"{where} starts at offset {log_start}, the start of its log, not at {offset}"
        return StartOffset(offset=log_start, note=note)
    return StartOffset(offset=offset)


def _at_offsets(given: Sequence[tuple[str, int, int]]) -> AtOffsets:
    offsets: dict[TopicPartition, int] = {}
    for topic, partition, offset in given:
        where = TopicPartition(topic=topic, partition=partition)
        if not 0 <= partition <= _INT32_MAX or not 0 <= offset <= _INT64_MAX:
            raise _unclear(f"{topic}:{partition}:{offset}")
        if offsets.setdefault(where, offset) != offset:
            raise UsageError(
                f"two start offsets are given, {offsets[where]} and {offset}",
                operation="read where to start",
                object_name=str(where),
            )
    return AtOffsets(offsets=offsets)


def _timestamp_ms(word: str) -> int:
    if _EPOCH_MS.fullmatch(word):
        return _checked(int(word), word)
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        raise _unclear(word) from None
    if time.tzinfo is None:
        raise UsageError(
            f"the time {word!r} has no time zone",
            operation="read where to start",
            hint="append Z for UTC, or an offset such as +02:00",
        )
    # Round up: a record half a millisecond before the time is older.
    return _checked(-((_EPOCH - time) // timedelta(milliseconds=1)), word)


def _checked(timestamp_ms: int, word: str) -> int:
    # Negative timestamps have other meanings in the Kafka protocol.
    if 0 <= timestamp_ms <= _INT64_MAX:
        return timestamp_ms
    raise UsageError(
        f"brokers cannot look up the time {word!r}",
        operation="read where to start",
        hint="for records from before 1970, start at earliest",
    )


def _unclear(text: str) -> UsageError:
    return UsageError(f"{text!r} is not a valid start", operation="read where to start", hint=_HINT)
