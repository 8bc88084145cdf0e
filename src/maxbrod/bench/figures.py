"""The results of a benchmark: ratios between contenders of one race, and plain figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from maxbrod.bench.race import Laps


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`value` is that of the best laps. A ratio includes the laps of both sides."""

    name: str
    value: float
    unit: Literal["times", "seconds", "bytes", "per second", "per run", "objects"] = "times"
    wanted: float | None = None
    at_most: bool = False
    """Whether `wanted` is a maximum; otherwise it is a minimum."""
    median: float | None = None
    cpu: float | None = None
    """Our processor time divided by the peer's."""
    ours: Laps | None = None
    peer: Laps | None = None
    note: str = ""

    @property
    def reached(self) -> bool | None:
        if self.wanted is None:
            return None
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted


def speed(name: str, ours: Laps, peer: Laps, *, wanted: float | None = None, note: str = "") -> Figure:
    """How many times as fast as the peer."""
    return Figure(
        name=name,
        value=peer.best / ours.best,
        median=peer.median / ours.median,
        cpu=_cpu(ours, peer),
        wanted=wanted,
        ours=ours,
        peer=peer,
        note=note,
    )


def share(name: str, ours: Laps, peer: Laps, *, wanted: float | None = None, note: str = "") -> Figure:
    """How many times the peer's time it took."""
    return Figure(
        name=name,
        value=ours.best / peer.best,
        median=ours.median / peer.median,
        cpu=_cpu(ours, peer),
        wanted=wanted,
        at_most=True,
        ours=ours,
        peer=peer,
        note=note,
    )


def seconds(name: str, laps: Laps, *, note: str = "") -> Figure:
    return Figure(name=name, value=laps.best, median=laps.median, unit="seconds", ours=laps, note=note)


def _cpu(ours: Laps, peer: Laps) -> float | None:
    return ours.best_cpu / peer.best_cpu if peer.best_cpu > 0 else None
