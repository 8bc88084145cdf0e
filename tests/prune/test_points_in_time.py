"""What a chosen point in the past had, and was pruned since, is missing; what the present gave up is not."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.runs import list_runs
from maxbrod.archive.undo import undo_prune
from maxbrod.catalog.rows import Gap, Run, encode_rows
from maxbrod.cli.main import run as main
from maxbrod.compare.archived import measure_topics
from maxbrod.config import Config
from maxbrod.errors import EXIT_INCOMPLETE, UsageError
from maxbrod.model import GapReason, PartitionId, TopicPartition, now_ms
from maxbrod.prune.plan import SegmentPolicy
from maxbrod.prune.run import PruneRequest, prune_archive
from maxbrod.prune.runs import RunPolicy
from maxbrod.query.options import ScopeOptions
from maxbrod.query.scope import select
from maxbrod.restore.archived import look_at_archive
from maxbrod.restore.cold.run import ColdRestore
from maxbrod.restore.plan.obstacles import ObstacleKind, refusal
from maxbrod.restore.plan.plan import RestorePlan, plan_restore
from maxbrod.restore.plan.request import OffsetRange, RestoreRequest
from maxbrod.restore.report import report_of
from maxbrod.work.work import Work
from support.catalog_rows import gap, run
from support.log_directories import put_target
from support.prunable_archives import DAY_MS, commit, data, gaps, hole, part, segments, years
from support.restore_plans import target

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.archive.archive import Archive
    from support.archives import Place


def prune(archive: Archive, *, older_days: float) -> None:
    policy = SegmentPolicy(before_ms=now_ms() - round(older_days * DAY_MS))
    prune_archive(archive, PruneRequest(segments=policy, runs=RunPolicy()), apply=True)


def plan(archive: Archive, **wanted: Any) -> RestorePlan:
    request = RestoreRequest(topics=("orders",), **wanted)
    archived = look_at_archive(archive, request)
    return plan_restore(
        request,
        restore_id="r",
        archive=archived.source,
        chosen=archived.chosen,
        rows=archived.rows,
        ends=archived.ends,
        snapshot=archived.moment.cluster,
        target=target(),
        now_ms=now_ms(),
        revisions=archived.revisions,
        had=archived.had,
    )


def missed(archive: Archive, **wanted: Any) -> list[str]:
    return [str(each) for each in plan(archive, **wanted).obstacles if each.kind is ObstacleKind.PRUNED]


def days_ago(days: float) -> int:
    return now_ms() - round(days * DAY_MS)


def test_a_restore_as_of_a_run_whose_records_were_pruned_since_is_refused(place: Place) -> None:
    archive = years(place)
    prune(archive, older_days=5)
    archive = place.open()
    assert missed(archive, as_of="run-2") == [
        "orders-0: records that are asked for were pruned since, among offsets 0 to 30",
        "orders-1: records that are asked for were pruned since, among offsets 0 to 15",
    ]
    refused = refusal(plan(archive, as_of="run-2").obstacles)
    assert refused is not None
    assert refused.exit_code == EXIT_INCOMPLETE
    assert "prune --undo" in (refused.hint or "")
    assert missed(archive, as_of="latest") == [
        "orders-0: records that are asked for were pruned since, among offsets 0 to 46",
        "orders-1: records that are asked for were pruned since, among offsets 0 to 25",
    ]


def test_accepted_gaps_of_pruned_records_make_a_restore_incomplete(local_place: Place) -> None:
    archive = years(local_place)
    prune(archive, older_days=5)
    planned = plan(local_place.open(), as_of="run-2", accept_gaps=True)
    assert refusal(planned.obstacles) is None
    report = report_of(replace(planned, topics=()), [], started_at_ms=0, resumed=False)
    assert (len(report.accepted_gaps), report.complete) == (2, False)


def test_a_restore_of_the_present_does_not_miss_what_was_pruned_on_purpose(local_place: Place) -> None:
    archive = years(local_place)
    prune(archive, older_days=5)
    archive = local_place.open()
    assert missed(archive) == []
    assert missed(archive, since_ms=days_ago(9)) == []
    assert refusal(plan(archive).obstacles) is None
    # Of a point after the prune, nothing is missing either.
    assert missed(archive, until_ms=now_ms() + 60_000) == []
    ends = {part("orders"): 110, part("orders", 1): 50, part("users"): 4}
    commit(archive, "run-a", [data("orders", 100, 110, age_days=0)], ends)
    assert missed(local_place.open(), as_of="run-a") == []


def test_a_restore_until_a_time_before_the_prune_misses_what_it_took(local_place: Place) -> None:
    archive = years(local_place)
    prune(archive, older_days=5)
    archive = local_place.open()
    assert len(missed(archive, until_ms=days_ago(6))) == 2
    # Nothing that was pruned is as new as this.
    assert missed(archive, since_ms=days_ago(4), until_ms=days_ago(1)) == []
    assert len(missed(archive, since_ms=days_ago(7), until_ms=days_ago(1))) == 2
    assert missed(archive, since_ms=days_ago(4), as_of="run-9") == []


def test_offsets_that_a_request_names_are_missed_if_they_were_pruned(local_place: Place) -> None:
    archive = years(local_place)
    prune(archive, older_days=5)
    where = TopicPartition(topic="orders", partition=0)
    named = missed(local_place.open(), ranges=(OffsetRange(where=where, first=10, end=60),))
    assert named == ["orders-0: records that are asked for were pruned since, among offsets 10 to 46"]
    assert missed(local_place.open(), ranges=(OffsetRange(where=where, first=50, end=60),)) == []
    assert missed(local_place.open(), ranges=(OffsetRange(where=where),)) == []


def test_a_comparison_and_a_drill_as_of_a_run_know_what_was_pruned_since(local_place: Place) -> None:
    archive = years(local_place)
    prune(archive, older_days=5)
    archive = local_place.open()

    def troubles(**wanted: Any) -> list[GapReason | None]:
        measured = measure_topics(archive, RestoreRequest(topics=("orders",), partitions=frozenset({0}), **wanted))
        return [each.reason for sources, _ in measured for source in sources for each in source.troubles]

    assert troubles(as_of="run-2") == [GapReason.PRUNED]
    assert troubles() == []


def test_a_restore_onto_disks_misses_the_same(local_place: Place, tmp_path: Path) -> None:
    prune(years(local_place), older_days=5)

    def found(**wanted: Any) -> int:
        request = RestoreRequest(topics=("orders",), **wanted)
        work = ColdRestore(Work(Config(archive=str(local_place.folder))), request, [put_target(tmp_path / str(wanted))])
        return [each.kind for each in work.plan().obstacles].count(ObstacleKind.PRUNED)

    assert (found(as_of="run-2"), found()) == (2, 0)


def test_a_query_as_of_a_run_says_which_records_were_pruned_since(
    local_place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    archive = years(local_place)
    prune(archive, older_days=5)
    archive = local_place.open()
    select(archive, ScopeOptions(), layout=None)
    select(archive, ScopeOptions(topics=("users",), as_of="run-4"), layout=None)
    assert not caplog.messages
    select(archive, ScopeOptions(as_of="run-4"), layout=None)
    (told,) = caplog.messages
    assert told == "orders: records that were there then were pruned since, and are not in the answer; see gaps"


def test_runs_whose_records_were_pruned_since_are_no_longer_whole(place: Place) -> None:
    archive = years(place)
    assert {each.restorable for each in list_runs(archive)} == {True}
    prune(archive, older_days=5)
    commit(archive, "run-a", [], {part("orders"): 100, part("orders", 1): 50, part("users"): 4})
    found = {each.run_id: each.restorable for each in list_runs(place.open())}
    assert [found[f"run-{day}"] for day in range(10)] == [False] * 10
    assert found["run-a"] is True
    assert list(found.values()).count(None) == 1  # the prune itself is no point in time


def test_a_run_from_before_the_pruned_records_is_still_whole(local_place: Place) -> None:
    archive = local_place.create()
    commit(archive, "run-1", [data("users", 0, 5, age_days=1)], {part("users"): 5})
    commit(archive, "run-2", [data("orders", 0, 5, age_days=9)], {part("users"): 5, part("orders"): 5})
    commit(archive, "run-3", [data("orders", 5, 9, age_days=1)], {part("users"): 5, part("orders"): 9})
    prune(archive, older_days=5)
    archive = local_place.open()
    assert [each.restorable for each in list_runs(archive)] == [True, False, False, None]
    # Of the topics that are named.
    assert [(each.run_id, each.restorable) for each in list_runs(archive, ["orders"])][:2] == [
        ("run-2", False),
        ("run-3", False),
    ]
    assert [each.restorable for each in list_runs(archive, ["users"])] == [True, True, True, None]


def test_an_undo_makes_runs_whole_again_also_between_two_prunes(local_place: Place) -> None:
    archive = years(local_place)
    prune(archive, older_days=8)
    commit(archive, "run-a", [], {part("orders"): 100, part("orders", 1): 50, part("users"): 4})
    prune(archive, older_days=6)
    assert gaps(archive, "orders")[0] == (0, 40, "pruned")
    assert not _restorable(local_place)["run-a"]
    assert len(missed(local_place.open(), as_of="run-a")) == 2
    undo_prune(local_place.open(), apply=True)
    assert gaps(local_place.open(), "orders")[0] == (0, 20, "pruned")
    # What the first prune took was gone at run-a already.
    assert _restorable(local_place)["run-a"]
    assert missed(local_place.open(), as_of="run-a") == []
    assert not _restorable(local_place)["run-9"]
    undo_prune(local_place.open(), apply=True)
    assert segments(local_place.open(), "orders")[0] == (0, 10)
    assert all(value is not False for value in _restorable(local_place).values())


def _restorable(place: Place) -> dict[str, bool | None]:
    return {each.run_id: each.restorable for each in list_runs(place.open())}


def test_what_was_taken_out_as_lost_is_told_of_older_runs(local_place: Place) -> None:
    archive = local_place.create()
    row = data("orders", 0, 5, age_days=1, run_id="run-1")
    commit(archive, "run-1", [row], {part("orders"): 5})
    commit(archive, "run-2", [hole("orders", 5, 9, GapReason.CORRUPT)], {part("orders"): 9})
    # What run-2 recorded itself, its own ending says.
    assert [each.restorable for each in list_runs(archive)] == [True, True]
    lost = hole("orders", 0, 5, GapReason.CORRUPT, run_id="repair")
    archive.catalog.commit([lost, run("repair", snapshot=None)], replaced=encode_rows([row]))
    assert _restorable(local_place) == {"run-1": False, "run-2": False, "repair": None}


def test_many_runs_and_prunes_are_listed_with_a_look_at_few_snapshots(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics that come one after the other, and prunes that take some of each; two prunes after one backup."""
    archive = local_place.create()
    count, every, rows, expected, ends = 300, 3, list[Run | Gap](), set[str](), dict[str, dict[PartitionId, int]]()
    for number in range(count):
        came = [PartitionId(topic_id=f"T{topic:021}", partition=0) for topic in range(number // 6 + 1)]
        ends[f"run-{number:04}"] = {each: number - place * 6 for place, each in enumerate(came)}
        rows.append(run(f"run-{number:04}"))
        for prune in ("a", "b") if number % every == 0 else ():
            gone, base = came[-1 - number % len(came)], number % 5
            run_id = f"run-{number:04}-{prune}"
            rows += [
                run(run_id, snapshot=None),
                gap(base, base + 1, topic=gone.topic_id, topic_id=gone.topic_id, run_id=run_id, reason=GapReason.PRUNED)
                if prune == "a"
                else gap(9, 10, topic="last", topic_id="L" * 22, run_id=run_id, reason=GapReason.PRUNED),
            ]
            expected |= {each for each, known in ends.items() if known.get(gone, 0) > base}
    archive.catalog.commit(
        [replace(row, commit=place) if isinstance(row, Run) else row for place, row in enumerate(rows)]
    )
    read: list[str] = []

    def reading(_: object, point: Run) -> SimpleNamespace:
        read.append(point.run_id)
        return SimpleNamespace(ends=ends[point.run_id], revisions={})

    monkeypatch.setattr("maxbrod.archive.runs.read_snapshot", reading)
    assert {each.run_id for each in list_runs(archive) if each.restorable is False} == expected
    assert (len(expected) > count // 2, len(read) < count // 3) == (True, True)


def test_runs_are_listed_up_to_a_run_and_by_topic(local_place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    years(local_place)

    def listed(*words: str) -> list[str]:
        assert main(["ls", "--runs", "--json", *words, *local_place.arguments]) == 0
        return [each["run_id"] for each in json.loads(capsys.readouterr().out)]

    assert listed("--as-of", "run-2") == ["run-0", "run-1", "run-2"]
    assert listed("users") == [f"run-{day}" for day in range(3, 10)]
    assert listed("use*", "--as-of", "run-4") == ["run-3", "run-4"]
    assert listed("users", "--as-of", "run-1") == []
    assert main(["ls", "--runs", "nobody", *local_place.arguments]) == 2
    assert "has no topic 'nobody'" in capsys.readouterr().err
    assert main(["ls", "--runs", "--all", *local_place.arguments]) == 2


def test_the_listing_says_which_runs_are_no_longer_whole(
    local_place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = years(local_place)
    prune(archive, older_days=5)
    assert main(["ls", "--runs", *local_place.arguments]) == 0
    text = capsys.readouterr().out
    assert "complete, no longer whole" in " ".join(text.split())
    assert "a restore as of it needs --accept-gaps" in " ".join(text.split())
    assert main(["show", "--run", "run-2", *local_place.arguments]) == 0
    assert "no longer whole: records that the run left were pruned" in " ".join(capsys.readouterr().out.split())


def test_an_unknown_run_is_an_error_also_with_runs(local_place: Place) -> None:
    archive = years(local_place)
    with pytest.raises(UsageError, match="no runs of this archive match"):
        list_runs(archive, as_of="nobody")
