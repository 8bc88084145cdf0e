"""The plan: which jobs begin, by properties over clocks that stop, jump and go back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.schedule.plan import CLOCK_WRONG_MS, DueRun, JobTimes, KnownJob, due_run, next_start_ms, plan_runs
from maxbrod.schedule.slots import EverySlots, parse_cron

MINUTE = 60_000
HOUR = 60 * MINUTE
NOW = 1_795_000_000_000
"""In 2026; the change of Berlin's clock is some weeks before."""
HOURLY = JobTimes(name="hourly", slots=parse_cron("0 * * * *", "Europe/Berlin"))
DAILY = JobTimes(name="daily", slots=parse_cron("30 2 * * *", "Europe/Berlin"))
OFTEN = JobTimes(name="often", slots=EverySlots(15 * MINUTE), begins_at_once=True)
JOBS = [HOURLY, DAILY, OFTEN]


def walk(job: JobTimes, clock: Iterable[int], known: KnownJob, started_ms: int = 0) -> list[DueRun]:
    """The runs of a scheduler that looks at these times, and does at once what is due."""
    runs = []
    for now in clock:
        plan = plan_runs([job], {job.name: known}, [], now_ms=now, started_ms=started_ms, parallel=1)
        if plan.clock_wrong:
            known = replace(known, slot_ms=now, since_ms=now)
        for run in plan.begin:
            known = replace(known, slot_ms=run.slot_ms)
            runs.append(run)
    return runs


steps = st.lists(st.integers(-20 * HOUR, 20 * HOUR), min_size=1, max_size=60)
jobs = st.builds(
    lambda job, jitter: replace(job, jitter_ms=jitter), st.sampled_from(JOBS), st.sampled_from([0, 5 * MINUTE, HOUR])
)


@given(jobs, steps)
def test_no_slot_is_taken_twice_whatever_the_clock_does(job: JobTimes, changes: list[int]) -> None:
    """Within what a clock can be wrong: its furthest point is at most a day ahead."""
    clock: list[int] = []
    now = NOW
    for change in changes:
        now = max(now + change, max(clock, default=now) - CLOCK_WRONG_MS)
        clock.append(now)
    slots = [run.slot_ms for run in walk(job, clock, KnownJob(since_ms=NOW))]
    assert len(slots) == len(set(slots))
    assert slots == sorted(slots)


@given(jobs, st.integers(0, 400 * 24 * HOUR))
def test_slots_that_were_missed_are_caught_up_with_one_run(job: JobTimes, down: int) -> None:
    assert job.slots is not None
    taken = job.slots.newest(0, NOW)
    now = NOW + down
    runs = walk(job, [now, now, now + 1], KnownJob(since_ms=0, slot_ms=taken))
    newest = job.slots.newest(NOW, now)
    if newest is None or (job.jitter_ms and newest + job.jitter_ms > now):
        assert len(runs) <= 1
    else:
        assert [run.slot_ms for run in runs] == [newest]
        assert runs[0].missed == (job.slots.newest(NOW, newest - 1) is not None)


@given(jobs, st.integers(0, 14 * 24 * HOUR), st.integers(1, 30))
def test_every_slot_is_taken_at_its_time_if_the_scheduler_looks_often_enough(
    job: JobTimes, begin: int, hours: int
) -> None:
    assert job.slots is not None
    since, end = NOW - begin, NOW - begin + hours * HOUR
    runs = walk(job, range(since, end + 1, MINUTE // 2), KnownJob(since_ms=since, slot_ms=since))
    expected, slot = [], since
    while (found := job.slots.after(slot)) is not None and found <= end:
        expected.append(found)
        slot = found
    taken = [run.slot_ms for run in runs]
    if not job.jitter_ms:
        assert taken == expected
    # A slot whose jitter ends after that of the next one is caught up by it.
    assert set(taken) <= set(expected)


def test_a_new_job_of_a_cron_expression_waits_for_its_next_slot() -> None:
    assert walk(HOURLY, [NOW, NOW + 1], KnownJob(since_ms=NOW)) == []


def test_a_new_job_of_an_interval_begins_at_once_and_once() -> None:
    assert len(walk(OFTEN, [NOW, NOW + 1, NOW + MINUTE], KnownJob(since_ms=NOW))) == 1


def test_a_job_that_does_not_catch_up_leaves_out_what_came_while_no_scheduler_ran() -> None:
    job = replace(HOURLY, catch_up=False)
    known = KnownJob(since_ms=0, slot_ms=NOW - 10 * HOUR)
    assert walk(job, [NOW], known, started_ms=NOW) == []
    assert len(walk(job, range(NOW, NOW + HOUR, MINUTE), known, started_ms=NOW)) == 1


def test_a_slot_of_a_clock_that_was_years_ahead_does_not_silence_a_job() -> None:
    known = KnownJob(since_ms=0, slot_ms=NOW + 3 * 365 * 24 * HOUR)
    plan = plan_runs([HOURLY], {"hourly": known}, [], now_ms=NOW, started_ms=0, parallel=1)
    assert (plan.begin, plan.clock_wrong) == ((), ("hourly",))
    assert len(walk(HOURLY, range(NOW, NOW + 2 * HOUR, MINUTE), known)) == 2


def test_a_job_never_overlaps_with_itself() -> None:
    known = {"often": KnownJob(since_ms=0)}
    plan = plan_runs([OFTEN], known, ["often"], now_ms=NOW, started_ms=0, parallel=9)
    assert (plan.begin, list(plan.waiting)) == ((), ["often"])


def test_jobs_that_exclude_each_other_run_one_after_the_other() -> None:
    first = replace(OFTEN, name="first", excludes=frozenset({"fill /a"}))
    second = replace(OFTEN, name="second", excludes=frozenset({"fill /a", "change /a"}))
    other = replace(OFTEN, name="third", excludes=frozenset({"fill /b"}))
    known = dict.fromkeys(("first", "second", "third"), KnownJob(since_ms=0))
    plan = plan_runs([second, first, other], known, [], now_ms=NOW, started_ms=0, parallel=9)
    assert [run.job for run in plan.begin] == ["first", "third"]
    assert plan.waiting == {"second": "first is at work on the same archive"}
    again = plan_runs([second], known, ["third"], now_ms=NOW, started_ms=0, parallel=9)
    assert [run.job for run in again.begin] == ["second"]


def test_no_more_jobs_run_at_once_than_allowed_and_followers_do_not_count() -> None:
    follower = JobTimes(name="follower", slots=None)
    many = [replace(OFTEN, name=f"job{number}") for number in range(5)]
    known = {job.name: KnownJob(since_ms=0) for job in (*many, follower)}
    plan = plan_runs([*many, follower], known, ["follower", "job0"], now_ms=NOW, started_ms=0, parallel=3)
    assert [run.job for run in plan.begin] == ["job1", "job2"]
    assert {"job3", "job4"} <= plan.waiting.keys()


@given(jobs, st.integers(0, 20 * 24 * HOUR), st.booleans())
def test_the_next_start_that_is_listed_is_when_the_job_begins(job: JobTimes, ahead: int, taken: bool) -> None:
    assert job.slots is not None
    now = NOW + ahead
    known = KnownJob(since_ms=NOW - 48 * HOUR, slot_ms=job.slots.newest(0, now) if taken else None)
    start = next_start_ms(job, known, now_ms=now, started_ms=0)
    assert start is not None
    assert start >= now
    assert due_run(job, known, now_ms=start, started_ms=0) is not None
    if start > now:
        assert due_run(job, known, now_ms=start - 1, started_ms=0) is None
