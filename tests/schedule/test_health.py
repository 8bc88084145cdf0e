"""What a scheduler says about itself: a job that hangs, a job that fails, a lease that is not its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from maxbrod.config import Config
from maxbrod.schedule.health import ScheduleHealth
from maxbrod.schedule.jobs import read_jobs
from maxbrod.schedule.runs import JobRun
from maxbrod.schedule.state import JobOutcome, JobState

BAD = JobOutcome(slot_ms=1, started_ms=2, finished_ms=3, exit_code=3, verdict="incomplete")
STATE = JobState(verb="backup", since_ms=1)


def health_of(*runs: JobRun, **jobs: JobState) -> ScheduleHealth:
    health = ScheduleHealth(stall_s=100)
    health.runs, health.jobs, health.problems = runs, jobs, ()
    return health


def run_of(settings: dict[str, Any], *, idle_s: float) -> JobRun:
    (job,) = read_jobs(Config.model_validate({"archive": "/a", "jobs": {"j": settings}}))
    run = JobRun(job, slot_ms=None, on_end=lambda *_: None)
    run.moved_at -= idle_s
    return run


def test_a_job_that_does_not_move_makes_the_scheduler_not_alive() -> None:
    check = {"verb": "check", "every": "1h"}
    assert health_of(run_of(check, idle_s=90)).live()[0]
    alive, said = health_of(run_of(check, idle_s=110)).live()
    assert not alive
    assert "the job j: nothing has moved for 110 s" in said["reason"]
    assert not health_of(run_of(check, idle_s=110)).ready()[0]


def test_a_follower_may_rest_between_its_intervals() -> None:
    follower = {"verb": "backup", "options": {"follow": True, "every": "10m"}}
    assert health_of(run_of(follower, idle_s=650)).live()[0]
    assert not health_of(run_of(follower, idle_s=710)).live()[0]


def test_readiness_has_all_reasons() -> None:
    assert health_of(a=STATE).ready() == (True, {"ready": True, "running": []})
    health = health_of(a=STATE.ended(BAD), b=STATE.ended(BAD))
    health.problems = ("the configuration is wrong",)
    ready, said = health.ready()
    assert not ready
    assert said["reasons"] == [
        "the configuration is wrong",
        "the job a ended with 3 (incomplete)",
        "the job b ended with 3 (incomplete)",
    ]


def test_what_was_stopped_is_not_held_against_a_job() -> None:
    assert health_of(a=STATE.ended(replace(BAD, stopped=True))).ready()[0]


def test_before_the_lease_was_looked_at_nothing_is_ready() -> None:
    assert not ScheduleHealth().ready()[0]
    assert ScheduleHealth().live()[0]
