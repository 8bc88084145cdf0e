"""Waits for something to become true, with a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from maxbrod.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_FIRST_PAUSE_S: Final = 0.005
_PAUSE_S: Final = 0.05


def wait_for(what: str, condition: Callable[[], T | None], *, timeout_s: float) -> T:
    """The first value of `condition` that is true; UnavailableError when time is up."""
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise UnavailableError(f"{what}: not within {timeout_s:g} s", operation="wait")
        time.sleep(pause_s)
        # Most things take a few milliseconds; what takes long is not asked more often for it.
        pause_s = min(2 * pause_s, _PAUSE_S)
