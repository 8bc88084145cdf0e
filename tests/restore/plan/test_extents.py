"""The order in which partitions are shared out: part of the plan, near to the order of time, and never too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.model import TopicPartition
from maxbrod.restore.plan.request import OffsetRange, RestoreRequest
from maxbrod.restore.repartition import extents
from maxbrod.restore.repartition.extents import SourceExtent, interleave
from support.catalog_rows import gap, segment
from support.restore_plans import plan, topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.catalog.rows import Gap, Segment
    from maxbrod.restore.plan.plan import TopicPlan

MIB = 1 << 20


@st.composite
def archives(draw: st.DrawFn) -> list[Segment | Gap]:
    rows: list[Segment | Gap] = []
    for partition in range(draw(st.integers(1, 4))):
        offset = draw(st.integers(0, 100))
        for _ in range(draw(st.integers(0, 5))):
            length = draw(st.integers(1, 50))
            low = draw(st.integers(-(2**62), 2**62) | st.integers(0, 100))
            high = max(low, draw(st.integers(-(2**62), 2**62) | st.integers(0, 100)))
            undated = draw(st.booleans())
            row = segment(
                offset,
                offset + length,
                partition=partition,
                raw_bytes=draw(st.integers(1, 40 * MIB)),
                min_timestamp=None if undated else low,
                max_timestamp=None if undated else high,
            )
            rows.append(gap(offset, offset + length, partition=partition) if draw(st.integers(0, 4)) == 0 else row)
            offset += length
    return rows


def planned(rows: Sequence[Segment | Gap], **request: Any) -> TopicPlan:
    (made,) = plan(rows, RestoreRequest(partition_count=7, **request), archived=topic(partitions=4)).topics
    return made


@settings(max_examples=200, deadline=None)
@given(archives(), st.sampled_from([1, 3, 10, 4096]), st.sampled_from([1, 30, 10**6]), st.sampled_from([0, 2, 16]))
def test_extents_tile_each_partition_in_order_whatever_the_archive_is_like(
    rows: list[Segment | Gap], most: int, shares_most: int, open_sources: int
) -> None:
    if not rows:
        return
    with (
        patch.object(extents, "EXTENTS_MAX", most),
        patch.object(extents, "SHARES_MAX", shares_most),
        patch.object(extents, "OPEN_SOURCES_MAX", open_sources),
    ):
        made = planned(rows)
    assert len(made.blocks) <= max(min(most, shares_most // 7), len(made.partitions))
    for source in (each.source for each in made.partitions):
        mine = [each for each in made.blocks if each.partition == source.partition]
        edges = [source.asked_first, *(each.end for each in mine)]
        assert [each.first for each in mine] == edges[:-1]
        assert all(each.first < each.end for each in mine)
        assert edges[-1] == source.asked_end or not source.rows
        if len(made.partitions) > open_sources:
            ends = {row.end_offset for row in rows if row.partition == source.partition} | {source.asked_end}
            assert {each.end for each in mine} <= ends, "where many are read, none is left half read"


def test_large_rows_are_mixed_as_their_times_are() -> None:
    rows = [
        segment(0, 100, partition=partition, raw_bytes=8 * MIB, min_timestamp=first, max_timestamp=first + 100)
        for partition, first in ((0, 0), (1, 10), (2, 500))
    ]
    assert [(each.partition, each.first, each.end) for each in planned(rows).blocks] == [
        (0, 0, 50),
        (1, 0, 50),
        (0, 50, 100),
        (1, 50, 100),
        (2, 0, 50),
        (2, 50, 100),
    ]


def test_only_what_is_asked_for_is_read() -> None:
    rows = [segment(first, first + 10) for first in range(0, 50, 10)]
    ranged = OffsetRange(where=TopicPartition(topic="orders", partition=0), first=15, end=32)
    assert planned(rows, ranges=(ranged,)).blocks == (
        SourceExtent(partition=0, first=15, end=20),
        SourceExtent(partition=0, first=20, end=30),
        SourceExtent(partition=0, first=30, end=32),
    )


def test_a_topic_that_keeps_its_partitions_needs_no_order() -> None:
    (made,) = plan([segment(0, 10)], RestoreRequest(partition_count=1)).topics
    assert made.blocks == ()


drawn_extents = st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(-5, 5)), max_size=20)


@given(drawn_extents)
def test_interleaving_never_changes_the_order_within_a_partition(drawn: list[tuple[int, int | None]]) -> None:
    rows = [(partition, number, time) for number, (partition, time) in enumerate(drawn)]
    order = interleave(rows)
    assert sorted(order) == list(range(len(rows)))
    for partition in range(4):
        mine = [place for place in order if rows[place][0] == partition]
        assert mine == sorted(mine)


def test_partitions_are_interleaved_in_the_order_of_time() -> None:
    rows = [(0, 0, 10), (0, 5, 30), (1, 0, 20), (1, 5, 15), (1, 9, None)]
    assert interleave(rows) == [0, 2, 3, 4, 1]
