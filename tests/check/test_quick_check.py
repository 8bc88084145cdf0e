"""The quick check finds everything that can be found without reading records, and names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cramjam
import pytest

from maxbrod.archive import snapshot_document, snapshots
from maxbrod.catalog.queries import Queries
from maxbrod.check import run as quick_check
from maxbrod.check.problems import Problem, ProblemKind, verdict_of
from maxbrod.check.run import check_archive
from maxbrod.errors import UnavailableError, UsageError
from maxbrod.model import GapReason
from support.archives import Place, commit_run, put_snapshot
from support.catalog_rows import TOPIC_ID, gap, many_segments, segment
from support.full_archive import EMPTY_ID, NAMES, fill, part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.archive.archive import Archive
    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.storage.interface import ObjectInfo

FIRST = segment(0, 10).path


def only(archive: Archive) -> Problem:
    (problem,) = check_archive(archive).problems
    return problem


def replace(archive: Archive, path: str, data: bytes) -> None:
    archive.storage.delete([path])
    archive.storage.put(path, data)


def test_a_sound_archive_has_no_problems(place: Place) -> None:
    fill(place)
    report = check_archive(place.open())
    assert (report.problems, report.exit_code) == ((), 0)
    # Two partitions of a topic that is empty still count: they were looked at by the backup.
    assert (report.topics, report.partitions, report.partitions_without_rows) == (3, 5, 2)
    assert (report.rows, report.objects) == (6, 5)
    assert (report.bytes, report.snapshots, report.snapshots_read) == (3700, 3, 3)


def test_a_missing_object_is_named_with_the_offsets_it_held(place: Place) -> None:
    archive = fill(place)
    archive.storage.delete([FIRST])
    problem = only(place.open())
    assert (problem.kind, problem.exit_code) == (ProblemKind.MISSING, 4)
    assert (problem.topic, problem.partition, problem.first_offset, problem.end_offset) == ("orders", 0, 0, 10)
    assert problem.object_name == archive.storage.name_of(FIRST)


def test_a_damaged_archive_has_no_recovery_point(local_place: Place) -> None:
    archive = fill(local_place)
    commit_run(archive, "run-3", [], topics=NAMES, ends={part(0): 30}, recovery_points={part(0): 1_700_000_200_000})
    assert check_archive(local_place.open()).recovery_point == 1_700_000_200_000
    archive.storage.delete([FIRST])
    assert check_archive(local_place.open()).recovery_point is None


def test_an_object_that_is_too_short_for_a_slice_is_truncated(place: Place) -> None:
    archive = fill(place)
    replace(archive, "packs/run-1-aa.log", bytes(549))
    problem = only(place.open())
    assert (problem.kind, problem.exit_code, problem.partition) == (ProblemKind.TRUNCATED, 4, 1)
    assert problem.message == "the object has 549 bytes, the slice ends at 550"


def test_only_the_slices_of_a_pack_that_are_cut_off_are_named(local_place: Place) -> None:
    archive = local_place.create()
    slices = [segment(0, 10, partition=each, path="packs/p.log", position=1000 * each) for each in range(4)]
    commit_run(archive, "run-1", slices)
    replace(archive, "packs/p.log", bytes(2999))
    assert [problem.partition for problem in check_archive(archive).problems] == [2, 3]


@pytest.mark.parametrize("missing", [True, False])
def test_offsets_that_no_row_covers_are_incomplete(missing: bool, local_place: Place) -> None:
    archive = local_place.create()
    explained = [] if missing else [gap(10, 12)]
    commit_run(archive, "run-1", [segment(0, 10), *explained, segment(12, 20)])
    report = check_archive(archive)
    if not missing:
        assert report.exit_code == 0
        return
    (hole,) = report.problems
    assert (hole.kind, hole.topic, hole.partition, hole.first_offset, hole.end_offset) == ("hole", "orders", 0, 10, 12)
    assert report.exit_code == 3


def test_offsets_that_two_rows_cover_are_corrupt(local_place: Place) -> None:
    archive = local_place.create()
    commit_run(archive, "run-1", [segment(0, 10), segment(8, 20)])
    problem = only(archive)
    assert (problem.kind, problem.first_offset, problem.end_offset, problem.exit_code) == ("overlap", 8, 10, 4)


def test_rows_that_end_before_the_last_snapshot_says_are_incomplete(local_place: Place) -> None:
    archive = fill(local_place)
    ends = {part(0): 31, part(1): 10, part(0, EMPTY_ID): 0, part(1, EMPTY_ID): 4, part(2, EMPTY_ID): 99}
    commit_run(archive, "run-3", [], topics=NAMES, ends=ends, finished_at=1_800_000_000_000)
    problems = sorted(check_archive(archive).problems, key=lambda each: each.first_offset or 0)
    assert [(each.kind, each.topic, each.first_offset, each.end_offset) for each in problems] == [
        ("behind", "empty", 0, 4),
        ("behind", "orders", 30, 31),
    ]
    # A partition that stood at 99 from the start, because its backup began at the end, has nothing to show.
    assert "run-3" in problems[0].message


@pytest.mark.parametrize(
    ("reason", "kind"), [(GapReason.UNEXPLAINED, "unexplained"), (GapReason.CORRUPT, "damaged at source")]
)
def test_gaps_that_want_looking_at_are_incomplete(reason: GapReason, kind: str, local_place: Place) -> None:
    archive = local_place.create()
    commit_run(archive, "run-1", [gap(0, 5, reason=reason), segment(5, 10)])
    problem = only(archive)
    assert (problem.kind, problem.first_offset, problem.end_offset, problem.exit_code) == (kind, 0, 5, 3)


def test_a_slice_with_fewer_records_than_offsets_for_no_reason_is_incomplete(local_place: Place) -> None:
    archive = local_place.create()
    commit_run(archive, "run-1", [segment(0, 10, records=8, reason=GapReason.UNEXPLAINED)])
    assert only(archive).message == "only 8 records for these offsets"


def test_snapshots_that_are_gone_or_damaged_are_named(place: Place) -> None:
    archive = fill(place)
    archive.storage.delete(["snapshots/run-0.json.zst"])
    replace(archive, "snapshots/run-1.json.zst", b"junk")
    gone, damaged = check_archive(place.open()).problems
    assert (gone.kind, damaged.kind) == (ProblemKind.MISSING, ProblemKind.UNREADABLE)
    assert {gone.exit_code, damaged.exit_code} == {4}
    assert (damaged.object_name or "").endswith("snapshots/run-1.json.zst")


def test_a_store_that_does_not_answer_is_no_damage(local_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = fill(local_place)

    def fail(path: str, **_: object) -> memoryview:
        raise UnavailableError("no answer", object_name=path)

    monkeypatch.setattr(archive.storage, "get", fail)
    with pytest.raises(UnavailableError):
        check_archive(archive)


def test_damage_weighs_more_than_what_is_missing(local_place: Place) -> None:
    archive = local_place.create()
    commit_run(archive, "run-1", [segment(0, 10), segment(12, 20)])
    archive.storage.delete([FIRST])
    assert check_archive(archive).exit_code == 4


def test_some_topics_can_be_checked_alone(local_place: Place) -> None:
    archive = fill(local_place)
    other = segment(0, 10, topic="clicks", topic_id="CLICKSCLICKSCLICKSCLIA", path="segments/clicks/x/0/1.log")
    commit_run(archive, "run-3", [other], topics=NAMES, ends={part(0): 30, part(1): 10})
    archive.storage.delete([FIRST])
    assert check_archive(archive, ["cl*"]).exit_code == 0
    assert check_archive(archive, ["orders"]).exit_code == 4
    with pytest.raises(UsageError, match="no topic 'click'"):
        check_archive(archive, ["click"])


def test_of_many_snapshots_the_newest_are_read_and_all_must_be_there(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = fill(local_place)
    monkeypatch.setattr(quick_check, "SNAPSHOTS_READ", 2)
    replace(archive, "snapshots/run-0.json.zst", b"junk that nobody reads")
    report = check_archive(archive)
    assert (report.problems, report.snapshots, report.snapshots_read) == ((), 3, 2)


def test_older_snapshots_are_proven_by_their_checksums_and_not_parsed(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = fill(local_place)
    parsed: list[str] = []
    decode = snapshot_document.decode

    def counted(data: bytes, **more: Any) -> Snapshot:
        parsed.append(more["object_name"])
        return decode(data, **more)

    monkeypatch.setattr(snapshots, "decode", counted)
    report = check_archive(archive)
    assert (report.snapshots_read, report.problems) == (3, check_archive(archive).problems)
    assert {name.rpartition("/")[2] for name in parsed} == {"run-2.json.zst"}
    # One changed letter in the text, which is still JSON.
    text = bytes(cramjam.zstd.decompress(bytes(archive.storage.get("snapshots/run-1.json.zst"))))
    changed = bytes(cramjam.zstd.compress(text.replace(b"orders", b"ordres", 1)))
    replace(archive, "snapshots/run-1.json.zst", changed)
    (damaged,) = [each for each in check_archive(archive).problems if each.kind is ProblemKind.UNREADABLE]
    assert "checksum" in damaged.message


def test_a_partition_without_rows_must_have_had_the_same_end_in_all_snapshots(local_place: Place) -> None:
    archive = local_place.create()
    for run_id, end in (("run-0", 7), ("run-1", 7)):
        commit_run(archive, run_id, [], ends={part(0): end}, topics={TOPIC_ID: "orders"})
    assert check_archive(archive).problems == ()
    commit_run(archive, "run-2", [], ends={part(0): 9}, topics={TOPIC_ID: "orders"})
    (behind,) = check_archive(archive).problems
    assert (behind.kind, behind.first_offset, behind.end_offset) == (ProblemKind.BEHIND, 7, 9)


def test_many_objects_are_found_by_listing_and_not_one_by_one(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = local_place.create()
    table = many_segments(200, 5)
    archive.catalog.commit(table)
    listings: list[str] = []
    listed = archive.storage.list

    def counted(folder: str = "") -> Iterator[ObjectInfo]:
        listings.append(folder)
        return listed(folder)

    monkeypatch.setattr(archive.storage, "list", counted)
    monkeypatch.delattr(type(archive.storage), "head")
    report = check_archive(archive)
    assert len(report.problems) == 1000
    # Of a few folders, however many objects there are: those of rows, and where a lost commit would leave traces.
    assert len(listings) <= 8


def test_a_snapshot_of_nothing_is_no_problem(local_place: Place) -> None:
    archive = fill(local_place)
    put_snapshot(archive.storage, "orphan")
    assert check_archive(archive).exit_code == 0


def test_an_archive_in_which_no_run_has_stored_anything_is_not_whole(local_place: Place) -> None:
    report = check_archive(local_place.create())
    assert [each.kind for each in report.problems] == [ProblemKind.EMPTY]
    assert (report.verdict, report.exit_code, report.recovery_point) == ("incomplete", 3, None)


def test_offsets_that_the_cluster_had_and_no_run_has_archived_are_named(local_place: Place) -> None:
    archive = fill(local_place)
    ends = {part(0): 30, part(1): 10, part(0, EMPTY_ID): 0, part(1, EMPTY_ID): 0}
    commit_run(
        archive,
        "run-3",
        [],
        topics=NAMES,
        ends=ends,
        behind={part(0): 45, part(1): None, part(1, EMPTY_ID): 3},
        recovery_points={part(0): 1_700_000_200_000, part(1): 1_700_000_000_001, part(1, EMPTY_ID): None},
        finished_at=1_800_000_000_000,
        written_at=1_800_000_000_000,
        statistics={"command": "backup", "exit_code": 1, "findings": ["orders-0: the disk is full"]},
    )
    report = check_archive(archive)
    assert [
        (each.kind, each.topic, each.partition, each.first_offset, each.end_offset) for each in report.problems
    ] == [
        ("not archived", "empty", 1, 0, 3),
        ("not archived", "orders", 0, 30, 45),
        ("not archived", "orders", 1, 10, None),
    ]
    assert (report.verdict, report.exit_code, report.recovery_point) == ("incomplete", 3, None)
    runs = [(each.run_id, each.exit_code, each.findings) for each in report.unfinished_runs]
    assert runs == [("run-2", 3, ()), ("run-3", 1, ("orders-0: the disk is full",))]
    # Rows of a later run that was killed before its end count, and the run is named.
    later = segment(30, 45, run_id="run-4", written_at=1_800_000_000_001)
    archive.storage.put(later.path, bytes(later.bytes))
    archive.catalog.commit([later])
    again = check_archive(archive)
    assert [(each.topic, each.partition) for each in again.problems] == [("empty", 1), ("orders", 1)]
    assert (again.unfinished_runs[-1].run_id, again.unfinished_runs[-1].exit_code) == ("run-4", None)
    assert check_archive(archive, ["empty"]).problems == again.problems[:1]


@pytest.mark.parametrize(
    ("quick", "deep", "interrupted", "verdict"),
    [
        ((), None, False, "whole"),
        ((), (), False, "sound"),
        ((), (), True, "stopped"),
        ((ProblemKind.HOLE,), None, False, "incomplete"),
        ((ProblemKind.HOLE,), (), False, "incomplete"),
        ((ProblemKind.HOLE,), (), True, "incomplete"),
        ((), (ProblemKind.DAMAGED,), False, "damaged"),
        ((), (ProblemKind.DAMAGED,), True, "damaged"),
        ((ProblemKind.HOLE,), (ProblemKind.DAMAGED,), False, "damaged"),
        ((ProblemKind.MISSING,), (), False, "damaged"),
    ],
)
def test_there_is_one_verdict_for_all_that_was_looked_at(
    quick: tuple[ProblemKind, ...], deep: tuple[ProblemKind, ...] | None, interrupted: bool, verdict: str
) -> None:
    found = verdict_of((*quick, *(deep or ())), deep=deep is not None, interrupted=interrupted)
    codes = {"whole": 0, "sound": 0, "damaged": 4}
    assert (found, found.exit_code) == (verdict, codes.get(verdict, 3))


def test_portions_of_any_size_find_the_same_problems(local_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = local_place.create()
    rows = [
        segment(base, base + 9, partition=part, path=f"segments/{part}-{base}") for part in range(4) for base in (0, 20)
    ]
    commit_run(archive, "run-1", [*rows, gap(9, 15, partition=2, reason=GapReason.UNEXPLAINED)])
    for path in ("segments/1-0", "segments/3-20"):
        archive.storage.delete([path])
    whole = check_archive(archive)
    assert {each.kind for each in whole.problems} == {ProblemKind.HOLE, ProblemKind.UNEXPLAINED, ProblemKind.MISSING}
    monkeypatch.setattr(Queries.portions, "__kwdefaults__", {**(Queries.portions.__kwdefaults__ or {}), "rows_max": 1})
    assert check_archive(local_place.open()) == whole


def test_a_report_keeps_the_first_of_many_problems_and_counts_all(local_place: Place) -> None:
    archive = local_place.create()
    commit_run(archive, "run-1", [segment(base, base + 1, path=f"segments/{base}") for base in range(6)])
    archive.storage.delete([f"segments/{base}" for base in range(5)])
    taken: list[Problem] = []
    report = check_archive(archive, kept_max=2, on_problem=taken.append)
    assert [each.first_offset for each in taken] == [0, 1, 2, 3, 4]
    assert (report.problems, report.problem_counts) == (tuple(taken[:2]), {ProblemKind.MISSING: 5})
    assert report.exit_code == 4
    assert check_archive(archive, kept_max=2) == report
