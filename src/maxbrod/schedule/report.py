"""What `maxbrod run` reports: the jobs with their times, and the end of each run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from maxbrod.errors import EXIT_DONE
from maxbrod.schedule.plan import KnownJob, next_start_ms
from maxbrod.work.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.schedule.jobs import ScheduledJob
    from maxbrod.schedule.state import JobOutcome, ScheduleState


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A job with its times. `next_ms` is None for a job that follows, that never comes, or that is not enabled."""

    name: str
    verb: str
    when: str
    enabled: bool
    follows: bool
    archive: str | None
    next_ms: int | None
    running_since_ms: int | None
    slot_ms: int | None
    last_started_ms: int | None
    last_finished_ms: int | None
    last_exit_code: int | None
    last_verdict: str | None
    last_error: str | None
    last_success_ms: int | None
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReport(Report):
    """The jobs, and the scheduler that looks after the archive."""

    archive: str
    scheduler: str | None
    """The scheduler that holds the lease; None: there is none."""
    scheduler_seen_ms: int | None
    jobs: tuple[ListedJob, ...]

    @property
    def exit_code(self) -> int:
        return EXIT_DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRunReport(Report):
    """The end of one run of a job."""

    job: str
    verb: str
    slot_ms: int | None
    started_ms: int
    finished_ms: int
    verdict: str
    error: str | None
    hint: str | None
    stopped: bool
    code: int

    published: ClassVar[tuple[str, ...]] = ("exit_code",)

    @property
    def exit_code(self) -> int:
        return self.code

    def as_dict(self) -> dict[str, Any]:
        document = Report.as_dict(self)
        del document["code"]  # it is there as `exit_code`
        return document


def run_report(job: ScheduledJob, outcome: JobOutcome) -> JobRunReport:
    return JobRunReport(
        job=job.name,
        verb=job.verb,
        slot_ms=outcome.slot_ms,
        started_ms=outcome.started_ms,
        finished_ms=outcome.finished_ms,
        verdict=outcome.verdict,
        error=outcome.error,
        hint=outcome.hint,
        stopped=outcome.stopped,
        code=outcome.exit_code,
    )


def list_jobs(
    archive: str, jobs: Iterable[ScheduledJob], state: ScheduleState | None, *, now_ms: int
) -> ScheduleReport:
    """Return the report of all jobs. Pure."""
    silent = state is None or state.is_silent(now_ms)
    listed = []
    for job in jobs:
        known = None if state is None else state.jobs.get(job.name)
        # A job that nobody has scheduled yet is new when a scheduler first sees it: as if that were now.
        times = KnownJob(since_ms=now_ms) if known is None else KnownJob(since_ms=known.since_ms, slot_ms=known.slot_ms)
        last = None if known is None else known.last
        next_ms = next_start_ms(job.times, times, now_ms=now_ms, started_ms=now_ms) if job.enabled else None
        listed.append(
            ListedJob(
                name=job.name,
                verb=job.verb,
                when=job.when,
                enabled=job.enabled,
                follows=job.follows,
                archive=job.archive,
                next_ms=next_ms,
                running_since_ms=None if known is None or silent else known.running_since_ms,
                slot_ms=times.slot_ms,
                last_started_ms=None if last is None else last.started_ms,
                last_finished_ms=None if last is None else last.finished_ms,
                last_exit_code=None if last is None else last.exit_code,
                last_verdict=None if last is None else last.verdict,
                last_error=None if last is None else last.error,
                last_success_ms=None if known is None else known.last_success_ms,
                failures=0 if known is None else known.failures,
            )
        )
    return ScheduleReport(
        archive=archive,
        scheduler=None if silent or state is None else state.instance,
        scheduler_seen_ms=None if state is None else state.at_ms,
        jobs=tuple(listed),
    )
