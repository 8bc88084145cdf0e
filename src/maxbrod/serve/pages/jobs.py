"""The jobs of the scheduler that looks after an archive, as its state in the archive tells. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.serve.pages.charts import Rect
from maxbrod.serve.pages.frame import ending_state
from maxbrod.text import human_age, human_time

if TYPE_CHECKING:
    from maxbrod.schedule.state import JobOutcome, JobState, ScheduleState

_BAR_WIDTH: Final = 8.0
_HEIGHT: Final = 22.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    name: str
    verb: str
    state: str
    word: str
    when: str
    running_since_ms: int | None
    finished_ms: int | None
    last_success_ms: int | None
    next_ms: int | None
    failures: int
    error: str | None
    hint: str | None
    bars: tuple[Rect, ...]
    bars_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsView:
    host: str
    instance: str | None
    at_ms: int
    silent: bool
    """True if the scheduler has ended, or has not been heard of for long: then nothing runs by itself."""
    lines: tuple[JobLine, ...]


def jobs_view(state: ScheduleState, now_ms: int) -> JobsView:
    """Jobs that fail first, then by name."""
    lines = [_line(name, job, silent=state.is_silent(now_ms)) for name, job in state.jobs.items()]
    order = {"bad": 0, "warn": 1, "none": 2, "good": 3}
    return JobsView(
        host=state.host,
        instance=state.instance,
        at_ms=state.at_ms,
        silent=state.is_silent(now_ms),
        lines=tuple(sorted(lines, key=lambda line: (order[line.state], line.name))),
    )


def _line(name: str, job: JobState, *, silent: bool) -> JobLine:
    last = job.last
    state, word = ("none", "has not run yet") if last is None else ending_state(last.exit_code)
    if last is not None and last.stopped:
        state, word = "none", "stopped"
    good = sum(outcome.good for outcome in job.recent)
    return JobLine(
        name=name,
        verb=job.verb,
        state=state,
        word=word,
        when=job.when,
        # What a silent scheduler says is running may be long over.
        running_since_ms=None if silent else job.running_since_ms,
        finished_ms=None if last is None else last.finished_ms,
        last_success_ms=job.last_success_ms,
        next_ms=None if silent else job.next_ms,
        failures=job.failures,
        error=None if last is None else last.error,
        hint=None if last is None else last.hint,
        bars=tuple(_bar(place, outcome) for place, outcome in enumerate(job.recent)),
        bars_text=f"{good} of the last {len(job.recent)} ended well" if job.recent else "none yet",
    )


def _bar(place: int, outcome: JobOutcome) -> Rect:
    state, word = ending_state(outcome.exit_code)
    took = human_age(outcome.finished_ms - outcome.started_ms)
    return Rect(
        x=place * _BAR_WIDTH,
        width=_BAR_WIDTH - 2,
        # As on the wall: what did not end well hangs from the top.
        y=8.0 if state == "good" else 0.0,
        height=_HEIGHT - 8.0,
        cover=state,
        title=f"{human_time(outcome.finished_ms)}: {word}, took {took}",
    )
