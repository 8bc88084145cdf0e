"""Thinning of runs: the rules of restic and borg, and what stays whatever they say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.prune.runs import PERIODS, RunPolicy, RunToJudge, thin_runs

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def run(name: str, at: datetime, **changes: object) -> RunToJudge:
    return RunToJudge(**{"run_id": name, "at_ms": ms(at), "point": True, **changes})  # type: ignore[arg-type]


def daily(count: int) -> list[RunToJudge]:
    return [run(f"day-{number}", START + timedelta(days=number)) for number in range(count)]


def kept(runs: list[RunToJudge], policy: RunPolicy) -> list[str]:
    return [each.run_id for each in thin_runs(runs, policy) if each.keep]


def test_without_a_rule_every_run_stays() -> None:
    assert len(kept(daily(5), RunPolicy())) == 5


def test_the_last_runs_stay_by_commit_not_by_clock() -> None:
    runs = [run("a", START), run("stepped-back", START - timedelta(days=9))]
    assert kept(runs, RunPolicy(last=1)) == ["stepped-back"]


def test_a_run_whose_clock_was_ahead_takes_no_other_run_with_it() -> None:
    runs = [run("ahead", START + timedelta(days=400)), run("a", START), run("b", START + timedelta(days=1))]
    assert kept(runs, RunPolicy(within_s=7 * 86_400)) == ["ahead", "a", "b"]


def test_periods_without_runs_do_not_count() -> None:
    runs = [
        run("old", START),
        run("older-sibling", START + timedelta(days=300)),
        run("new", START + timedelta(days=300, hours=3)),
    ]
    assert kept(runs, RunPolicy(daily=2)) == ["old", "new"]


def test_the_newest_run_of_a_period_stays() -> None:
    runs = [run(f"h{hour}", START.replace(hour=hour)) for hour in range(6)]
    assert kept(runs, RunPolicy(daily=1)) == ["h5"]


def test_weeks_are_iso_weeks() -> None:
    # The 28th of December 2026 is a Monday, the 3rd of January 2027 the Sunday of the same week 53.
    runs = [run("monday", datetime(2026, 12, 28, tzinfo=UTC)), run("sunday", datetime(2027, 1, 3, tzinfo=UTC))]
    runs.append(run("next", datetime(2027, 1, 4, tzinfo=UTC)))
    assert kept(runs, RunPolicy(weekly=2)) == ["sunday", "next"]


def test_the_run_that_is_needed_to_reach_the_limit_stays() -> None:
    runs = [run(f"h{hour}", START.replace(hour=hour)) for hour in range(6)]
    decisions = thin_runs(runs, RunPolicy(daily=3))
    assert [(each.run_id, each.reasons) for each in decisions if each.keep] == [
        ("h0", ("oldest (daily)",)),
        ("h5", ("daily 1", "newest snapshot", "newest complete run")),
    ]


def test_within_counts_from_the_newest_run() -> None:
    assert kept(daily(10), RunPolicy(within_s=2.5 * 86400)) == ["day-7", "day-8", "day-9"]


def test_rules_count_for_themselves_and_all_reasons_are_told() -> None:
    decisions = {each.run_id: each for each in thin_runs(daily(40), RunPolicy(last=2, monthly=2))}
    assert decisions["day-39"].reasons[:2] == ("last 1", "monthly 1")
    assert [name for name, each in decisions.items() if each.keep] == ["day-30", "day-38", "day-39"]
    assert decisions["day-3"].reasons == ("no rule keeps it",)


def test_the_newest_complete_run_stays_and_what_is_later() -> None:
    runs = [*daily(3), run("failed", START + timedelta(days=3), complete=False)]
    assert kept(runs, RunPolicy(last=1)) == ["day-2", "failed"]


def test_an_incomplete_run_goes_if_a_later_one_is_complete() -> None:
    runs = [run("failed", START, complete=False), *daily(3)]
    first = thin_runs(runs, RunPolicy(daily=99))[0]
    assert (first.keep, first.reasons) == (False, ("incomplete, and a later run is complete",))
    assert "failed" in kept(runs, RunPolicy(within_s=86400 * 30))


def test_a_needed_run_stays() -> None:
    runs = [run("held", START, needed="held"), *daily(5)]
    assert kept(runs, RunPolicy(last=1)) == ["held", "day-4"]


def test_runs_without_a_snapshot_are_thinned_among_themselves() -> None:
    runs = [run("point", START), *(run(f"prune-{n}", START + timedelta(days=n), point=False) for n in range(4))]
    assert kept(runs, RunPolicy(last=2)) == ["point", "prune-2", "prune-3"]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.booleans()), min_size=1, max_size=40),
    st.builds(
        RunPolicy, last=st.none() | st.integers(1, 5), daily=st.none() | st.integers(1, 9), weekly=st.integers(1, 9)
    ),
)
def test_a_complete_run_always_stays_and_thinning_twice_is_thinning_once(
    given_runs: list[tuple[int, bool]], policy: RunPolicy
) -> None:
    runs = [
        run(str(number), START + timedelta(minutes=minutes), complete=complete)
        for number, (minutes, complete) in enumerate(given_runs)
    ]
    names = kept(runs, policy)
    assert str(len(runs) - 1) in names
    if any(each.complete for each in runs):
        assert any(each.complete for each in runs if each.run_id in names)
    again = [each for each in runs if each.run_id in names]
    assert kept(again, policy) == names
    for name in PERIODS:
        assert policy.count_of(name) is None or policy.count_of(name)
