"""Every question is answered as a loop over all rows would answer it, however the rows are spread over files."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from maxbrod.catalog.rows import Gap, Segment, decode_rows
from maxbrod.catalog.schema import SCHEMA, SORT_ORDER
from maxbrod.catalog.tiling import TILING_COLUMNS, find_tiling_faults
from maxbrod.model import PartitionId
from support.catalog_rows import TOPIC_ID, gap, many_segments, run, segment

if TYPE_CHECKING:
    from maxbrod.catalog.catalog import Catalog
    from support.catalog_places import Archive


def filled(archive: Archive) -> tuple[Catalog, list[Segment | Gap]]:
    """Rows of two topics, one of them in two incarnations, in many commits."""
    catalog, rows = archive.create(), list[Segment | Gap]()
    places: list[dict[str, Any]] = [
        {},
        {"partition": 1},
        {"topic_id": "YYYYYYYYYYYYYYYYYYYYYY"},
        {"topic": "it's; DROP", "topic_id": "ZZZZZZZZZZZZZZZZZZZZZZ", "partition": 1},
    ]
    for base in range(0, 100, 10):
        for place in places:
            times = {"min_timestamp": -base, "max_timestamp": 1000 - base} if base % 20 else {}
            fresh: list[Segment | Gap] = [segment(base, base + 9, **place, **times), gap(base + 9, base + 10, **place)]
            if base == 50:
                fresh[0] = segment(base, base + 9, **place, min_timestamp=None, max_timestamp=None)
            rows += fresh
            catalog.commit([*fresh, run(f"run-{base}")])
    return catalog, rows


def key(row: Segment | Gap) -> tuple[str, int, int]:
    return row.topic_id, row.partition, row.base_offset


def in_time(row: Segment | Gap, first: int, last: int) -> bool:
    if isinstance(row, Gap) or row.min_timestamp is None or row.max_timestamp is None:
        return True
    # The lowest timestamp of a row may be too high, so that it rules nothing out.
    return row.max_timestamp >= first and first <= last


def test_rows_are_found_by_topic_incarnation_partition_offset_and_time(archive: Archive) -> None:
    catalog, rows = filled(archive)
    questions: list[tuple[dict[str, Any], Any]] = [
        ({}, lambda _: True),
        ({"topic": "orders"}, lambda row: row.topic == "orders"),
        ({"topic": "it's; DROP", "partition": 1}, lambda row: row.topic == "it's; DROP"),
        ({"topic": "nobody"}, lambda _: False),
        ({"topic_id": TOPIC_ID, "partition": 0}, lambda row: row.topic_id == TOPIC_ID and row.partition == 0),
        ({"offsets": (19, 20)}, lambda row: row.base_offset < 20 and row.end_offset > 19),
        ({"offsets": (20, 20)}, lambda _: False),
        ({"partition": 0, "offsets": (15, 42)}, lambda r: not r.partition and r.base_offset < 42 and r.end_offset > 15),
        ({"timestamps": (-40, -40)}, lambda row: in_time(row, -40, -40)),
        ({"timestamps": (930, 2**62)}, lambda row: in_time(row, 930, 2**62)),
    ]
    for question, belongs in questions:
        expected = sorted((row for row in rows if belongs(row)), key=key)
        assert decode_rows(catalog.rows(**question)) == expected, question


def test_as_of_a_run_later_rows_and_partitions_do_not_exist(folder: Archive) -> None:
    catalog, rows = filled(folder)
    first, second = PartitionId(topic_id=TOPIC_ID, partition=0), PartitionId(topic_id=TOPIC_ID, partition=1)
    table = catalog.rows(as_of={first: 35, second: 0})
    expected = [row for row in rows if key(row)[:2] == (TOPIC_ID, 0) and row.base_offset < 35]
    assert decode_rows(table) == expected
    assert decode_rows(catalog.rows(as_of={first: 35}, offsets=(30, 90))) == expected[-1:]
    assert catalog.rows(as_of={}).num_rows == 0


def test_only_the_columns_asked_for_come_back(folder: Archive) -> None:
    catalog, _ = filled(folder)
    assert catalog.rows(columns=["path"]).column_names == ["path"]
    assert find_tiling_faults(catalog.rows(columns=TILING_COLUMNS)).complete


def test_a_stranger_reads_the_catalog_with_public_tools_alone(archive: Archive) -> None:
    _, rows = filled(archive)
    table = archive.table()
    assert table.metadata().configuration["maxbrod.format"] == "1.2"
    condition = (pc.field("topic") == "orders") & (pc.field("partition") == 1) & (pc.field("end_offset") > 50)
    found = table.to_pyarrow_dataset().to_table(filter=condition).sort_by("base_offset")
    expected = [row for row in rows if row.topic == "orders" and row.partition == 1 and row.end_offset > 50]
    assert found["base_offset"].to_pylist() == [row.base_offset for row in expected]
    assert found["kind"].to_pylist() == ["data" if isinstance(row, Segment) else "gap" for row in expected]
    scanned = pa.table(table.scan(columns=["run_id"], predicate="kind = 'run'").read_all())
    assert scanned.num_rows == 40
    # The statistics of every file are true: delta-rs skips files by them.
    for row in rows[::7]:
        predicate = f"topic_id = '{row.topic_id}' AND base_offset = {row.base_offset} AND partition = {row.partition}"
        assert pa.table(table.scan(columns=["end_offset"], predicate=predicate).read_all()).num_rows == 1


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_million_rows_are_committed_and_summed_up_in_seconds(folder: Archive) -> None:
    catalog, process = folder.create(), psutil.Process()
    table = many_segments(10_000, 100)
    before = process.memory_info().rss
    clock = [time.monotonic()]
    catalog.commit(table)
    clock.append(time.monotonic())
    positions = folder.open().positions()
    clock.append(time.monotonic())
    found = catalog.rows(topic="topic-00042", partition=7)
    clock.append(time.monotonic())
    complete = find_tiling_faults(catalog.rows(columns=TILING_COLUMNS)).complete
    clock.append(time.monotonic())
    grown = process.memory_info().rss - before
    steps = [f"{after - start:.2f} s" for start, after in pairwise(clock)]
    size = sum(file.bytes for file in catalog._files().active)
    print(f"1,000,000 rows, {size >> 20} MiB: commit, positions, one partition, tiling {steps}; {grown >> 20} MiB more")
    assert complete
    assert len(positions) == 10_000
    assert {position.end_offset for position in positions.values()} == {100_000}
    assert found.num_rows == 100
    assert grown < 2 << 30


@pytest.mark.parametrize("rows_max", [1, 7, 25, 1000])
def test_portions_have_all_rows_in_order_and_whole_partitions(archive: Archive, rows_max: int) -> None:
    catalog, rows = filled(archive)
    portions = [
        [key(row) for row in decode_rows(each) if isinstance(row, Segment | Gap)]
        for each in catalog.portions(rows_max=rows_max)
    ]
    assert [each for portion in portions for each in portion] == sorted(map(key, rows))
    places = [{each[:2] for each in portion} for portion in portions]
    assert sum(map(len, places)) == 4, "no partition is in two portions"
    assert all(len(portion) <= rows_max or len(found) == 1 for portion, found in zip(portions, places, strict=True))
    chosen = catalog.portions(["topic_id"], topic_ids=[TOPIC_ID], rows_max=rows_max)
    assert {name for each in chosen for name in each["topic_id"].to_pylist()} == {TOPIC_ID}


@pytest.mark.parametrize("rows_max", [1, 7, 1000])
def test_portions_come_with_the_replaced_rows_of_their_partitions(archive: Archive, rows_max: int) -> None:
    catalog, rows = filled(archive)
    gone = [row for row in rows if isinstance(row, Segment)][::3]
    catalog.commit([replace(row, path=f"again/{number}") for number, row in enumerate(gone)], retired=gone)
    portions = list(catalog.portions_with_replaced(SCHEMA.names, rows_max=rows_max))
    live, dead = (pa.concat_tables(each) for each in zip(*portions, strict=True))
    assert live == catalog.rows()
    assert dead == catalog.replaced_rows().sort_by(SORT_ORDER)
    places = [{*live["partition"].to_pylist(), *dead["partition"].to_pylist()} for live, dead in portions]
    assert all(
        one.num_rows + two.num_rows <= rows_max or len(place) == 1
        for (one, two), place in zip(portions, places, strict=True)
    )


def test_portions_as_of_a_run_are_the_rows_as_of_it(archive: Archive) -> None:
    catalog, _ = filled(archive)
    ends = {PartitionId(topic_id=TOPIC_ID, partition=0): 35, PartitionId(topic_id="Z" * 22, partition=1): 10}
    whole = catalog.rows(as_of=ends)
    assert pa.concat_tables(catalog.portions(as_of=ends, rows_max=3)) == whole
    names = catalog.topics(as_of=ends)["topic_id"].to_pylist()
    assert names == sorted({each.topic_id for each in ends})


def test_topics_are_named_once_with_their_first_time(archive: Archive) -> None:
    catalog, rows = filled(archive)
    expected = {
        (row.topic_id, row.topic, min(each.written_at for each in rows if each.topic_id == row.topic_id))
        for row in rows
    }
    found = catalog.topics().to_pylist()
    assert [(each["topic_id"], each["topic"], each["written_at"]) for each in found] == sorted(expected)


def test_a_set_of_paths_has_every_path_that_a_row_names(archive: Archive) -> None:
    catalog, _ = filled(archive)
    found = catalog.path_set()
    assert all(path in found for path in catalog.paths())
    assert "segments/another" not in found


def test_the_rows_of_one_topic_are_read_from_the_row_groups_that_have_it(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maxbrod.catalog.files._GROUP_ROWS", 10)
    catalog = archive.create()
    topics = [f"{number:022}" for number in range(20)]
    catalog.commit([segment(base, base + 1, topic_id=each) for each in topics for base in range(10)])
    files = catalog._files()
    (fragment,) = [files._fragment(each) for each in files.active]
    chosen = pc.field("topic_id").isin(pa.array([topics[3], topics[17]]))
    assert len(fragment.subset(filter=chosen).row_groups) == 2
    assert catalog.rows(topic_ids=[topics[3], topics[17]]).num_rows == 20


def test_a_row_whose_timestamps_contradict_each_other_is_found_at_any_time(folder: Archive) -> None:
    catalog = folder.create()
    catalog.commit([segment(0, 9, min_timestamp=50, max_timestamp=20, min_timestamp_exact=True), run("run-1")])
    for times in ((90, 99), (30, 40), (0, 10)):
        assert catalog.rows(timestamps=times).num_rows == 1, times
