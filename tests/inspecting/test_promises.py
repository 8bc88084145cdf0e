"""The judgement of an archive: nothing is OK that the facts do not prove."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maxbrod.archive.archive import Proof, ProofKind
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE
from maxbrod.inspect.options import StatusOptions
from maxbrod.inspect.promises import (
    ArchiveFacts,
    CompactionBacklog,
    FoundProblems,
    LastBackup,
    exit_code_of,
    judge,
    recovery_time_s,
)
from maxbrod.notices import PromiseState

NOW = 1_790_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR
TARGETS = StatusOptions(recovery_point=3600, recovery_time=7200, deep_check_every=30 * 86400, drill_every=7 * 86400)


def proof(kind: ProofKind, age_ms: int = HOUR, *, sound: bool = True, **details: object) -> Proof:
    return Proof(
        kind=kind,
        verdict="sound" if sound else "damaged",
        sound=sound,
        started_at_ms=NOW - age_ms - 1,
        finished_at_ms=NOW - age_ms,
        details=dict(details),
    )


GOOD = ArchiveFacts(
    now_ms=NOW,
    backup=LastBackup(run_id="run-1", finished_at_ms=NOW - 60_000, exit_code=EXIT_DONE),
    unfinished=(),
    recovery_point_ms=NOW - 120_000,
    missing=None,
    damaged=None,
    deep_check=proof(ProofKind.DEEP_CHECK, share=1.0),
    drill=proof(ProofKind.DRILL, restore_s=10.0, records=1_000, partitions=2, partitions_known=8),
    bytes=5 * 10**9,
    records=100_000,
    partitions=8,
    segments=20,
    grown=[(NOW - 2 * DAY, 10**9), (NOW - DAY, 3 * 10**9)],
    format_version="1.1",
    release_format="1.1",
    newest_run_ms=NOW - 60_000,
    layout="kafka",
)


def test_segments_that_wait_for_compaction_are_counted_and_many_of_them_are_a_warning() -> None:
    few = replace(GOOD, to_compact=CompactionBacklog(segments=2000, partitions=2))
    many = replace(GOOD, to_compact=CompactionBacklog(segments=2001, partitions=2))
    assert (states(few)["compaction"], states(many)["compaction"]) == (PromiseState.OK, PromiseState.WARN)
    text = {each.name: each.text for each in judge(few, TARGETS)}["compaction"]
    assert text == "2,000 segments of 2 partitions can be merged"
    assert "compaction" not in states(replace(GOOD, own_layout=False))


def test_an_erasure_that_left_objects_behind_is_a_warning() -> None:
    assert "erasures" not in states(GOOD)
    assert states(replace(GOOD, erasures=2))["erasures"] is PromiseState.OK
    assert states(replace(GOOD, erasures=2, not_erased=("run-1",)))["erasures"] is PromiseState.WARN


def states(facts: ArchiveFacts, targets: StatusOptions = TARGETS) -> dict[str, PromiseState]:
    return {each.name: each.state for each in judge(facts, targets)}


def test_an_archive_that_keeps_every_promise_is_ok_in_every_line() -> None:
    assert set(states(GOOD).values()) == {PromiseState.OK}
    assert exit_code_of(judge(GOOD, TARGETS), strict=True) == EXIT_DONE


@pytest.mark.parametrize(
    ("change", "name", "state", "code"),
    [
        ({"backup": None}, "backup", PromiseState.FAILED, EXIT_INCOMPLETE),
        (
            {"backup": LastBackup(run_id="r", finished_at_ms=NOW, exit_code=EXIT_FAILED)},
            "backup",
            PromiseState.FAILED,
            EXIT_INCOMPLETE,
        ),
        (
            {"backup": LastBackup(run_id="r", finished_at_ms=NOW, exit_code=None)},
            "backup",
            PromiseState.FAILED,
            EXIT_INCOMPLETE,
        ),
        ({"unfinished": ("run-2",)}, "backup", PromiseState.WARN, EXIT_DONE),
        ({"recovery_point_ms": None}, "recovery point", PromiseState.FAILED, EXIT_INCOMPLETE),
        ({"recovery_point_ms": NOW - 2 * HOUR}, "recovery point", PromiseState.WARN, EXIT_DONE),
        (
            {"recovery_point_ms": NOW - 2 * HOUR, "missing": FoundProblems(count=2, first="not archived")},
            "recovery point",
            PromiseState.FAILED,
            EXIT_INCOMPLETE,
        ),
        ({"missing": FoundProblems(count=1, first="hole")}, "offsets", PromiseState.FAILED, EXIT_INCOMPLETE),
        ({"partitions": 0}, "offsets", PromiseState.FAILED, EXIT_INCOMPLETE),
        ({"damaged": FoundProblems(count=1, first="missing")}, "objects", PromiseState.FAILED, EXIT_CORRUPT),
        ({"deep_check": None}, "deep check", PromiseState.WARN, EXIT_DONE),
        ({"deep_check": proof(ProofKind.DEEP_CHECK, 31 * DAY)}, "deep check", PromiseState.WARN, EXIT_DONE),
        ({"deep_check": proof(ProofKind.DEEP_CHECK, sound=False)}, "deep check", PromiseState.FAILED, EXIT_CORRUPT),
        ({"drill": None}, "drill", PromiseState.WARN, EXIT_DONE),
        ({"drill": proof(ProofKind.DRILL, 8 * DAY)}, "drill", PromiseState.WARN, EXIT_DONE),
        ({"drill": proof(ProofKind.DRILL, sound=False)}, "drill", PromiseState.FAILED, EXIT_INCOMPLETE),
        ({"drill": None}, "recovery time", PromiseState.WARN, EXIT_DONE),
        ({"records": 1_000_000}, "recovery time", PromiseState.FAILED, EXIT_INCOMPLETE),
        ({"format_version": "1.10"}, "format", PromiseState.WARN, EXIT_DONE),
        ({"newest_run_ms": NOW + HOUR}, "clock", PromiseState.WARN, EXIT_DONE),
    ],
)
def test_a_fact_that_breaks_a_promise_changes_its_line(
    change: dict[str, object], name: str, state: PromiseState, code: int
) -> None:
    promises = judge(replace(GOOD, **change), TARGETS)  # type: ignore[arg-type] # fields of several types
    assert {each.name: each.state for each in promises}[name] is state
    assert exit_code_of(promises, strict=False) == code
    assert exit_code_of(promises, strict=True) == (code or EXIT_INCOMPLETE)


@pytest.mark.parametrize(
    "change",
    [{"newest_run_ms": NOW + HOUR}, {"drill": proof(ProofKind.DRILL, -HOUR)}],
    ids=["a run", "a drill"],
)
def test_a_clock_that_is_behind_makes_nothing_look_young_enough(change: dict[str, object]) -> None:
    found = states(replace(GOOD, **change))  # type: ignore[arg-type] # fields of several types
    aged = {"backup", "recovery point", "deep check", "drill", "clock"}
    assert {name for name, state in found.items() if state is PromiseState.WARN} >= aged


def test_the_recovery_time_is_extrapolated_to_everything_and_never_below_what_was_measured() -> None:
    measured = proof(ProofKind.DRILL, restore_s=10.0, records=1_000)
    assert recovery_time_s(measured, 50_000) == 500
    assert recovery_time_s(measured, 10) == 10
    assert recovery_time_s(proof(ProofKind.DRILL, sound=False, restore_s=1.0, records=5), 10) is None
    assert recovery_time_s(proof(ProofKind.DRILL), 10) is None
    assert recovery_time_s(None, 10) is None


def test_a_sample_and_the_growth_and_the_price_are_said() -> None:
    facts = replace(GOOD, deep_check=proof(ProofKind.DEEP_CHECK, share=0.05))
    texts = {each.name: each.text for each in judge(facts, TARGETS, 0.02)}
    assert "of a sample of 5%" in texts["deep check"]
    assert texts["size"] == "5.0 GB in 20 segments, 2.0 GB a day added lately, about 0.10 a month"
    assert "2 of 8 partitions" in texts["drill"]


def test_an_archive_of_another_tool_is_not_blamed_for_runs_that_it_does_not_record() -> None:
    facts = replace(GOOD, own_layout=False, layout="kbak", backup=None, recovery_point_ms=None, newest_run_ms=None)
    assert {"backup", "recovery point"} & states(facts).keys() == set()
    assert set(states(facts).values()) == {PromiseState.OK}


@pytest.mark.parametrize(
    ("free", "state"),
    [
        (None, None),
        (0, PromiseState.FAILED),
        (63 << 20, PromiseState.FAILED),
        (10 * 10**9, PromiseState.WARN),
        (15 * 10**9, PromiseState.OK),
    ],
)
def test_a_full_disk_fails_and_one_that_is_full_within_a_week_warns(
    free: int | None, state: PromiseState | None
) -> None:
    # It has grown by 4 GB in two days.
    promises = judge(replace(GOOD, free_bytes=free), TARGETS)
    found = {each.name: each for each in promises}
    assert (found["room"].state if "room" in found else None) == state
    assert exit_code_of(promises, strict=False) == (EXIT_FAILED if state is PromiseState.FAILED else EXIT_DONE)


def test_room_is_enough_where_nothing_grows() -> None:
    found = {each.name: each for each in judge(replace(GOOD, free_bytes=100 << 20, grown=()), TARGETS)}
    assert found["room"].state is PromiseState.OK


def test_without_a_recovery_point_the_line_says_whether_backups_or_objects_are_to_blame() -> None:
    damaged = replace(GOOD, recovery_point_ms=None, damaged=FoundProblems(count=1, first="missing: a snapshot"))
    lines = {each.name: each for each in judge(damaged, TARGETS)}
    assert (lines["recovery point"].state, lines["recovery point"].hint) == (PromiseState.FAILED, "see 'maxbrod check'")
    lines = {each.name: each for each in judge(replace(damaged, damaged=None), TARGETS)}
    assert "maxbrod backup" in (lines["recovery point"].hint or "")


def test_what_nobody_has_recorded_is_not_said_to_have_never_been_done() -> None:
    """Restores and comparisons leave no proof: the archive may have been restored all the same."""
    told = {each.name: each.text for each in judge(replace(GOOD, drill=None, deep_check=None), TARGETS)}
    assert told["drill"] == "none is recorded: no drill has restored records and compared them"
    assert told["deep check"] == "none is recorded: no check has read all objects"
    assert not [text for text in told.values() if "nobody" in text]
