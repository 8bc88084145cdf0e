"""Waits for something to become true, with a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from maxbrod.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_PAUSE_S: Final = 0.05


def wait_for(what: str, condition: Callable[[], T | None], *, timeout_s: float) -> T:
    """The first value of `condition` that is true; UnavailableError when time is up."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise UnavailableError(f"{what}: not within {timeout_s:g} s", operation="wait")
        time.sleep(_PAUSE_S)
