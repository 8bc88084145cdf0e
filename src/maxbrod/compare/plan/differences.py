"""A difference between two records, and how its two sides are shown: short, on one line, and safe on any terminal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from maxbrod.batch.digest import Field

BYTES_SHOWN_MAX: Final = 48
_BEFORE: Final = 16
"""How much is shown before the first byte that differs."""
_HEADERS_SHOWN_MAX: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS: Final = {Field.TIMESTAMP: "timestamp_ms"}
RECORD: Final = "record"
"""In place of a field, where one side has no such record."""
ABSENT: Final = "no record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What one field of one record is on both sides. An offset is None where that side has no such record."""

    source_topic: str
    target_topic: str
    partition: int
    source_offset: int | None
    target_offset: int | None
    field: str
    source: str
    target: str


def show_field(field: Field, source: dict[str, Any], target: dict[str, Any]) -> tuple[str, str]:
    """The two values of a field of two records that differ in it. Records are as Arrow gives them."""
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
    """The whole of it, where the other side has none."""
    return f"key {show_bytes(record['key'])}, value {show_bytes(record['value'])}, {_show_time(record['timestamp_ms'])}"


def show_bytes(value: bytes | None, start: int = 0, *, plain: bool = False) -> str:
    """From byte `start` on: text as it is read, every other byte in hexadecimal. `plain`: of text, ASCII alone."""
    if value is None:
        return "null"
    part = value[start : start + BYTES_SHOWN_MAX]
    # JSON is full of the one, and hardly ever has the other.
    quote = "'" if b'"' in part and b"'" not in part else '"'
    text = "".join(_letter(each, quote, plain=plain) for each in part.decode("utf-8", "surrogateescape"))
    whole = len(part) == len(value)
    place = "" if whole else f" (byte {start} on, of {len(value)})" if start else f" (of {len(value)} bytes)"
    return f"{'…' if start else ''}{quote}{text}{quote}{'' if start + len(part) >= len(value) else '…'}{place}"


def _letter(each: str, quote: str, *, plain: bool) -> str:
    """Nothing that a terminal acts upon is printable to Python, nor is half a letter."""
    if each in {"\\", quote}:
        return f"\\{each}"
    if each.isprintable() and (each.isascii() or not plain):
        return each
    return "".join(f"\\x{byte:02x}" for byte in each.encode("utf-8", "surrogateescape"))


def _look_alike(first: str, second: str) -> bool:
    """Whether two texts may differ in what nobody sees: how an accent is written, or letters of other alphabets."""
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
    shown = [f"{show_bytes(each['key'])}={show_bytes(each['value'])}" for each in headers[:_HEADERS_SHOWN_MAX]]
    more = [f"and {len(headers) - _HEADERS_SHOWN_MAX} more"] if len(headers) > _HEADERS_SHOWN_MAX else []
    return f"[{', '.join(shown + more)}]"


def _show_time(timestamp_ms: int) -> str:
    try:
        return f"{timestamp_ms} ({(_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec='milliseconds')})"
    except OverflowError:
        return str(timestamp_ms)
