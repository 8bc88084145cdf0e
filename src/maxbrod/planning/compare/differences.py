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
            return show_bytes(first, start), show_bytes(second, start)
        case Field.HEADERS:
            return _show_headers(first), _show_headers(second)
        case _:
            return str(first), str(second)


def show_record(record: dict[str, Any]) -> str:
    """The whole of it, where the other side has none."""
    return f"key {show_bytes(record['key'])}, value {show_bytes(record['value'])}, {_show_time(record['timestamp_ms'])}"


def show_bytes(value: bytes | None, start: int = 0) -> str:
    """From byte `start` on: printable ASCII as it is, everything else in hexadecimal."""
    if value is None:
        return "null"
    part = value[start : start + BYTES_SHOWN_MAX]
    text = "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in part)
    whole = len(part) == len(value)
    place = "" if whole else f" (byte {start} on, of {len(value)})" if start else f" (of {len(value)} bytes)"
    return f'{"…" if start else ""}"{text}"{"" if start + len(part) >= len(value) else "…"}{place}'


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
