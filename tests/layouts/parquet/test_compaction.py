"""Small segments become large ones of the next level; no record is lost or doubled, whatever is cut short."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.layouts.foreign import CompactionLimits
from maxbrod.layouts.parquet.survey import LAYOUT
from support.parquet_trees import compact, local, read, rows, write
from support.samples import samples_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from maxbrod.storage.interface import Storage

NOW = 1 << 42
"""Long after the tests' objects were written."""
ANY = CompactionLimits(segments_min=2, bytes_min=1)


def levels(storage: Storage) -> list[tuple[int, int, int]]:
    """Level, first and last offset of every object."""
    parts = [info.path.rsplit("/", 2)[1:] for info in storage.list("data")]
    return sorted((int(level), *(int(each) for each in name.split("-"))) for level, name in parts)  # type: ignore[misc]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    opened = local(tmp_path)
    write(opened, [rows(40)], segment_records_max=10)
    return opened


def test_segments_become_one_of_the_next_level_with_the_same_records(storage: Storage) -> None:
    before = read(storage, LAYOUT.survey(storage).segments)
    (merged,) = compact(storage, LAYOUT.survey(storage), ANY, now_ms=NOW)
    assert (merged.base_offset, merged.end_offset, merged.records, merged.details["level"]) == (0, 40, 40, 1)
    assert levels(storage) == [(1, 0, 39)]
    survey = LAYOUT.survey(storage)
    assert read(storage, survey.segments).equals(before)
    assert not list(LAYOUT.check(storage, survey, deep=True))
    # And on: what came later goes to level 1, then both to level 2.
    write(storage, [rows(20, start=40)], segment_records_max=10)
    compact(storage, LAYOUT.survey(storage), ANY, now_ms=NOW)
    compact(storage, LAYOUT.survey(storage), CompactionLimits(level_max=1, segments_min=2, bytes_min=1), now_ms=NOW)
    assert levels(storage) == [(2, 0, 59)]
    assert read(storage, LAYOUT.survey(storage).segments).equals(pa.Table.from_batches([rows(60)]))


def test_thresholds_decide_what_is_merged(storage: Storage) -> None:
    survey = LAYOUT.survey(storage)
    assert not compact(storage, survey, now_ms=NOW)  # the tool's own: ten segments, 1 GiB
    assert not compact(storage, survey, CompactionLimits(segments_min=5, bytes_min=1), now_ms=NOW)
    assert not compact(storage, survey, CompactionLimits(segments_min=2, bytes_min=1 << 20), now_ms=NOW)
    assert not compact(storage, survey, ANY, now_ms=0)  # too young
    pairs = CompactionLimits(segments_min=2, segments_max=2, bytes_min=1, delete=False)
    assert len(compact(storage, survey, pairs, now_ms=NOW)) == 2
    assert levels(storage) == [(0, 0, 9), (0, 10, 19), (0, 20, 29), (0, 30, 39), (1, 0, 19), (1, 20, 39)]
    wrongs: list[dict[str, Any]] = [{"segments_min": 1}, {"level_min": 1}, {"bytes_min": 0}, {"segments_max": 3}]
    for wrong in wrongs:
        with pytest.raises(UsageError):
            CompactionLimits(**wrong)


def test_a_hole_between_segments_is_never_closed(storage: Storage) -> None:
    write(storage, [rows(20, start=50)], segment_records_max=10)
    merged = compact(storage, LAYOUT.survey(storage), ANY, now_ms=NOW)
    assert [(each.base_offset, each.end_offset) for each in merged] == [(0, 40), (50, 70)]
    # Whoever wrote it saw that there is nothing in between. Without his word the hole is told.
    assert not LAYOUT.survey(storage).gaps
    storage.delete(["maxbrod.json"])
    (gap,) = LAYOUT.survey(storage).gaps
    assert (gap.base_offset, gap.end_offset, gap.reason) == (40, 50, "unexplained")


def the_tool_compacts(storage: Storage) -> None:
    """Its own compactor takes the end of the levels above for its progress, and deletes all that ends before it."""
    reached = max((last for level, _, last in levels(storage) if level > 0), default=-1)
    names = {info.path: info.path.rsplit("/", 2)[1:] for info in storage.list("data")}
    storage.delete([path for path, (level, name) in names.items() if level == "0" and int(name[21:]) < reached + 1])


@pytest.fixture
def late(storage: Storage) -> tuple[str, bytes]:
    """The third of six segments, which is still on its way; the tool's trees have no list of offsets."""
    write(storage, [rows(20, start=40)], segment_records_max=10)
    (path,) = (info.path for info in storage.list("data") if info.path.endswith(f"{20:020d}-{29:020d}"))
    data = bytes(storage.get(path))
    storage.delete([path, "maxbrod.json"])
    return path, data


def test_nothing_behind_a_late_segment_is_lifted_beside_the_tool(storage: Storage, late: tuple[str, bytes]) -> None:
    compact(storage, LAYOUT.survey(storage), ANY, now_ms=NOW)
    assert levels(storage) == [(0, 30, 39), (0, 40, 49), (0, 50, 59), (1, 0, 19)]
    storage.put(*late)
    the_tool_compacts(storage)
    assert read(storage, LAYOUT.survey(storage).segments).equals(pa.Table.from_batches([rows(60)]))
    compact(storage, LAYOUT.survey(storage), ANY, now_ms=NOW)
    assert levels(storage) == [(1, 0, 19), (1, 20, 59)], "once it has come, all goes on"


@pytest.mark.parametrize(("young", "lifted"), [(0, []), (10, []), (20, [(1, 0, 19)]), (50, [(1, 0, 49)])])
def test_nothing_behind_a_young_segment_is_lifted_beside_the_tool(
    young: int, lifted: list[tuple[int, int, int]], storage: Storage, tmp_path: Path
) -> None:
    write(storage, [rows(20, start=40)], segment_records_max=10)
    (path,) = tmp_path.rglob(f"{young:020d}-*")
    os.utime(path, (NOW / 1000, NOW / 1000))
    compact(storage, LAYOUT.survey(storage), ANY, now_ms=NOW)
    assert [each for each in levels(storage) if each[0] == 1] == lifted
    os.utime(path, (0, 0))
    the_tool_compacts(storage)
    assert read(storage, LAYOUT.survey(storage).segments).equals(pa.Table.from_batches([rows(60)]))


def test_nothing_behind_segments_that_are_too_few_is_lifted_beside_the_tool(storage: Storage) -> None:
    """Not even behind a hole that is explained: the end of the level above would be beyond both."""
    write(storage, [rows(100, start=50)], segment_records_max=10)
    compact(storage, LAYOUT.survey(storage), CompactionLimits(segments_min=5, bytes_min=1), now_ms=NOW)
    assert {level for level, _, _ in levels(storage)} == {0}
    assert compact(storage, LAYOUT.survey(storage), ANY, now_ms=NOW)
    assert levels(storage) == [(1, 0, 39), (1, 50, 149)]


def test_what_an_earlier_merge_has_stepped_over_is_merged_at_once(storage: Storage, late: tuple[str, bytes]) -> None:
    """The tool would delete it at its next compaction: neither number nor size is waited for."""
    compact(storage, LAYOUT.survey(storage), dataclasses.replace(ANY, step_over=True), now_ms=NOW)
    assert levels(storage) == [(1, 0, 19), (1, 30, 59)]
    storage.put(*late)
    compact(storage, LAYOUT.survey(storage), CompactionLimits(), now_ms=NOW)
    the_tool_compacts(storage)
    assert read(storage, LAYOUT.survey(storage).segments).equals(pa.Table.from_batches([rows(60)]))


def test_a_compaction_that_died_before_it_deleted_is_finished_by_the_next(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(paths: Iterable[str]) -> None:
        raise OSError(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "delete", dying)
        with pytest.raises(OSError, match="data"):
            compact(storage, LAYOUT.survey(storage), ANY, now_ms=NOW)
    assert read(storage, LAYOUT.survey(storage).segments).equals(pa.Table.from_batches([rows(40)]))
    assert not compact(storage, LAYOUT.survey(storage), ANY, now_ms=NOW)
    assert levels(storage) == [(1, 0, 39)]


def test_damaged_segments_are_never_merged_and_nothing_is_deleted(storage: Storage) -> None:
    survey = LAYOUT.survey(storage)
    path = survey.segments[2].path
    damaged = bytearray(storage.get(path))
    damaged[30] ^= 0xFF
    storage.replace(path, damaged)
    with pytest.raises(CorruptDataError):
        compact(storage, survey, ANY, now_ms=NOW)
    assert len(levels(storage)) == 4
    # Nor is anything deleted for the sake of a segment above that does not open.
    storage.put(survey.segments[0].path.replace("/107/0/", "/107/1/"), b"no parquet at all")
    compact(storage, survey, CompactionLimits(segments_min=9, bytes_min=1), now_ms=NOW)
    assert len(levels(storage)) == 5


def test_times_finer_than_a_millisecond_survive_a_compaction(storage: Storage) -> None:
    """Kafka has none, but what the tool was given stays as it is."""
    first = LAYOUT.survey(storage).segments[0]
    file = pq.ParquetFile(pa.BufferReader(bytes(storage.get(first.path))))
    times = pa.array([1_600_000_000_123_456_789 + index for index in range(10)], pa.int64())
    table = file.read().set_column(3, file.schema_arrow.field("timestamp"), times)
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(file.metadata.metadata), sink)
    storage.replace(first.path, sink.getvalue().to_pybytes())
    (merged,) = compact(storage, LAYOUT.survey(storage), ANY, now_ms=NOW)
    found = pq.ParquetFile(pa.BufferReader(bytes(storage.get(merged.path)))).read()
    assert found.column("timestamp").to_pylist()[:10] == times.to_pylist()
    assert read(storage, [merged]).column("timestamp_ms").to_pylist()[:10] == [1_600_000_000_123] * 10


def test_our_compaction_of_the_tools_segments_equals_its_own(tmp_path: Path) -> None:
    bucket, copy = local(samples_of("crowdstrike") / "s3" / "bucket"), local(tmp_path)
    theirs = [each for each in LAYOUT.survey(bucket).segments if each.details["level"] == 1]
    for folder in ("sensor.events/107/0", "overlap/0/0"):
        for info in bucket.list(f"data/us-east-1/{folder}"):
            copy.put(info.path, bucket.get(info.path))
    ours = compact(copy, LAYOUT.survey(copy), ANY, now_ms=NOW)
    assert [each.path for each in ours] == [each.path for each in theirs]
    assert len(theirs) == 2
    for mine, other in zip(ours, theirs, strict=True):
        assert read(copy, [mine]).equals(read(bucket, [other]))
