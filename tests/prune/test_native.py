"""Pruning of our own archives: exactly what the policy names goes, and an undo brings all of it back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.holds import add_hold, release_hold
from maxbrod.archive.knowledge import NOTHING, Carried, LostTopic, encode_carried
from maxbrod.archive.runs import list_runs
from maxbrod.archive.snapshot_document import Snapshot, encode
from maxbrod.archive.snapshots import find_moment
from maxbrod.archive.undo import undo_prune
from maxbrod.catalog import commits
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.queries import Queries
from maxbrod.catalog.rows import Gap, Segment, decode_rows, new_run_id
from maxbrod.check.run import check_archive
from maxbrod.cli.main import run as main
from maxbrod.errors import UsageError
from maxbrod.kafka.state.cluster_state import encode_state
from maxbrod.model import GapReason, now_ms
from maxbrod.prune.plan import SegmentPolicy
from maxbrod.prune.run import PruneRequest, prune_archive
from maxbrod.prune.runs import RunPolicy
from support.archives import Place, commit_run
from support.catalog_rows import run
from support.prunable_archives import (
    DAY_MS,
    IDS,
    assert_tiles,
    cluster,
    commit,
    data,
    everything,
    gaps,
    hole,
    part,
    points,
    prune,
    segments,
    topic_state,
    years,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maxbrod.archive.archive import Archive


def test_by_age_old_segments_become_gaps_and_the_rest_stays(place: Place) -> None:
    archive = years(place)
    planned = prune(archive, apply=False, older_days=5)
    assert (planned.applied, planned.run_id) == (False, None)
    assert len(segments(archive, "orders")) == 10

    report = prune(archive, older_days=5)
    assert report.items == planned.items
    assert segments(place.open(), "orders") == [(50, 60), (60, 70), (70, 80), (80, 90), (90, 100)]
    assert gaps(place.open(), "orders") == [(0, 46, "pruned"), (46, 50, "compacted")]
    assert gaps(place.open(), "orders", 1) == [(0, 25, "pruned")]
    # The newest of its partition, though it is old.
    assert segments(place.open(), "users") == [(0, 4)]
    assert_tiles(place.open())
    assert not check_archive(place.open()).problems
    assert (report.going.segments, report.going.records) == (10, 71)
    # The prune is a run, but no point in time.
    found = place.open()
    assert find_moment(found.storage, found.catalog.runs(), "latest").as_of == "run-9"


def test_every_item_is_listed_with_its_reason(local_place: Place) -> None:
    report = prune(years(local_place), apply=False, older_days=5)
    found = {(each.topic, each.partition, each.first_offset, each.end_offset): each for each in report.items}
    assert [(key, each.keep, each.reason) for key, each in found.items()] == [
        (("orders", 0, 0, 46), False, "all its records are older"),
        (("orders", 0, 50, 90), True, "within every limit"),
        (("orders", 0, 90, 100), True, "the newest of its partition"),
        (("orders", 1, 0, 25), False, "all its records are older"),
        (("orders", 1, 25, 45), True, "within every limit"),
        (("orders", 1, 45, 50), True, "the newest of its partition"),
        (("users", 0, 0, 4), True, "the newest of its partition"),
    ]
    assert sum(each.segments for each in report.items) == 21


def test_space_in_shared_packs_is_not_promised(local_place: Place) -> None:
    report = prune(years(local_place), apply=False, older_days=5)
    # Five segments, two whole packs, and half of a third one, which stays.
    assert report.objects == 5 + 2
    assert report.going.bytes - report.objects_bytes == 500


def test_an_old_segment_behind_a_younger_one_stays(local_place: Place) -> None:
    archive = local_place.create()
    rows = [data("orders", 0, 5, age_days=1), data("orders", 5, 9, age_days=50), data("orders", 9, 12, age_days=0)]
    commit(archive, "run-1", rows, {part("orders"): 12})
    report = prune(archive, older_days=10)
    assert segments(archive, "orders") == [(0, 5), (5, 9), (9, 12)]
    assert report.items[1].reason == "behind a segment that stays"


def test_by_age_a_segment_whose_timestamps_contradict_each_other_is_as_old_as_its_object(local_place: Place) -> None:
    archive = local_place.create()
    now = now_ms()
    odd = data("orders", 0, 5, age_days=20, max_timestamp=-1, written_at=now - 5 * DAY_MS)
    future = data("orders", 5, 9, age_days=1, max_timestamp=-1, written_at=now - 50 * DAY_MS)
    commit(archive, "run-1", [odd, future, data("orders", 9, 12, age_days=0)], {part("orders"): 12})
    prune(archive, older_days=10)
    assert segments(archive, "orders") == [(0, 5), (5, 9), (9, 12)]
    prune(archive, older_days=3)
    assert segments(archive, "orders") == [(5, 9), (9, 12)]


def test_by_size_the_oldest_of_a_topic_go_until_it_fits(local_place: Place) -> None:
    archive = years(local_place)
    report = prune(archive, topic_bytes_max=9_000)
    left = sum(each.bytes for each in report.items if each.keep and each.topic == "orders")
    assert 8_000 <= left <= 9_000
    # Oldest first across partitions.
    assert (segments(archive, "orders")[0], segments(archive, "orders", 1)[0]) == ((40, 46), (20, 25))
    assert segments(archive, "users") == [(0, 4)]


def test_by_size_of_the_archive_the_oldest_of_all_go(local_place: Place) -> None:
    archive = years(local_place)
    report = prune(archive, archive_bytes_max=5_000)
    assert sum(each.bytes for each in report.items if each.keep) <= 5_000
    assert prune(archive, archive_bytes_max=0).kept.segments == 3


def test_only_the_named_topics_are_pruned(local_place: Place) -> None:
    archive = years(local_place)
    assert prune(archive, "users", older_days=1).going.segments == 0
    assert len(segments(archive, "orders")) == 10
    with pytest.raises(UsageError, match="no topic"):
        prune(archive, "nothing-*", older_days=1)


def test_as_the_source_does(local_place: Place) -> None:
    archive = years(local_place)
    topics = (
        topic_state("orders", **{"retention.ms": str(3 * DAY_MS)}),
        topic_state("users", **{"retention.ms": "1"}),
    )
    commit(archive, "run-x", [data("users", 4, 9, age_days=0)], {part("orders"): 100, part("users"): 9}, topics=topics)
    report = prune(archive, as_source_at_ms=now_ms())
    assert segments(archive, "orders") == [(70, 80), (80, 90), (90, 100)]
    assert segments(archive, "users") == [(4, 9)]
    assert {each.reason for each in report.items if not each.keep} == {"older than the topic's retention.ms"}


def test_as_the_source_by_bytes_of_each_partition(local_place: Place) -> None:
    archive = years(local_place)
    topics = (topic_state("orders", **{"retention.bytes": "2500"}), topic_state("users"))
    commit(archive, "run-x", [], {part("orders"): 100}, topics=topics)
    prune(archive, as_source_at_ms=now_ms())
    # Like a broker, as long as what remains is as large as the limit: three segments of 1000 stay, and five of 500.
    assert len(segments(archive, "orders")) == 3
    assert len(segments(archive, "orders", 1)) == 5


def test_a_compacted_topic_keeps_a_complete_state(local_place: Place) -> None:
    archive = local_place.create()
    rows = [data("users", 0, 5, age_days=99), data("users", 5, 9, age_days=98), data("users", 9, 12, age_days=0)]
    compacted = topic_state("users", **{"cleanup.policy": "compact", "retention.ms": "1"})
    commit(archive, "run-1", rows, {part("users"): 12}, topics=(compacted,))
    limits: list[dict[str, Any]] = [{"older_days": 10}, {"topic_bytes_max": 0}, {"as_source_at_ms": now_ms()}]
    for each in limits:
        report = prune(archive, **each)
        assert report.going.segments == 0
        assert report.items[0].reason.startswith("a compacted topic")
    assert prune(archive, older_days=10, compacted_too=True).going.segments == 2


def test_a_topic_that_kafka_compacts_and_deletes_is_pruned(local_place: Place) -> None:
    archive = local_place.create()
    rows = [data("users", 0, 5, age_days=99), data("users", 5, 9, age_days=0)]
    both = topic_state("users", **{"cleanup.policy": "compact,delete"})
    commit(archive, "run-1", rows, {part("users"): 9}, topics=(both,))
    assert prune(archive, older_days=10).going.segments == 1


def test_a_topic_of_unknown_policy_stays(local_place: Place) -> None:
    archive = local_place.create()
    rows = [data("gone", 0, 5, age_days=99), data("gone", 5, 9, age_days=0)]
    commit(archive, "run-1", rows, {part("gone"): 9})
    report = prune(archive, older_days=10)
    assert (report.going.segments, report.items[0].reason) == (
        0,
        "its cleanup policy is unknown, so it may be compacted",
    )


def lost_topic(archive: Archive, *, age_days: float) -> None:
    rows = [data("gone", 0, 5, age_days=60), data("gone", 5, 9, age_days=50)]
    commit(archive, "seen", rows, {part("gone"): 9}, topics=(topic_state("gone"),), age_days=age_days)
    lost = LostTopic(run_id="seen", cluster_id="c", topic=topic_state("gone"))
    commit(archive, "later", [], {part("gone"): 9}, carried=encode_carried(Carried(topics=(lost,))))


def test_a_lost_topic_stays_as_long_as_the_policy_says_with_its_configuration(local_place: Place) -> None:
    archive = local_place.create()
    lost_topic(archive, age_days=50)
    # By age, its newest segment stays like any other's.
    prune(archive, older_days=30)
    assert segments(archive, "gone") == [(5, 9)]
    assert prune(archive, lost_before_ms=now_ms() - 60 * DAY_MS).going.segments == 0
    report = prune(archive, lost_before_ms=now_ms() - 40 * DAY_MS)
    assert segments(archive, "gone") == []
    assert gaps(archive, "gone") == [(0, 9, "pruned")]
    assert not check_archive(archive).problems
    undo_prune(archive, report.run_id, apply=True)
    moment = find_moment(archive.storage, archive.catalog.runs(), None)
    assert moment.cluster is not None
    assert "gone" in {each.name for each in moment.cluster.topics}
    assert segments(archive, "gone") == [(5, 9)]


@pytest.mark.parametrize("apart", [False, True])
def test_an_undo_brings_everything_back_also_after_a_backup(place: Place, apart: bool) -> None:
    archive = years(place)
    before = everything(archive)
    runs = RunPolicy(last=2)
    report = prune(archive, older_days=5, runs=runs)
    assert len(points(archive)) == 2
    if apart:
        other = place.open()
        ends = {part("orders"): 110, part("orders", 1): 50, part("users"): 4}
        commit(other, "run-10", [data("orders", 100, 110, age_days=0)], ends)
        archive = place.open()
    planned = undo_prune(archive)
    assert (planned.rows, planned.runs, planned.applied) == (10, 8, False)
    undone = undo_prune(archive, apply=True)
    assert (undone.prune, undone.lost, undone.taken) == (report.run_id, (), 0)
    found = everything(place.open())
    assert [each for each in found if "run-10" not in each] == before
    assert not check_archive(place.open()).problems
    with pytest.raises(UsageError, match="no prune"):
        undo_prune(archive, apply=True)


def test_an_undo_is_listed_as_what_it_is(local_place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    archive = years(local_place)
    prune(archive, older_days=5)
    assert main(["prune", "-a", archive.url, "--undo", "--apply"]) == 0
    commands = [each.statistics["command"] for each in local_place.open().catalog.runs()[-2:]]
    assert commands == ["prune", "prune --undo"]
    capsys.readouterr()
    assert main(["ls", "-a", archive.url, "--runs"]) == 0
    assert "prune --undo" in capsys.readouterr().out


def test_prunes_can_be_undone_in_any_order(local_place: Place) -> None:
    archive = years(local_place)
    before = everything(archive)
    first, second = prune(archive, older_days=7), prune(archive, older_days=3)
    assert gaps(archive, "orders")[0] == (0, 46, "pruned")
    undo_prune(archive, first.run_id, apply=True)
    assert segments(archive, "orders")[:3] == [(0, 10), (10, 20), (20, 30)]
    assert gaps(archive, "orders")[0] == (30, 46, "pruned")
    undo_prune(archive, second.run_id, apply=True)
    assert everything(archive) == before


def test_a_lost_object_does_not_come_back_and_is_named(local_place: Place) -> None:
    archive = years(local_place)
    prune(archive, older_days=5)
    path = data("orders", 0, 10, age_days=0).path
    archive.storage.delete([path])
    report = undo_prune(archive, apply=True)
    assert report.lost == (path,)
    assert segments(archive, "orders")[0] == (10, 20)
    assert gaps(archive, "orders")[0] == (0, 10, "pruned")
    assert not check_archive(archive).problems
    # Put back from a copy: the same undo brings the rest.
    archive.storage.put(path, bytes(1000))
    assert undo_prune(archive, apply=True).rows == 1
    assert segments(archive, "orders")[0] == (0, 10)


def rewritten(archive: Archive) -> None:
    """`users`: rows [5, 9) were replaced after a truncation, as a later run found it."""
    commit(archive, "one", [data("users", 0, 5, age_days=50), data("users", 5, 9, age_days=50)], {part("users"): 9})
    old = [row for row in decode_rows(archive.catalog.rows()) if isinstance(row, Segment) and row.base_offset == 5]
    new = data("users", 5, 12, age_days=40, path="packs/new.log", run_id="two", first_leader_epoch=5)
    archive.storage.put("packs/new.log", bytes(700))
    archive.catalog.commit([new, run("two-a", snapshot=None)], retired=old)


def as_of(archive: Archive, run_id: str) -> list[tuple[int, int, str]]:
    moment = find_moment(archive.storage, archive.catalog.runs(), run_id)
    rows = decode_rows(archive.catalog.rows(as_of=moment.ends, revisions=moment.revisions))
    return [
        (row.base_offset, row.end_offset, str(row.reason) if isinstance(row, Gap) else "data")
        for row in rows
        if isinstance(row, Segment | Gap)
    ]


@pytest.mark.parametrize(
    "limits",
    [
        {"older_days": 5},
        {"topic_bytes_max": 4000},
        {"archive_bytes_max": 6000},
        {"topic_bytes_max": 9000, "archive_bytes_max": 5000, "older_days": 8},
    ],
    ids=str,
)
def test_a_prune_takes_the_same_whatever_portions_it_reads(
    local_place: Place, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    archive = years(local_place)
    old = [row for row in decode_rows(archive.catalog.rows(offsets=(20, 50))) if isinstance(row, Segment)]
    new = [replace(row, path=f"packs/again-{number}.log") for number, row in enumerate(old)]
    for row in new:
        archive.storage.put(row.path, bytes(row.position + row.bytes))
    archive.catalog.commit(new, retired=old)
    add_hold(archive, who="me", why="a reason", topics=["users"])
    before, whole = everything(archive), prune(archive, apply=False, **limits)
    assert whole.going.segments
    assert any(each.replaced for each in whole.items)

    assert Queries.portions_with_replaced.__kwdefaults__ is not None
    monkeypatch.setitem(Queries.portions_with_replaced.__kwdefaults__, "rows_max", 1)
    assert prune(archive, apply=False, **limits) == whole
    taken = prune(archive, **limits)
    assert (taken.items, taken.going, taken.objects) == (whole.items, whole.going, whole.objects)
    assert_tiles(archive)
    undo_prune(archive, taken.run_id, apply=True)
    assert everything(archive) == before


def test_as_of_an_older_run_pruned_offsets_are_explained(local_place: Place) -> None:
    archive = local_place.create()
    rewritten(archive)
    commit(archive, "three", [data("users", 12, 15, age_days=0)], {part("users"): 15})
    before = everything(archive)
    assert as_of(archive, "one") == [(0, 5, "data"), (5, 9, "data")]
    report = prune(archive, older_days=30)
    assert gaps(archive, "users") == [(0, 5, "pruned"), (5, 12, "pruned")]
    assert as_of(archive, "one") == [(0, 5, "pruned"), (5, 9, "pruned")]
    assert_tiles(archive)
    assert not check_archive(archive).problems
    undo_prune(archive, report.run_id, apply=True)
    assert everything(archive) == before


def put_run(archive: Archive, run_id: str, end: int, revision: int) -> None:
    snapshot = Snapshot(
        run_id=run_id,
        taken_at_ms=now_ms(),
        cluster=encode_state(cluster(topic_state("users"))),
        ends={part("users"): end},
        topics={IDS["users"]: "users"},
        carried=encode_carried(NOTHING),
        revisions={part("users"): revision},
    )
    archive.storage.put(f"snapshots/{run_id}.json.zst", encode(snapshot))
    archive.catalog.commit([run(run_id, finished_at=now_ms(), statistics={"command": "backup", "exit_code": 0})])


def test_replaced_rows_go_when_no_run_can_reach_them_and_revisions_keep_counting(local_place: Place) -> None:
    archive = local_place.create()
    rewritten(archive)
    put_run(archive, "three", 12, 1)
    before, there = everything(archive), archive.catalog.revisions()
    report = prune(archive, runs=RunPolicy(last=1))
    assert [each.run_id for each in report.runs if not each.keep] == ["one"]
    assert not [path for path in archive.catalog.replaced()["path"].to_pylist() if path is not None]
    assert archive.catalog.revisions() == there
    assert as_of(archive, "three") == [(0, 5, "data"), (5, 12, "data")]
    # The gap that keeps the number belongs to no point in time.
    assert {each.restorable for each in list_runs(archive)} == {True, None}
    undo_prune(archive, apply=True)
    assert everything(archive) == before


def test_a_pruned_history_is_missed_only_by_the_runs_that_saw_it(local_place: Place) -> None:
    archive = local_place.create()
    old = data("users", 0, 9, age_days=50, run_id="one")
    commit(archive, "one", [old], {part("users"): 9})
    new = data("users", 0, 12, age_days=1, path="packs/new.log", run_id="two", first_leader_epoch=5)
    archive.storage.put("packs/new.log", bytes(700))
    archive.catalog.commit([new], retired=[old])
    put_run(archive, "three", 12, 1)
    prune(archive, older_days=30)
    assert as_of(archive, "one") == [(0, 9, "pruned")]
    assert {each.run_id: each.restorable for each in list_runs(archive) if each.snapshot} == {
        "one": False,
        "three": True,
    }


def test_a_run_that_reaches_replaced_rows_keeps_them(local_place: Place) -> None:
    archive = local_place.create()
    rewritten(archive)
    put_run(archive, "three", 12, 1)
    hold = add_hold(archive, who="me", why="audit", run="one")
    report = prune(archive, runs=RunPolicy(last=1))
    assert {each.run_id: each.reasons for each in report.runs}["one"] == (f"hold {hold.id} of me: audit",)
    assert [each.run_id for each in points(archive)] == ["one", "three"]
    assert as_of(archive, "one") == [(0, 5, "data"), (5, 9, "data")]
    release_hold(archive, hold.id, who="me", why="done")
    prune(archive, runs=RunPolicy(last=1))
    assert [each.run_id for each in points(archive)] == ["three"]


def test_runs_stay_while_the_newest_snapshot_carries_nothing_on(local_place: Place) -> None:
    archive = years(local_place)
    commit_run(archive, "of-an-older-release", [], topics={IDS["orders"]: "orders"}, ends={part("orders"): 100})
    assert prune(archive, runs=RunPolicy(last=1), apply=False).runs_going == 0


def test_nothing_to_do_commits_nothing(local_place: Place) -> None:
    archive = years(local_place)
    version = archive.catalog.version
    assert prune(archive, older_days=900).run_id is None
    assert archive.catalog.version == version
    with pytest.raises(UsageError, match="nothing says what to prune"):
        prune(archive)


def test_a_backup_that_commits_in_between_does_not_stop_a_prune(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, other = years(local_place), local_place.open()
    commits: list[int] = []
    original = archive.catalog.commit

    def overtaken(*arguments: Any, **options: Any) -> int:
        if len(commits) < 3:
            number = len(commits)
            commits.append(number)
            base = 100 + 10 * number
            ends = {part("orders"): base + 10, part("orders", 1): 50, part("users"): 4}
            commit(other, f"late-{number}", [data("orders", base, base + 10, age_days=0)], ends)
        return original(*arguments, **options)

    monkeypatch.setattr(archive.catalog, "commit", overtaken)
    prune(archive, older_days=5)
    found = local_place.open()
    assert segments(found, "orders")[0] == (50, 60)
    # The second attempt follows the second backup.
    assert segments(found, "orders")[-1] == (110, 120)
    assert_tiles(found)
    assert len(list(found.storage.list("prunes"))) == 1


def test_a_hold_that_is_added_while_a_backup_overtakes_a_prune_is_respected(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, other = years(local_place), local_place.open()
    put, steps = commits._put_entry, iter(["backup", "backup", "hold", "backup"])

    def overtaken(*arguments: Any) -> bool:
        step = next(steps, None)
        with monkeypatch.context() as alone:
            alone.setattr(commits, "_put_entry", put)
            other.catalog.refresh()
            if step == "hold":
                add_hold(other, who="legal", why="case", topics=["orders"])
            elif step == "backup":
                other.catalog.commit([run(new_run_id(), snapshot=None)])
        return put(*arguments)

    monkeypatch.setattr(commits, "_put_entry", overtaken)
    report = prune(archive, older_days=5)
    assert (report.going.segments, report.run_id, next(steps)) == (0, None, "backup")
    assert segments(local_place.open(), "orders")[0] == (0, 10)
    assert list(archive.storage.list("prunes")) == []


def test_holes_of_other_reasons_stay_what_they_are(local_place: Place) -> None:
    archive = local_place.create()
    rows: Iterable[Any] = [
        hole("orders", 0, 5, GapReason.RETENTION),
        data("orders", 5, 9, age_days=50),
        hole("orders", 9, 12, GapReason.CORRUPT),
        data("orders", 12, 15, age_days=50),
        data("orders", 15, 20, age_days=0),
    ]
    commit(archive, "run-1", rows, {part("orders"): 20})
    prune(archive, older_days=10)
    assert gaps(archive, "orders") == [
        (0, 5, "retention"),
        (5, 9, "pruned"),
        (9, 12, "corrupt"),
        (12, 15, "pruned"),
    ]


def test_every_run_is_listed_with_its_reason_also_if_all_stay(
    local_place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = years(local_place)
    assert main(["prune", "--keep-within", "1000d", *local_place.arguments]) == 0
    said = capsys.readouterr().out
    for each in points(archive):
        assert any(each.run_id in line and "stays" in line for line in said.splitlines())


def test_two_undos_at_once_bring_each_run_back_once(local_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = years(local_place)
    request = PruneRequest(segments=SegmentPolicy(), runs=RunPolicy(last=2))
    prune_archive(archive, request, apply=True)
    mine, commit = local_place.open(), Catalog.commit
    others: list[Callable[[], object]] = [
        lambda: local_place.open().catalog.commit([run("other", snapshot=None)]),
        lambda: undo_prune(local_place.open(), apply=True),
    ]

    def overtaken(catalog: Catalog, *rows: Any, **more: Any) -> Any:
        if catalog is mine.catalog and others:
            others.pop(0)()
        return commit(catalog, *rows, **more)

    monkeypatch.setattr(Catalog, "commit", overtaken)
    with pytest.raises(UsageError, match="no prune of this archive can be undone"):
        undo_prune(mine, apply=True)
    ids = [each.run_id for each in local_place.open().catalog.runs()]
    assert sorted(set(ids)) == sorted(ids)
