"""Times contenders in turns, so that a noisy machine disturbs all of them alike."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from maxbrod.bench.processes import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def race(contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """The best seconds of each over `rounds` rounds, after a warm-up. The best lap is the least disturbed."""
    return {name: laps.best for name, laps in race_laps(contenders, rounds=rounds).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """`cpu_seconds` is the processor time of this process and its descendants."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Laps:
    """All counted laps of a contender."""

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def best_cpu(self) -> float:
        return min(self.cpu_seconds)


def race_laps(contenders: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: bool = True) -> dict[str, Laps]:
    """All laps of each, after a warm-up round. A contender that returns a `Lap` has timed itself."""
    laps: dict[str, list[Lap]] = {name: [] for name in contenders}
    first = 0 if warm_up else 1
    for round_number in range(first, rounds + 1):
        for name, contender in contenders.items():
            lap = time_lap(contender)
            if round_number > 0:
                laps[name].append(lap)
    return {
        name: Laps(seconds=tuple(lap.seconds for lap in each), cpu_seconds=tuple(lap.cpu_seconds for lap in each))
        for name, each in laps.items()
    }


def time_lap(contender: Callable[[], object], *, uncounted: frozenset[int] = frozenset()) -> Lap:
    """Time a contender without the processor time of `uncounted` processes and their descendants."""
    gc.collect()
    used, started = cpu_seconds(uncounted), time.perf_counter()
    own = contender()
    elapsed = time.perf_counter() - started
    return own if isinstance(own, Lap) else Lap(seconds=elapsed, cpu_seconds=cpu_seconds(uncounted) - used)
