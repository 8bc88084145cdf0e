"""Where the partitions of a mount begin and end, and how many rows of the catalog are read to know it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.catalog import files, validity
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Gap
from maxbrod.model import GapReason
from maxbrod.mount import view
from maxbrod.mount.ranges import Ranges, scope_of
from maxbrod.mount.view import MountedArchive, view_of
from maxbrod_bench.large_archive import write_archive
from maxbrod_bench.planning import SEGMENT_OFFSETS, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

PARTITIONS: Final = 300
RUNS: Final = 4
TOPIC: Final = "topic-00001"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Three topics of 100 partitions, each with a row of each of four runs."""
    with patch.object(files, "_GROUP_ROWS", 64):
        write_archive(str(tmp_path), partitions=PARTITIONS, segments=PARTITIONS * RUNS)
    return str(tmp_path)


@pytest.fixture
def read_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows about offsets in each piece that was read of a catalog."""
    found: list[int] = []
    check = validity.find_fault

    def counted(table: pa.Table, **options: Any) -> Any:
        found.append(sum(kind != "run" for kind in table["kind"].to_pylist()))
        return check(table, **options)

    monkeypatch.setattr(files, "find_fault", counted)
    return found


def test_a_mount_reads_no_rows_but_those_of_topics_that_are_asked_for(
    url: str, read_rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "_ROWS_AT_ONCE", PARTITIONS)  # the archive counts as large
    mounted = MountedArchive(0, open_archive(url), as_of=None, until_ms=None)
    cluster = view_of([mounted], cluster_id="mount")
    assert len(cluster.topics) == 3
    assert mounted.range_of(TOPIC, 42) == (0, RUNS * SEGMENT_OFFSETS)
    assert sum(read_rows) == 0

    logs = cluster.topics[TOPIC].load()
    assert len(logs) == 100
    assert sum(read_rows) == 100 * RUNS


def test_rows_are_divided_by_partition_only_in_topics_that_are_asked_for(url: str) -> None:
    mounted = MountedArchive(0, open_archive(url), as_of=None, until_ms=None)
    cluster = view_of([mounted], cluster_id="mount")
    logs = cluster.topics[TOPIC].load()
    assert {len(log) for log in logs.values()} == {RUNS}
    assert [(log.start, log.end) for log in logs.values()] == [(0, RUNS * SEGMENT_OFFSETS)] * 100
    assert mounted._divided.keys() == {TOPIC}


def test_rows_that_were_committed_after_the_last_snapshot_are_shown(url: str) -> None:
    catalog = Catalog.open(open_archive(url).storage)
    catalog.commit(rows_of(RUNS, PARTITIONS))
    scope = scope_of(open_archive(url), None)
    assert scope.ranges.of(TOPIC, 42) == (0, (RUNS + 1) * SEGMENT_OFFSETS)


def test_a_snapshot_and_the_rows_that_it_describes_say_the_same(url: str) -> None:
    archive = open_archive(url)
    described = scope_of(archive, None)
    assert isinstance(archive.catalog, Catalog)
    archive.catalog.raise_fence(1)  # a commit that changes no row
    counted = scope_of(open_archive(url), None)
    assert (described.names, described.newest) == (counted.names, counted.newest)
    assert (described.ranges.firsts, described.ranges.ends) == (counted.ranges.firsts, counted.ranges.ends)


def test_as_of_a_run_partitions_end_where_it_left_them(url: str) -> None:
    archive = open_archive(url)
    run = archive.catalog.runs()[1].run_id
    scope = scope_of(archive, run)
    assert scope.moment.as_of == run
    assert scope.ranges.of(TOPIC, 42) == (0, 2 * SEGMENT_OFFSETS)


def test_a_partition_with_nothing_but_gaps_begins_at_its_end(url: str) -> None:
    catalog = Catalog.open(open_archive(url).storage)
    gap = Gap(
        topic="gone",
        topic_id="gone-1",
        partition=2,
        base_offset=5,
        end_offset=9,
        reason=GapReason.RETENTION,
        run_id="gaps",
        written_at=1 << 50,
    )
    catalog.commit([gap])
    scope = scope_of(open_archive(url), None)
    assert scope.ranges.of(gap.topic_id, 2) == (9, 9)
    assert scope.ranges.of(gap.topic_id, 0) == scope.ranges.of(gap.topic_id, 7) == (0, 0)


def test_batches_without_a_leader_epoch_are_no_gaps() -> None:
    """A snapshot has the same number for both: then only rows can tell."""
    ranges = Ranges(firsts={"id": [3, 4]}, ends={"id": [9, 9]}, unsure={"id": frozenset({1})})
    assert ranges.of("id", 1) == (4, 9)
    assert [ranges.is_unsure("id", number) for number in (0, 1)] == [False, True]


def test_a_held_end_is_not_passed(url: str) -> None:
    held = scope_of(open_archive(url), None).ranges
    Catalog.open(open_archive(url).storage).commit(rows_of(RUNS, PARTITIONS))
    assert scope_of(open_archive(url), None, held).ranges.of(TOPIC, 42) == (0, RUNS * SEGMENT_OFFSETS)
