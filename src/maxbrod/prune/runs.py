"""The runs that a policy keeps: thinning, defined as restic and borg define it. Pure.

- Rules look at complete runs, newest first, in the order of their commits. Each rule counts for itself.
- `--keep-daily 7` keeps the newest run of each of the last 7 days that have a run: periods without runs do not count.
  The same for hours, ISO weeks, months and years. Times are UTC.
- If there are fewer periods than that, the oldest run stays too, so that the rule reaches as far as it can.
- `--keep-within 30d` is counted from the newest run, not from now: where backups have stopped, nothing goes.
- A run that failed or was incomplete goes if a later one is complete and no rule by count or time spans it.
- Whatever the rules say, the newest complete run, the newest snapshot and held runs stay.
- Runs without a snapshot (prune, hold, compact) are no points in time. The same rules thin them separately.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

PERIODS: Final[Mapping[str, Callable[[datetime], tuple[int, ...]]]] = {
    "hourly": lambda at: (at.year, at.month, at.day, at.hour),
    "daily": lambda at: (at.year, at.month, at.day),
    "weekly": lambda at: at.isocalendar()[:2],
    "monthly": lambda at: (at.year, at.month),
    "yearly": lambda at: (at.year,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    last: int | None = None
    within_s: float | None = None
    hourly: int | None = None
    daily: int | None = None
    weekly: int | None = None
    monthly: int | None = None
    yearly: int | None = None

    @property
    def given(self) -> bool:
        return any(value is not None for value in (self.last, self.within_s, *map(self.count_of, PERIODS)))

    def count_of(self, period: str) -> int | None:
        count: int | None = getattr(self, period)
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToJudge:
    """A run, as far as the policy needs it."""

    run_id: str
    at_ms: int
    point: bool
    """True if it recorded a snapshot, so that it is a point in time."""
    complete: bool = True
    needed: str | None = None
    """The reason why it must stay whatever the policy says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDecision:
    run_id: str
    at_ms: int
    keep: bool
    reasons: tuple[str, ...]


def thin_runs(runs: Sequence[RunToJudge], policy: RunPolicy) -> list[RunDecision]:
    """A decision for each run, in the same order. `runs` are in the order of commits, oldest first."""
    if not policy.given:
        return [_kept(run, ("no rule about runs was given",)) for run in runs]
    reasons: dict[str, list[str]] = {run.run_id: [run.needed] if run.needed else [] for run in runs}
    points = [run for run in runs if run.point]
    for group in (points, [run for run in runs if not run.point]):
        complete = [run for run in group if run.complete] or group
        for run_id, reason in _by_rules(complete[::-1], policy):
            reasons[run_id].append(reason)
        for recent in _within(group[::-1], policy):
            if not recent.complete:
                reasons[recent.run_id].append("within")
    _always(points, reasons)
    return [_kept(run, tuple(reasons[run.run_id])) if reasons[run.run_id] else _gone(run, points) for run in runs]


def _always(points: Sequence[RunToJudge], reasons: dict[str, list[str]]) -> None:
    if points:
        reasons[points[-1].run_id].append("newest snapshot")
    newest = next((point for point in reversed(points) if point.complete), None)
    if newest is not None:
        reasons[newest.run_id].append("newest complete run")
        for point in points[points.index(newest) + 1 :]:
            reasons[point.run_id].append("later than the newest complete run")


def _by_rules(newest_first: Sequence[RunToJudge], policy: RunPolicy) -> list[tuple[str, str]]:
    found = [(run.run_id, f"last {number}") for number, run in enumerate(newest_first[: policy.last or 0], 1)]
    found += [(run.run_id, "within") for run in _within(newest_first, policy)]
    for name, period in PERIODS.items():
        count = policy.count_of(name)
        if count:
            found += _of_periods(newest_first, name, period, count)
    return found


def _within(newest_first: Sequence[RunToJudge], policy: RunPolicy) -> list[RunToJudge]:
    if policy.within_s is None or not newest_first:
        return []
    # Not the latest time: an older run whose clock was ahead would take all others with it.
    newest = newest_first[0].at_ms
    return [run for run in newest_first if run.at_ms > newest - policy.within_s * 1000]


def _of_periods(
    newest_first: Sequence[RunToJudge], name: str, period: Callable[[datetime], tuple[int, ...]], count: int
) -> list[tuple[str, str]]:
    # A set, because a clock may have stepped back: a period that is met again does not count again.
    seen: set[tuple[int, ...]] = set()
    found: list[tuple[str, str]] = []
    for run in newest_first:
        when = period(datetime.fromtimestamp(run.at_ms / 1000, UTC))
        if when not in seen:
            seen.add(when)
            found.append((run.run_id, f"{name} {len(seen)}"))
        if len(seen) == count:
            return found
    oldest = newest_first[-1].run_id if newest_first else None
    if oldest is not None and oldest not in {run_id for run_id, _ in found}:
        found.append((oldest, f"oldest ({name})"))
    return found


def _kept(run: RunToJudge, reasons: Collection[str]) -> RunDecision:
    return RunDecision(run_id=run.run_id, at_ms=run.at_ms, keep=True, reasons=tuple(dict.fromkeys(reasons)))


def _gone(run: RunToJudge, points: Sequence[RunToJudge]) -> RunDecision:
    later = not run.complete and any(point.complete for point in points)
    why = "incomplete, and a later run is complete" if later else "no rule keeps it"
    return RunDecision(run_id=run.run_id, at_ms=run.at_ms, keep=False, reasons=(why,))
