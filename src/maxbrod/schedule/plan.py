"""Decides which jobs begin now. Pure: jobs, what is known of each, and the time go in; what to begin comes out.

A slot is taken once. Slots that nobody took while the scheduler was down, or while the job was still running, are
caught up with one run. A clock that is put back begins nothing again: a job waits until the clock has passed the slot
that it took last. Only a slot so far ahead that the clock must have been wrong is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from maxbrod.schedule.slots import Slots, jitter_of

CLOCK_WRONG_MS: Final = 25 * 3_600_000
"""A slot that was taken further in the future than this was taken by a clock that was wrong. Time zones differ less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimes:
    """When a job is to run, and with what it must not overlap."""

    name: str
    slots: Slots | None
    """None: it follows, and runs all the time."""
    jitter_ms: int = 0
    catch_up: bool = True
    """False: a slot that came while no scheduler ran is left out."""
    begins_at_once: bool = False
    """True for intervals: a new job takes the slot that has begun. One of a cron expression waits for the next."""
    excludes: frozenset[str] = frozenset()
    """What only one job at a time may do, such as filling one archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """What is known of a job besides its times."""

    since_ms: int
    """When the job was first seen: earlier slots are none of its."""
    slot_ms: int | None = None
    """The slot that it took last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRun:
    job: str
    slot_ms: int
    missed: bool = False
    """True if a slot before this one was not taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePlan:
    begin: tuple[DueRun, ...] = ()
    waiting: Mapping[str, str]
    """Jobs that are due and cannot begin: why."""
    clock_wrong: tuple[str, ...] = ()
    """Jobs whose last slot lies so far in the future that the time is to be put in its place."""


def plan_runs(
    jobs: Iterable[JobTimes],
    known: Mapping[str, KnownJob],
    running: Collection[str],
    *,
    now_ms: int,
    started_ms: int,
    parallel: int,
) -> DuePlan:
    """Return the runs to begin now, the longest due first.

    Args:
        jobs: all jobs.
        known: what is known of each.
        running: the names of those that run now, including those that follow.
        now_ms: the time.
        started_ms: when this scheduler began to look after the archive.
        parallel: how many jobs with times may run at once. Those that follow do not count.
    """
    jobs = list(jobs)
    by_name = {job.name: job for job in jobs}
    busy = {what: name for name in running if name in by_name for what in by_name[name].excludes}
    free = parallel - sum(name in by_name and by_name[name].slots is not None for name in running)
    begin: list[DueRun] = []
    waiting: dict[str, str] = {}
    wrong = tuple(job.name for job in jobs if _is_clock_wrong(known[job.name], now_ms))
    found = (due_run(job, known[job.name], now_ms=now_ms, started_ms=started_ms) for job in jobs)
    for run in sorted((run for run in found if run is not None), key=lambda run: (run.slot_ms, run.job)):
        job = by_name[run.job]
        if run.job in running:
            waiting[run.job] = "its last run has not ended"
        elif met := next((busy[what] for what in sorted(job.excludes) if what in busy), None):
            waiting[run.job] = f"{met} is at work on the same archive"
        elif free <= 0:
            waiting[run.job] = f"{parallel} jobs are running"
        else:
            begin.append(run)
            busy |= dict.fromkeys(job.excludes, run.job)
            free -= 1
    return DuePlan(begin=tuple(begin), waiting=waiting, clock_wrong=wrong)


def due_run(job: JobTimes, known: KnownJob, *, now_ms: int, started_ms: int) -> DueRun | None:
    """Return the run of the newest slot that is due and was not taken; None: there is none."""
    if job.slots is None:
        return None
    floor = _floor(job, known, now_ms)
    if not job.catch_up:
        floor = max(floor, started_ms - 1)
    until = now_ms
    while (slot := job.slots.newest(floor, until)) is not None:
        if slot + jitter_of(job.name, slot, job.jitter_ms) <= now_ms:
            missed = job.slots.newest(floor, slot - 1) is not None
            return DueRun(job=job.name, slot_ms=slot, missed=missed)
        until = slot - 1
    return None


def next_start_ms(job: JobTimes, known: KnownJob, *, now_ms: int, started_ms: int) -> int | None:
    """Return when the job begins next if nothing is in its way; now if it is due; None: never, or it follows."""
    if job.slots is None:
        return None
    if due_run(job, known, now_ms=now_ms, started_ms=started_ms) is not None:
        return now_ms
    floor = _floor(job, known, now_ms)
    # A slot that has come may still wait for its jitter, and a later slot may have a shorter one.
    starts = []
    slot = job.slots.after(max(floor, now_ms - job.jitter_ms - 1))
    while slot is not None and slot <= now_ms + job.jitter_ms:
        starts.append(slot + jitter_of(job.name, slot, job.jitter_ms))
        slot = job.slots.after(slot)
    if slot is not None and not starts:
        starts.append(slot + jitter_of(job.name, slot, job.jitter_ms))
    return min((start for start in starts if start > now_ms), default=None)


def _floor(job: JobTimes, known: KnownJob, now_ms: int) -> int:
    """Return the time whose slot is taken, and all before it."""
    if _is_clock_wrong(known, now_ms):
        # It is not known which slots were taken by the right clock: none is begun that has come already.
        return now_ms
    if known.slot_ms is not None:
        return known.slot_ms
    before = job.slots.newest(-1, known.since_ms) if job.slots is not None and job.begins_at_once else None
    return known.since_ms if before is None else before - 1


def _is_clock_wrong(known: KnownJob, now_ms: int) -> bool:
    return max(known.since_ms, known.slot_ms or 0) > now_ms + CLOCK_WRONG_MS
