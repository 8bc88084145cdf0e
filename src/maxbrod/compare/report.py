"""The report of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from maxbrod.batch.digest import Field
from maxbrod.compare.plan import WHOLE_TOPIC
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, gravest
from maxbrod.work.report import Report


def name_of(topic: str, partition: int) -> str:
    return topic if partition == WHOLE_TOPIC else f"{topic}-{partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionComparison:
    """Two partitions; or, with partition -1, two whole topics that were compared as sets."""

    source_topic: str
    target_topic: str
    partition: int
    match: str
    """exact, mapped, append, set or brought."""
    source_records: int
    target_records: int
    source_digest: str
    target_digest: str
    equal: bool
    source_log_start: int | None = None
    target_log_start: int | None = None
    """The offsets at which the logs begin, if both must begin at the same offset; otherwise None."""
    source_removed: int = 0
    target_removed: int = 0
    """Records that compaction removed on this side, and that are no difference: later records of their keys are there,
    or their tombstones had expired."""
    notes: tuple[str, ...] = ()
    failure: Mapping[str, Any] | None = None
    """The error, if they could not be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaComparison:
    """The captured schemas against a registry."""

    url: str
    captured_run: str
    versions: int
    mapped_by: str | None
    """The restore whose map of ids was used; None: ids must be the same."""
    different: int
    differences: tuple[str, ...]
    """The first ones."""

    @property
    def equal(self) -> bool:
        return not self.different


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport(Report):
    """`equal`: both sides hold the same records, and neither lacks any, but for what compaction removed.

    The type of timestamps does not count, their value does. Where offsets must be the same, the logs begin at the same
    offset too.
    """

    published = ("equal", "exit_code", "source_records", "target_records")

    source: str
    target: str
    started_at_ms: int
    finished_at_ms: int
    ignored: tuple[str, ...]
    partitions: tuple[PartitionComparison, ...]
    differences: tuple[Difference, ...]
    """The first differences."""
    schemas: SchemaComparison | None = None

    @property
    def equal(self) -> bool:
        same = all(partition.equal and partition.failure is None for partition in self.partitions)
        return bool(self.partitions) and same and (self.schemas is None or self.schemas.equal)

    def noted(self) -> list[str]:
        """The notes, each with its partition."""
        named = ((comparison.target_topic, comparison.partition, comparison.notes) for comparison in self.partitions)
        return [f"{name_of(topic, partition)}: {note}" for topic, partition, notes in named for note in notes]

    @property
    def source_records(self) -> int:
        return sum(partition.source_records for partition in self.partitions)

    @property
    def target_records(self) -> int:
        return sum(partition.target_records for partition in self.partitions)

    @property
    def exit_code(self) -> int:
        """0: equal. 3: different. If something could not be read: the code of that error, which 3 never hides."""
        codes = [int(partition.failure["exit_code"]) for partition in self.partitions if partition.failure is not None]
        return gravest(codes or [EXIT_DONE if self.equal else EXIT_INCOMPLETE])


BYTES_SHOWN_MAX: Final = 48

_BEFORE: Final = 16
"""The number of bytes that are shown before the first one that differs."""

_HEADERS_SHOWN_MAX: Final = 8

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_COLUMNS: Final = {Field.TIMESTAMP: "timestamp_ms"}

RECORD: Final = "record"
"""Stands in place of a field if one side has no such record."""

ABSENT: Final = "no record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field of one record on both sides. The offset is None on a side that has no such record."""

    source_topic: str
    target_topic: str
    partition: int
    source_offset: int | None
    target_offset: int | None
    field: str
    source: str
    target: str

    @property
    def first_offset(self) -> int:
        return self.source_offset if self.source_offset is not None else self.target_offset or 0


def show_field(field: Field, source: dict[str, Any], target: dict[str, Any]) -> tuple[str, str]:
    """Both values of a field in which two records differ. Records are as Arrow returns them."""
    name = _COLUMNS.get(field, str(field))
    first, second = source[name], target[name]
    match field:
        case Field.TIMESTAMP:
            return _show_time(first), _show_time(second)
        case Field.KEY | Field.VALUE:
            start = _start(first, second)
            shown = show_bytes(first, start), show_bytes(second, start)
            # Two texts may look the same: accents can be composed, and other alphabets have the same shapes.
            plain = _foreign(shown[0]) != _foreign(shown[1])
            return (show_bytes(first, start, plain=True), show_bytes(second, start, plain=True)) if plain else shown
        case Field.HEADERS:
            return _show_headers(first), _show_headers(second)
        case _:
            return str(first), str(second)


def show_record(record: dict[str, Any]) -> str:
    """The whole record, if the other side has none."""
    return f"key {show_bytes(record['key'])}, value {show_bytes(record['value'])}, {_show_time(record['timestamp_ms'])}"


def show_bytes(value: bytes | None, start: int = 0, *, plain: bool = False) -> str:
    """The bytes from `start` on: text as text, all else in hexadecimal. `plain`: only ASCII counts as text."""
    if value is None:
        return "null"
    part = value[start : start + BYTES_SHOWN_MAX]
    # JSON is full of double quotes and rarely has single ones.
    quote = "'" if b'"' in part and b"'" not in part else '"'
    text = "".join(_letter(letter, quote, plain=plain) for letter in part.decode("utf-8", "surrogateescape"))
    whole = len(part) == len(value)
    place = "" if whole else f" (byte {start} on, of {len(value)})" if start else f" (of {len(value)} bytes)"
    return f"{'…' if start else ''}{quote}{text}{quote}{'' if start + len(part) >= len(value) else '…'}{place}"


def _letter(letter: str, quote: str, *, plain: bool) -> str:
    """Python calls neither control characters nor broken UTF-8 printable, so a terminal gets none."""
    if letter in {"\\", quote}:
        return f"\\{letter}"
    if letter.isprintable() and (letter.isascii() or not plain):
        return letter
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape"))


def _foreign(text: str) -> list[str]:
    return sorted(letter for letter in text if not letter.isascii())


def _start(first: bytes | None, second: bytes | None) -> int:
    if first is None or second is None or max(len(first), len(second)) <= BYTES_SHOWN_MAX:
        return 0
    shorter = min(len(first), len(second))
    equal = next((at for at in range(shorter) if first[at] != second[at]), shorter)
    return max(0, equal - _BEFORE)


def _show_headers(headers: list[dict[str, Any]]) -> str:
    shown = [f"{show_bytes(header['key'])}={show_bytes(header['value'])}" for header in headers[:_HEADERS_SHOWN_MAX]]
    more = [f"and {len(headers) - _HEADERS_SHOWN_MAX} more"] if len(headers) > _HEADERS_SHOWN_MAX else []
    return f"[{', '.join(shown + more)}]"


def _show_time(timestamp_ms: int) -> str:
    try:
        return f"{timestamp_ms} ({(_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec='milliseconds')})"
    except OverflowError:
        return str(timestamp_ms)
