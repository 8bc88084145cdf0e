"""Whether a scheduler lives and its jobs do what they should: `/healthz`, `/readyz`, and metrics of each job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from maxbrod.cli.health import STALL_S, Health

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from maxbrod.schedule.runs import JobRun
    from maxbrod.schedule.state import JobState

_LOOP_S: Final = 120.0
"""Longer than the loop ever waits: for a store that does not answer it waits in another thread's place, once."""


class ScheduleHealth(Health):
    """Thread-safe: the loop replaces what others read as a whole."""

    def __init__(self, *, loop_s: float = _LOOP_S, stall_s: float = STALL_S) -> None:
        super().__init__(stall_s=loop_s)
        self._job_stall_s = stall_s
        self.runs: tuple[JobRun, ...] = ()
        self.jobs: Mapping[str, JobState] = {}
        """The states of enabled jobs."""
        self.problems: tuple[str, ...] = ("the archive's lease was not looked at yet",)
        """What is wrong with the scheduler itself: why it runs no jobs, or not as the file says."""

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Fails if the loop stands still, or a job does not move: starting again is what helps."""
        alive, said = super().live()
        if not alive:
            return alive, said
        now = time.monotonic()
        for run in self.runs:
            # Between two intervals of a job that follows nothing moves.
            pause_s = getattr(run.job.call().options, "every", 0) if run.job.follows else 0
            idle_s = now - run.moved_at
            if idle_s >= self._job_stall_s + pause_s:
                reason = f"the job {run.job.name}: nothing has moved for {idle_s:.0f} s"
                return False, {**said, "alive": False, "reason": reason}
        return True, said

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Fails if the scheduler does not schedule, or if the last run of a job was not good."""
        alive, said = self.live()
        reasons = list(self.problems) if alive else [str(said.get("reason"))]
        for name, state in self.jobs.items():
            if state.failures and state.last is not None:
                reasons.append(f"the job {name} ended with {state.last.exit_code} ({state.last.verdict})")
        document: dict[str, Any] = {"ready": not reasons, "running": [run.job.name for run in self.runs]}
        return not reasons, document if not reasons else {**document, "reason": reasons[0], "reasons": reasons}


class JobsCollector:
    """The metrics of all jobs, made when somebody asks for them."""

    def __init__(self, read: Callable[[], tuple[Mapping[str, JobState], bool, tuple[int, int, int]]]) -> None:
        """`read` returns the states, whether the lease is held, and counts: delivered, not delivered, Spark starts."""
        self._read = read

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - not for `--help`

        states, leads, (delivered, undelivered, sessions) = self._read()
        for name, (text, value) in _FIGURES.items():
            family = GaugeMetricFamily(f"maxbrod_job_{name}", text, labels=["name", "verb"])
            for job, state in states.items():
                found = value(state)
                if found is not None:
                    family.add_metric([job, state.verb], found)
            yield family
        yield GaugeMetricFamily("maxbrod_scheduler_leads", "1 if this scheduler looks after the archive.", value=leads)
        messages = CounterMetricFamily("maxbrod_messages", "Messages and pings, by outcome.", labels=["outcome"])
        messages.add_metric(["delivered"], delivered)
        messages.add_metric(["failed"], undelivered)
        yield messages
        yield CounterMetricFamily("maxbrod_spark_sessions", "Spark sessions that were started.", value=sessions)


_FIGURES: Final[dict[str, tuple[str, Callable[[JobState], float | None]]]] = {
    "last_run_timestamp_seconds": (
        "When the last run ended, however it ended.",
        lambda state: None if state.last is None else state.last.finished_ms / 1000,
    ),
    "last_success_timestamp_seconds": (
        "When the last complete run ended; 0 if none is known.",
        lambda state: (state.last_success_ms or 0) / 1000,
    ),
    "last_exit_code": (
        "The exit code of the last run.",
        lambda state: None if state.last is None else float(state.last.exit_code),
    ),
    "last_duration_seconds": (
        "How long the last run took.",
        lambda state: None if state.last is None else (state.last.finished_ms - state.last.started_ms) / 1000,
    ),
    "running": ("1 while a run is in progress.", lambda state: float(state.running_since_ms is not None)),
    "failures": ("Failures in a row.", lambda state: float(state.failures)),
    "next_start_timestamp_seconds": (
        "When the job begins next.",
        lambda state: None if state.next_ms is None else state.next_ms / 1000,
    ),
}


def registry_of(collector: JobsCollector) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - not for `--help`

    registry = CollectorRegistry()
    registry.register(collector)
    return registry
