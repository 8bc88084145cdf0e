"""Tiling finds exactly the offsets that no row covers and those that two cover: against a model that counts them."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.catalog.rows import Row, encode_rows
from maxbrod.catalog.schema import SCHEMA
from maxbrod.catalog.tiling import Overlap, Tiling, UncoveredRange, find_tiling_faults
from maxbrod.model import PartitionId
from support.catalog_rows import INT64_MAX, TOPIC_ID, gap, many_segments, run, segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


PARTITION = PartitionId(topic_id=TOPIC_ID, partition=0)

_ids = st.builds(PartitionId, topic_id=st.sampled_from(["b", "a", "ü"]), partition=st.integers(0, 2))
_spans = st.tuples(st.integers(0, 20), st.integers(1, 8))
_expected = st.dictionaries(_ids, st.tuples(st.integers(0, 25), st.integers(0, 25)), max_size=4)


def tiling_of(*rows: Row, expected: Mapping[PartitionId, tuple[int, int]] | None = None) -> Tiling:
    return find_tiling_faults(encode_rows(rows), expected)


@given(st.lists(st.tuples(_ids, _spans), max_size=14), _expected, st.sampled_from([0, 2**62, INT64_MAX - 40]))
def test_holes_and_overlaps_are_those_that_counting_every_offset_finds(
    drawn: list[tuple[PartitionId, tuple[int, int]]],
    expected: dict[PartitionId, tuple[int, int]],
    shift: int,
) -> None:
    rows = [
        gap(shift + base, shift + base + length, topic_id=each.topic_id, partition=each.partition)
        for each, (base, length) in drawn
    ]
    wanted = {each: (shift + first, shift + end) for each, (first, end) in expected.items()}
    # A chunk a row, and a run between them, must make no difference.
    table = pa.concat_tables([SCHEMA.empty_table(), *(encode_rows([row]) for row in rows), encode_rows([run("r")])])
    tiling = find_tiling_faults(table, wanted)

    counted = {each: Counter[int]() for each in {*(each for each, _ in drawn), *wanted}}
    for row in rows:
        counted[PartitionId(topic_id=row.topic_id, partition=row.partition)].update(
            range(row.base_offset, row.end_offset)
        )
    for each, count in counted.items():
        first, end = wanted.get(each, (min(count, default=0), max(count, default=0)))
        holes = [offset for offset in range(first, end) if not count[offset]]
        assert offsets_of(tiling.holes, each) == holes
        assert sorted(set(offsets_of(tiling.overlaps, each))) == sorted(x for x in count if count[x] > 1)
    assert tiling.complete == (not tiling.holes and not tiling.overlaps)
    for hole in tiling.holes:
        if hole.before is not None:
            assert rows[hole.before].end_offset <= hole.first_offset
        if hole.after is not None:
            assert rows[hole.after].base_offset >= hole.end_offset
    for overlap in tiling.overlaps:
        for number in overlap.rows:
            assert rows[number].base_offset <= overlap.first_offset < overlap.end_offset <= rows[number].end_offset


def offsets_of(faults: Iterable[UncoveredRange | Overlap], partition: PartitionId) -> list[int]:
    return [
        offset
        for fault in faults
        if fault.partition == partition
        for offset in range(fault.first_offset, fault.end_offset)
    ]


def test_rows_that_tile_are_complete_in_any_order_and_of_any_kind() -> None:
    rows: list[Row] = [segment(10, 20), gap(0, 10), run("r"), segment(20, INT64_MAX)]
    assert tiling_of(*rows).complete
    assert tiling_of(*rows, expected={PARTITION: (0, INT64_MAX)}).complete


def test_a_hole_names_its_offsets_and_its_neighbours() -> None:
    hole = UncoveredRange(partition=PARTITION, first_offset=10, end_offset=11, before=1, after=0)
    assert tiling_of(segment(11, 20), segment(0, 10)) == Tiling(holes=(hole,), overlaps=())


def test_an_overlap_with_a_row_far_before_is_found() -> None:
    overlap = Overlap(partition=PARTITION, first_offset=30, end_offset=35, rows=(0, 2))
    tiling = tiling_of(segment(0, 35), segment(5, 6), segment(30, 40))
    assert tiling.overlaps[1] == overlap
    assert not tiling.holes


def test_the_same_row_twice_is_an_overlap() -> None:
    assert tiling_of(segment(0, 5), segment(0, 5)).overlaps[0].rows in {(0, 1), (1, 0)}


def test_another_incarnation_of_a_topic_is_another_partition() -> None:
    assert tiling_of(segment(0, 5), segment(3, 9, topic_id="another")).complete


def test_what_is_expected_and_wholly_absent_is_a_hole() -> None:
    expected = {PARTITION: (3, 9), PartitionId(topic_id="empty", partition=1): (4, 4)}
    hole = UncoveredRange(partition=PARTITION, first_offset=3, end_offset=9, before=None, after=None)
    assert tiling_of(expected=expected).holes == (hole,)


def test_a_million_rows_take_seconds_and_little_memory() -> None:
    table = many_segments(10_000, 100)
    assert table.num_rows == 1_000_000
    before, started = psutil.Process().memory_info().rss, time.monotonic()
    assert find_tiling_faults(table).complete
    took, grown = time.monotonic() - started, psutil.Process().memory_info().rss - before
    print(f"tiling of 1,000,000 rows: {took:.1f} s, {grown >> 20} MiB more")
    assert grown < 2 << 30
    missing = pa.concat_tables([table.slice(0, 500_000), table.slice(500_001)])
    assert len(find_tiling_faults(missing).holes) == 1
