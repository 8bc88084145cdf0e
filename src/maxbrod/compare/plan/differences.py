"""A difference between two records, and how its two sides are shown: short, on one line, and safe on any terminal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from maxbrod.batch.digest import Field

BYTES_SHOWN_MAX: Final = 48
_BEFORE: Final = 16
"""How many bytes are shown before the first one that differs."""
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
            plain = _look_alike(*shown)
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
    text = "".join(_letter(each, quote, plain=plain) for each in part.decode("utf-8", "surrogateescape"))
    whole = len(part) == len(value)
    place = "" if whole else f" (byte {start} on, of {len(value)})" if start else f" (of {len(value)} bytes)"
    return f"{'…' if start else ''}{quote}{text}{quote}{'' if start + len(part) >= len(value) else '…'}{place}"


def _letter(each: str, quote: str, *, plain: bool) -> str:
    """Python calls neither control characters nor broken UTF-8 printable, so a terminal gets none."""
    if each in {"\\", quote}:
        return f"\\{each}"
    if each.isprintable() and (each.isascii() or not plain):
        return each
    return "".join(f"\\x{byte:02x}" for byte in each.encode("utf-8", "surrogateescape"))


def _look_alike(first: str, second: str) -> bool:
    """Whether two texts may look the same: accents can be composed, and other alphabets have the same shapes."""
    return _foreign(first) != _foreign(second)


def _foreign(text: str) -> list[str]:
    return sorted(each for each in text if not each.isascii())


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
