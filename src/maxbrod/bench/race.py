"""Times contenders against each other in turns, so that a noisy machine is noisy for all of them alike."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def race(contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Best seconds of each over `rounds` rounds, after one that does not count. The best is the least disturbed."""
    best = dict.fromkeys(contenders, float("inf"))
    for round_number in range(rounds + 1):
        for name, contender in contenders.items():
            seconds = _seconds(contender)
            if round_number > 0:
                best[name] = min(best[name], seconds)
    return best


def _seconds(contender: Callable[[], object]) -> float:
    gc.collect()
    started = time.perf_counter()
    contender()
    return time.perf_counter() - started
