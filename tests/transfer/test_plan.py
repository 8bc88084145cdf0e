"""A conversion keeps every core busy, and a partition whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.catalog.rows import Gap, Segment
from maxbrod.model import GapReason
from maxbrod.transfer.plan import ConvertPart, shares

MIB = 1 << 20


def part_of(sizes: list[int | None], partition: int = 0) -> ConvertPart:
    """A row of each size, in MiB; None is a gap."""
    rows = tuple(
        gap(partition, 10 * turn) if size is None else segment(partition, 10 * turn, size * MIB)
        for turn, size in enumerate(sizes)
    )
    return ConvertPart(topic="orders", topic_id="id", partition=partition, rows=rows)


def gap(partition: int, offset: int) -> Gap:
    return Gap(
        topic="orders",
        topic_id="id",
        partition=partition,
        base_offset=offset,
        end_offset=offset + 10,
        reason=GapReason.COMPACTED,
        run_id="run",
        written_at=0,
    )


def segment(partition: int, offset: int, size: int) -> Segment:
    return Segment(
        topic="orders",
        topic_id="id",
        partition=partition,
        base_offset=offset,
        end_offset=offset + 10,
        path="x",
        position=0,
        bytes=size,
        raw_bytes=size,
        codec="none",
        records=10,
        min_timestamp=0,
        max_timestamp=0,
        first_leader_epoch=0,
        last_leader_epoch=0,
        digest="",
        run_id="run",
        written_at=0,
    )


def test_one_large_partition_is_work_for_every_core() -> None:
    found = shares([part_of([100] * 8)], 2)
    assert [each.bytes for each in found] == [400 * MIB, 400 * MIB]


def test_a_small_partition_is_never_cut() -> None:
    assert len(shares([part_of([10, 10, 10])], 8)) == 1


def test_a_file_is_never_cut() -> None:
    assert [len(each.rows) for each in shares([part_of([1000, 1])], 4)] == [1, 1]


@given(
    sizes=st.lists(st.lists(st.none() | st.integers(0, 300), min_size=1, max_size=12), min_size=1, max_size=4),
    parallelism=st.integers(1, 8),
)
def test_cutting_never_loses_nor_repeats_a_row(sizes: list[list[int | None]], parallelism: int) -> None:
    parts = [part_of(each, number) for number, each in enumerate(sizes)]
    found = shares(parts, parallelism)
    assert all(each.rows for each in found)
    for part in parts:
        pieces = [each for each in found if each.partition == part.partition]
        assert tuple(row for each in pieces for row in each.rows) == part.rows
