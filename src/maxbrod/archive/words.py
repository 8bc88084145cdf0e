"""Parses times and partitions as people write them: on a command line, as options of a table, in Python."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from maxbrod.errors import UsageError

INT64_MAX: Final = 2**63 - 1
PARTITIONS_MAX: Final = 100_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_MS: Final = re.compile(r"-?\d{1,19}", re.ASCII)
_TIME_HINT: Final = "give a time with its zone such as 2026-01-31T12:00:00Z, or milliseconds since 1970"


def parse_time_ms(word: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601 with a zone. Rounded up, which is right for a first and for an end."""
    if _EPOCH_MS.fullmatch(word):
        found = int(word)
    else:
        try:
            time = datetime.fromisoformat(word)
        except ValueError:
            raise UsageError(f"{word!r} is not a time", hint=_TIME_HINT) from None
        if time.tzinfo is None:
            raise UsageError(f"the time {word!r} has no zone", hint="append Z for UTC, or an offset as +02:00")
        found = -((_EPOCH - time) // timedelta(milliseconds=1))
    if not -INT64_MAX <= found <= INT64_MAX:
        raise UsageError(f"no record can have the time {word!r}", hint=_TIME_HINT)
    return found


def parse_partitions(word: str) -> frozenset[int]:
    """Parse numbers and ranges, such as `0,3,8-11`."""
    found: set[int] = set()
    for part in word.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII)
        if match is None or not (first := int(match[1])) <= (last := int(match[2] or match[1])) < PARTITIONS_MAX:
            raise UsageError(f"{word!r} names no partitions", hint="give numbers and ranges, such as 0,3,8-11")
        found.update(range(first, last + 1))
    return frozenset(found)
