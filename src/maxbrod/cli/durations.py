"""Durations on the command line: a number and a unit."""

from __future__ import annotations

import re
from typing import Final

from maxbrod.errors import UsageError

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}


def parse_duration_s(text: str) -> int:
    """Seconds of `90s`, `15m`, `24h` or `7d`."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text.strip(), re.ASCII)
    if match is None:
        raise UsageError(f"{text!r} is no length of time", hint="a whole number and s, m, h or d, such as 90s or 24h")
    return int(match[1]) * _UNITS_S[match[2]]
