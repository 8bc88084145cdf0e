"""Numbers, sizes and times as text for people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES: Final = {"day": "%Y-%m-%d", "minute": "%Y-%m-%d %H:%M", "second": "%Y-%m-%d %H:%M:%SZ"}


def counted(count: int, noun: str, one: str = "", many: str = "") -> str:
    """A number with its noun, and with the verb that follows: `1 hold is`, `2 holds are`."""
    verb = one if count == 1 else many
    return f"{count:,} {noun}{'' if count == 1 else 's'}{f' {verb}' if verb else ''}"


def did_you_mean(word: str, known: Iterable[str], *, most: int = 1) -> str | None:
    """The question after a mistyped name: `did you mean orders?`. None: no known name is near."""
    names = sorted(known)
    alike = [name for name in names if name.casefold().rstrip("s") == word.casefold().rstrip("s")]
    near = alike[:most] or difflib.get_close_matches(word, names, most, 0.6)
    return f"did you mean {' or '.join(near)}?" if near else None


def human_count(count: int) -> str:
    """The exact number, if it is short enough for a table."""
    return f"{count:,}" if count < 10**10 else f"{count / 1e9:,.1f} G"


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def stored_bytes(stored: int, raw: int) -> str:
    """The size of an archive and of its log. Other layouts do not record the latter: both are the same there."""
    return f"{human_bytes(stored)} stored" + ("" if raw == stored else f" of {human_bytes(raw)} of log")


def human_time(timestamp_ms: int | None, *, to: Literal["day", "minute", "second"] = "second") -> str:
    """In UTC. The timestamp of a record can be any 64-bit number, also outside the calendar."""
    if timestamp_ms is None:
        return ""
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).strftime(_TIMES[to])
    except OverflowError:
        return "before 0001" if timestamp_ms < 0 else "after 9999"


def human_age(milliseconds: float) -> str:
    """A duration in its largest unit of which there are two or more."""
    seconds = milliseconds / 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
