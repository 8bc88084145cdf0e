"""A lost segment is reported in layouts whose tools list no segments; if it cannot be detected, that is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.archive.surveyed import rows_of
from maxbrod.catalog.rows import Gap
from maxbrod.layouts.foreign import ClusterFacts, ForeignGap, ForeignSegment, Survey, WriteOptions
from maxbrod.layouts.registry import layout_of
from maxbrod.layouts.tree import Coverage, decode_coverage, encode_coverage, extended, judge
from maxbrod.model import GapReason, TopicPartition
from support.given_records import Given, batch
from support.storages import fresh_storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.storage.interface import Storage

WHERE = TopicPartition(topic="orders", partition=3)
LAYOUTS = ("avro", "parquet")
FOUR_A_SEGMENT = WriteOptions(segment_records_max=4)


def store(storage: Storage, layout: str, *runs: Sequence[int], gaps: tuple[ForeignGap, ...] = ()) -> None:
    """Records of these offsets, four a segment; one survey, write and publishing a run."""
    for offsets in runs:
        found = layout_of(layout).survey(storage)
        records = [batch([Given(offset=offset) for offset in offsets])]
        written = layout_of(layout).write(storage, WHERE, records, FOUR_A_SEGMENT, survey=found)
        layout_of(layout).publish(storage, found, written, FOUR_A_SEGMENT, ClusterFacts(gaps=gaps))


def lose(storage: Storage, layout: str, *which: int) -> None:
    paths = [each.path for each in layout_of(layout).survey(storage).segments]
    storage.delete([paths[index] for index in which])


def lost(survey: Survey) -> list[tuple[int, int]]:
    rows = [row for row in rows_of(survey) if isinstance(row, Gap)]
    return [(row.base_offset, row.end_offset) for row in rows if row.reason is GapReason.CORRUPT]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("which", "offsets"),
    [([1], [(14, 18)]), ([0], [(10, 14)]), ([2], [(18, 22)]), ([0, 2], [(10, 14), (18, 22)]), ([0, 1, 2], [(10, 22)])],
)
def test_a_lost_segment_is_damage_wherever_it_stood(
    layout: str, which: list[int], offsets: list[tuple[int, int]]
) -> None:
    with fresh_storage() as storage:
        store(storage, layout, range(10, 22))
        assert layout_of(layout).survey(storage).doubts == ()
        lose(storage, layout, *which)
        assert layout_of(layout).detect(storage)
        survey = layout_of(layout).survey(storage)
        faults = list(layout_of(layout).check(storage, survey, deep=True))
        assert [(fault.offset, fault.fatal) for fault in faults] == [(base, True) for base, _ in offsets]
        assert all(fault.path.split("/")[-2:] in (["orders", "3"], ["orders", "partition=3"]) for fault in faults)
        assert lost(survey) == offsets
        assert survey.positions == {WHERE: 22}, "nothing is written before the previous end"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_holes_that_the_writer_saw_are_no_alarm(layout: str) -> None:
    """Holes by transaction markers and compaction, between the segments of a run and between two runs."""
    with fresh_storage() as storage:
        store(storage, layout, [0, 1, 2, 3, 9, 10, 11, 12], [40, 41, 42, 43])
        survey = layout_of(layout).survey(storage)
        assert (survey.faults, survey.gaps, survey.doubts) == ((), (), ())
        lose(storage, layout, 1)
        assert lost(layout_of(layout).survey(storage)) == [(4, 40)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_hole_that_the_source_could_not_explain_stays_unexplained(layout: str) -> None:
    with fresh_storage() as storage:
        gap = ForeignGap(where=WHERE, base_offset=5, end_offset=8, reason="unexplained")
        store(storage, layout, [0, 1, 2, 3, 9, 10, 11, 12], gaps=(gap,))
        survey = layout_of(layout).survey(storage)
        assert survey.gaps == (gap,)
        reasons = [(row.base_offset, row.reason) for row in rows_of(survey) if isinstance(row, Gap)]
        assert reasons == [(4, "unrecorded"), (5, "unexplained"), (8, "unrecorded")]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_offsets_that_retention_took_before_they_were_read_are_a_gap_with_that_reason(layout: str) -> None:
    with fresh_storage() as storage:
        gap = ForeignGap(where=WHERE, base_offset=4, end_offset=8, reason=GapReason.RETENTION)
        store(storage, layout, range(4))
        store(storage, layout, [9, 10, 11, 12], gaps=(gap,))
        store(storage, layout, [13, 14])
        survey = layout_of(layout).survey(storage)
        assert (survey.gaps, survey.faults, survey.doubts) == ((gap,), (), ())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_list_a_hole_is_unexplained_and_a_lost_end_is_said_to_be_untold(layout: str) -> None:
    with fresh_storage() as storage:
        store(storage, layout, range(12))
        lose(storage, layout, 1)
        storage.delete(["maxbrod.json"])
        survey = layout_of(layout).survey(storage)
        assert (survey.faults, [(gap.base_offset, gap.end_offset, gap.reason) for gap in survey.gaps]) == (
            (),
            [(4, 8, "unexplained")],
        )
        assert [("the first or the last segment" in each.what, each.refused) for each in survey.doubts] == [
            (True, False)
        ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_published_later_vouches_for_no_hole_before_it(layout: str) -> None:
    with fresh_storage() as storage:
        store(storage, layout, range(12))
        lose(storage, layout, 1)
        storage.delete(["maxbrod.json"])
        store(storage, layout, range(12, 16))
        survey = layout_of(layout).survey(storage)
        assert [(gap.base_offset, gap.end_offset) for gap in survey.gaps] == [(4, 8)]
        assert survey.doubts == (), "from now on every segment is listed"


def segment(base: int, end: int, records: int | None) -> ForeignSegment:
    return ForeignSegment(where=WHERE, path="p", base_offset=base, end_offset=end, records=records, bytes=1)


def test_a_topic_that_leaves_holes_within_segments_may_leave_them_in_between() -> None:
    """Transactions and compaction do; a hole that is larger than any of theirs is unexplained all the same."""
    verdict = judge([segment(0, 100, 97), segment(102, 200, 98), segment(1200, 1300, 100)], {})
    assert [(gap.base_offset, gap.end_offset) for gap in verdict.gaps] == [(200, 1200)]
    assert ["offsets 100 to 101" in str(each) for each in verdict.doubts] == [True, False]
    assert str(verdict.doubts[0]).startswith("orders-3: ")


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=6)


@given(published=ranges, left=ranges)
def test_lost_is_what_was_published_and_is_not_there(
    published: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    def segments(starts: list[tuple[int, int]]) -> list[ForeignSegment]:
        found: list[ForeignSegment] = []
        for base, size in sorted(starts):
            if not found or base >= found[-1].end_offset:
                found.append(segment(base, base + size, size))
        return found

    def offsets(found: list[ForeignSegment]) -> set[int]:
        return {offset for each in found for offset in range(each.base_offset, each.end_offset)}

    before, after = segments(published), segments(left)
    known = extended(Coverage(folder="f"), before[:1], before[1:], before[0].end_offset if before else None, ())
    assert decode_coverage(encode_coverage({WHERE: known})) == {WHERE: known}
    verdict = judge(after, {WHERE: known})
    corrupt = [gap for gap in verdict.gaps if gap.reason == "corrupt"]
    reported = {offset for gap in corrupt for offset in range(gap.base_offset, gap.end_offset)}
    assert reported == offsets(before) - offsets(after)
    assert len(verdict.faults) == len(corrupt)
    if before == after:
        assert (verdict.gaps, verdict.doubts) == ((), ())
