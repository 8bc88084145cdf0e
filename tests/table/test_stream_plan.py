"""Batches of a stream share out an archive's offsets: each is in one batch, whatever happens to the archive meanwhile.

No storage and no Spark: rows in memory, changed as backups, compaction and mending change them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.archive.archive import Archive
from maxbrod.archive.surveyed import SurveyedCatalog
from maxbrod.catalog.rows import Gap, Segment
from maxbrod.config import StorageConfig
from maxbrod.errors import LogTruncatedError, RefusedError, UnsupportedFormatError
from maxbrod.model import GapReason, PartitionId
from maxbrod.table.read.options import TableOptions
from maxbrod.table.read.scope import Scope
from maxbrod.table.stream.follower import plan_batch
from maxbrod.table.stream.plan import (
    StreamPosition,
    StreamView,
    advance,
    decode_position,
    encode_position,
    view_of,
    without,
)
from support.catalog_rows import TOPIC_ID, gap, segment

if TYPE_CHECKING:
    from collections.abc import Sequence


EVERYTHING = TableOptions(url="x", columns=("offset",))
NOTHING = StreamPosition(marks={})
NO_STORAGE: Any = None
"""Nothing is read."""
Row = Segment | Gap


def catalog_of(rows: Sequence[Row]) -> SurveyedCatalog:
    return SurveyedCatalog("x", rows)


def archive_of(rows: Sequence[Row], survey: Any = None) -> Archive:
    return Archive(url="x", options=StorageConfig(), storage=NO_STORAGE, catalog=catalog_of(rows), survey=survey)


def view(rows: Sequence[Row], options: TableOptions = EVERYTHING) -> StreamView:
    return view_of(archive_of(rows), options)


def step(
    rows: Sequence[Row],
    start: StreamPosition,
    limits: tuple[int | None, int | None] = (None, None),
    *,
    lossy: bool = False,
    scope: Scope | None = None,
) -> StreamPosition:
    found = advance(view(rows), start, limits, scope or Scope(), lossy=lossy)
    # As Spark does: what it keeps is JSON.
    return found if found is start else decode_position(json.loads(json.dumps(encode_position(found))))


def offsets(
    rows: Sequence[Row], start: StreamPosition, end: StreamPosition, *, lossy: bool = False
) -> list[tuple[int, int]]:
    """Partition and offset of every record, in the order in which they are read."""
    reads = plan_batch(catalog_of(rows), start, end, Scope(), lossy=lossy)
    return [(each.source.partition, offset) for each in reads for offset in range(each.first_offset, each.end_offset)]


def data(base: int, end: int, partition: int = 0, epoch: int = 3, **more: Any) -> Segment:
    return segment(base, end, partition=partition, first_leader_epoch=epoch, last_leader_epoch=epoch, **more)


def open_gap(base: int, end: int, partition: int = 0) -> Gap:
    return gap(base, end, partition=partition, reason=GapReason.CORRUPT)


@dataclass
class Model:
    """An archive that lives, and a stream that may die at any step."""

    rows: list[Row] = field(default_factory=list)
    start: StreamPosition = NOTHING
    planned: StreamPosition | None = None
    seen: list[tuple[int, int]] = field(default_factory=list)

    def held(self) -> list[tuple[int, int]]:
        return [
            (row.partition, offset)
            for row in self.rows
            if isinstance(row, Segment)
            for offset in range(row.base_offset, row.end_offset)
        ]

    def grow(self, partition: int, count: int, *, corrupt: bool) -> None:
        base = max((row.end_offset for row in self.rows if row.partition == partition), default=5 * partition)
        self.rows.append((open_gap if corrupt else data)(base, base + count, partition))

    def mend(self) -> None:
        """The first half of the first gap becomes data."""
        for number, row in enumerate(self.rows):
            if isinstance(row, Gap):
                middle = (row.base_offset + row.end_offset + 1) // 2
                rest = [open_gap(middle, row.end_offset, row.partition)] if middle < row.end_offset else []
                self.rows[number : number + 1] = [data(row.base_offset, middle, row.partition), *rest]
                return

    def compact(self) -> None:
        """Neighbours that hold data become one row."""
        merged: list[Row] = []
        for row in sorted(self.rows, key=lambda each: (each.partition, each.base_offset)):
            last = merged[-1] if merged else None
            if isinstance(last, Segment) and isinstance(row, Segment) and last.partition == row.partition:
                merged[-1] = data(last.base_offset, row.end_offset, row.partition, level=1)
            else:
                merged.append(row)
        self.rows = merged

    def plan(self, limits: tuple[int | None, int | None]) -> bool:
        if self.planned is None:
            found = step(self.rows, self.start, limits)
            self.planned = None if found is self.start else found
        return self.planned is not None

    def finish(self) -> None:
        if self.planned is not None:
            self.seen += offsets(self.rows, self.start, self.planned)
            self.start, self.planned = self.planned, None


LIMITS = st.tuples(st.none() | st.integers(1, 12), st.none() | st.sampled_from([1, 700, 1500, 10**6]))
STEPS = st.one_of(
    st.tuples(st.just("grow"), st.integers(0, 2), st.integers(1, 9), st.booleans()),
    st.tuples(st.sampled_from(["mend", "compact", "finish"])),
    st.tuples(st.just("plan"), LIMITS),
    # A batch that was read and not committed is planned once more, from whatever rows there are then.
    st.tuples(st.just("read")),
)


@given(st.lists(STEPS, max_size=30))
def test_every_offset_is_in_exactly_one_batch_whatever_happens_to_the_archive(steps: list[tuple[Any, ...]]) -> None:
    model = Model()
    batch: list[tuple[int, int]] | None = None
    for name, *arguments in steps:
        match name:
            case "grow":
                model.grow(arguments[0], arguments[1], corrupt=arguments[2])
            case "plan" if model.planned is None:
                model.plan(arguments[0])
                batch = None
            case "read" if model.planned is not None:
                found = offsets(model.rows, model.start, model.planned)
                assert batch is None or batch == found
                batch = found
            case "finish":
                before = len(model.seen)
                model.finish()
                assert batch is None or model.seen[before:] == batch
                batch = None
            case "mend" | "compact":
                getattr(model, name)()
            case _:
                pass
    while model.planned is not None or model.plan((7, None)):
        model.finish()
    assert sorted(model.seen) == sorted(model.held())


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=8), st.integers(3, 30))
def test_a_batch_never_has_more_offsets_than_it_may(grown: list[tuple[int, int]], most: int) -> None:
    model = Model()
    for partition, count in grown:
        model.grow(partition, count, corrupt=False)
    total = len(model.held())
    while model.plan((most, None)):
        before = len(model.seen)
        model.finish()
        assert len(model.seen) - before == min(most, total - before)


def test_a_batch_has_no_more_bytes_than_it_may_or_one_segment() -> None:
    rows = [data(0, 10), data(10, 11), data(11, 12)]  # a hundred bytes an offset
    first = step(rows, NOTHING, (None, 250))
    second = step(rows, first, (None, 250))
    assert [len(offsets(rows, *pair)) for pair in ((NOTHING, first), (first, second))] == [10, 2]
    assert step(rows, second, (None, 250)) is second


def test_with_a_limit_the_oldest_records_come_first_over_all_partitions() -> None:
    rows = [
        data(base, base + 10, number, min_timestamp=base, max_timestamp=base)
        for number in range(3)
        for base in range(0, 50, 10)
    ]
    at = NOTHING
    for number in range(1, 6):
        at = step(rows, at, (30, None))
        assert {mark.end for mark in at.marks.values()} == {10 * number}


def test_what_is_out_of_scope_counts_for_no_limit() -> None:
    rows = [data(base, base + 10) for base in range(0, 100, 10)]
    end = step(rows, NOTHING, (10, None), scope=Scope(first_offset=90))
    assert [mark.end for mark in end.marks.values()] == [100]


def test_a_position_without_news_is_the_same_text() -> None:
    rows: list[Row] = [data(0, 10), open_gap(10, 12), data(12, 20, 0), data(0, 5, 1)]
    at = step(rows, NOTHING)
    assert step(rows, at) is at
    assert encode_position(decode_position(encode_position(at))) == encode_position(at)
    assert list(encode_position(at)) == ["maxbrod.stream", "ends", "open", "from"]


def test_what_is_mended_after_a_batch_was_planned_is_in_the_next_one() -> None:
    rows: list[Row] = [data(0, 10), open_gap(10, 20), data(20, 30)]
    end = step(rows, NOTHING)
    before = offsets(rows, NOTHING, end)
    rows[1:2] = [data(10, 15), open_gap(15, 20)]
    assert offsets(rows, NOTHING, end) == before == [(0, offset) for offset in (*range(10), *range(20, 30))]
    then = step(rows, end)
    assert offsets(rows, end, then) == [(0, offset) for offset in range(10, 15)]
    assert [mark.open for mark in then.marks.values()] == [((15, 20),)]


def test_a_mended_gap_never_looks_like_another_history() -> None:
    """The gap was last, so that no epoch as high as that of its records was met."""
    rows: list[Row] = [data(0, 10, epoch=1), open_gap(10, 20)]
    at = step(rows, NOTHING)
    # Compaction may have joined it with what came later.
    for end in (20, 30):
        rows[1:] = [data(10, end, epoch=7)]
        mended = step(rows, at)
        assert offsets(rows, at, mended) == [(0, offset) for offset in range(10, end)]
        assert step(rows, mended) is mended


CUT = [
    pytest.param([data(0, 80), data(80, 95, epoch=4)], id="shorter"),
    pytest.param([data(0, 80), data(80, 140, epoch=4)], id="longer"),
    pytest.param([data(0, 80)], id="not yet written anew"),
]


@pytest.mark.parametrize("rows", CUT)
def test_another_history_is_never_mixed_in_unasked(rows: list[Row]) -> None:
    at = step([data(0, 60), data(60, 100)], NOTHING)
    with pytest.raises(LogTruncatedError, match="orders-0") as refused:
        step(rows, at)
    assert refused.value.offset == 80
    assert "failOnDataLoss" in str(refused.value.hint)
    following = step(rows, at, lossy=True)
    assert offsets(rows, at, following, lossy=True) == [(0, offset) for offset in range(80, rows[-1].end_offset)]
    assert step(rows, following, lossy=True) is following


def test_a_batch_that_another_history_has_overtaken_is_never_planned_from_it() -> None:
    before = [data(0, 60), data(60, 100)]
    end = step(before, NOTHING)
    after = [data(0, 60), data(60, 80), data(80, 120, epoch=4)]
    with pytest.raises(LogTruncatedError, match="orders-0"):
        offsets(after, NOTHING, end)
    # What is accepted: the old history is gone, and the other one is read by the batch after.
    assert offsets(after, NOTHING, end, lossy=True) == [(0, offset) for offset in range(80)]
    then = step(after, end, lossy=True)
    assert offsets(after, end, then, lossy=True) == [(0, offset) for offset in range(80, 120)]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([data(30, 40)], id="begins later"),
        pytest.param([gap(0, 30, reason=GapReason.PRUNED), data(30, 40)], id="pruned"),
    ],
)
def test_what_was_pruned_unread_is_never_passed_over_unasked(rows: list[Row]) -> None:
    at = step([data(0, 10), data(10, 20)], NOTHING, (10, None))
    with pytest.raises(RefusedError, match="left the archive") as refused:
        step(rows, at)
    assert refused.value.offset == 10
    then = step(rows, at, lossy=True)
    assert offsets(rows, at, then, lossy=True) == [(0, offset) for offset in range(30, 40)]


def test_a_batch_is_never_planned_again_from_less() -> None:
    end = step([data(0, 20)], NOTHING)
    with pytest.raises(RefusedError, match="offsets 0 to 9 left") as refused:
        offsets([gap(0, 10, reason=GapReason.PRUNED), data(10, 20)], NOTHING, end)
    assert refused.value.exit_code == 5
    with pytest.raises(RefusedError, match=TOPIC_ID):
        offsets([], NOTHING, end)


def test_what_was_pruned_before_a_stream_began_is_no_loss() -> None:
    rows: list[Row] = [
        gap(0, 30, reason=GapReason.PRUNED),
        data(30, 40),
        gap(0, 9, partition=1, reason=GapReason.PRUNED),
    ]
    end = step(rows, NOTHING)
    assert offsets(rows, NOTHING, end) == [(0, offset) for offset in range(30, 40)]
    rows.append(data(9, 12, 1))
    assert offsets(rows, end, step(rows, end)) == [(1, offset) for offset in range(9, 12)]


def test_files_that_another_tool_brings_late_are_read() -> None:
    def look(rows: Sequence[Row]) -> StreamView:
        # Whatever it is: it makes the archive another tool's.
        survey: Any = object()
        return view_of(archive_of(rows, survey), EVERYTHING)

    rows: list[Row] = [data(10, 20), gap(20, 30, reason=GapReason.UNRECORDED), data(30, 40)]
    at = advance(look(rows), NOTHING, (None, None), Scope(), lossy=False)
    rows = [data(0, 10), data(10, 20), data(20, 30), data(30, 40)]
    then = advance(look(rows), at, (None, None), Scope(), lossy=False)
    assert offsets(rows, at, then) == [(0, offset) for offset in (*range(10), *range(20, 30))]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6))),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6))),
)
def test_ranges_without_ranges(ranges: list[tuple[int, int]], taken: list[tuple[int, int]]) -> None:
    def apart(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
        kept: list[tuple[int, int]] = []
        for first, count in sorted(found):
            if not kept or kept[-1][1] <= first:
                kept.append((first, first + count))
        return kept

    def members(found: list[tuple[int, int]]) -> set[int]:
        return {offset for first, end in found for offset in range(first, end)}

    left = without(apart(ranges), apart(taken))
    assert members(left) == members(apart(ranges)) - members(apart(taken))
    assert left == sorted(left)


@pytest.mark.parametrize("document", [{}, {"maxbrod.stream": 2, "ends": {}}, {"maxbrod.stream": True, "ends": {}}])
def test_a_checkpoint_of_somebody_else_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFormatError, match="checkpoint"):
        decode_position(document)


def test_partitions_keep_their_numbers() -> None:
    at = step([data(0, 5, 7), data(0, 6, 2)], NOTHING)
    ends = encode_position(at)["ends"][TOPIC_ID]
    assert [each and each[0] for each in ends] == [None, None, 6, None, None, None, None, 5]
    assert {each.partition for each in decode_position(encode_position(at)).marks} == {2, 7}
    assert PartitionId(topic_id=TOPIC_ID, partition=7) in at.marks
