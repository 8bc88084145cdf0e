"""What is read is never too little: rows are left out only where they surely hold nothing that is wanted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.catalog.rows import Gap, Segment, decode_rows, encode_rows, slice_of
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.model import AbortedTransaction, GapReason, TopicPartition
from maxbrod.restore.plan.request import OffsetRange, RestoreRequest
from maxbrod.restore.plan.sources import (
    SOURCE_COLUMNS,
    Source,
    UnreadableRange,
    measure_sources,
    read_columns,
    rows_to_read,
    sound_part,
)
from support.catalog_rows import TOPIC_ID, gap, segment
from support.restore_plans import CHOSEN, partition_id

if TYPE_CHECKING:
    from collections.abc import Sequence

ORDERS_0 = TopicPartition(topic="orders", partition=0)


def measure(rows: Sequence[Segment | Gap] | pa.Table, request: RestoreRequest | None = None, **changes: Any) -> Source:
    table = rows if isinstance(rows, pa.Table) else encode_rows(rows)
    values: dict[str, Any] = {"ends": {}, "as_of": False, **changes}
    (found,) = measure_sources(table, request or RestoreRequest(), CHOSEN, **values)
    return found


def read(rows: Sequence[Segment | Gap], request: RestoreRequest, source: Source | None = None) -> list[int]:
    found = rows_to_read(encode_rows(rows), [source or measure(rows, request)], request)
    return [row.base_offset for row in decode_rows(found) if isinstance(row, Segment)]


@dataclass(frozen=True)
class Log:
    rows: list[Segment | Gap]
    records: dict[int, int]
    """Offset to timestamp."""


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Rows as a backup writes them: the lowest timestamp is that of the batches' first records, and may be too high."""
    offset = draw(st.sampled_from([0, 0, 17, 10**12]))
    rows: list[Segment | Gap] = []
    records: dict[int, int] = {}
    for _ in range(draw(st.integers(0, 6))):
        length = draw(st.integers(1, 6))
        if draw(st.integers(0, 3)) == 0:
            rows.append(gap(offset, offset + length, reason=GapReason.COMPACTED))
        else:
            present = [each for each in range(offset, offset + length) if draw(st.integers(0, 4))]
            times = {each: draw(st.integers(-3, 12)) for each in present}
            undated = bool(present) and draw(st.integers(0, 9)) == 0
            firsts = [times[each] for number, each in enumerate(present) if number % 2 == 0]
            rows.append(
                segment(
                    offset,
                    offset + length,
                    records=len(present),
                    min_timestamp=min(firsts) if firsts and not undated else None,
                    max_timestamp=max(times.values()) if present and not undated else None,
                )
            )
            records |= dict.fromkeys(times, -1) if undated else times
        offset += length
    return Log(rows, records)


times = st.none() | st.integers(-3, 12)
offsets = st.none() | st.integers(0, 30)


@settings(max_examples=120)
@given(logs(), times, times, offsets, offsets)
def test_no_record_that_is_wanted_is_ever_left_out(
    log: Log, since: int | None, until: int | None, first: int | None, end: int | None
) -> None:
    if since is not None and until is not None and since >= until:
        until = None
    if not log.rows:
        return
    ranges: tuple[OffsetRange, ...] = ()
    if (first is not None or end is not None) and (first or 0) < (100 if end is None else end):
        ranges = (OffsetRange(where=ORDERS_0, first=first, end=end),)
    request = RestoreRequest(since_ms=since, until_ms=until, ranges=ranges)
    source = measure(log.rows, request)
    bases = read(log.rows, request, source)
    wanted = [
        offset
        for offset, time in log.records.items()
        if (since is None or time >= since)
        and (until is None or time < until)
        and source.asked_first <= offset < source.asked_end
    ]
    spans = [(row.base_offset, row.end_offset) for row in log.rows if row.base_offset in bases]
    for offset in wanted:
        assert any(base <= offset < stop for base, stop in spans)
        assert offset >= source.first_offset
    assert bases == sorted(bases)
    assert source.asked_first <= source.first_offset <= source.asked_end
    assert 0 <= source.holes <= source.asked_end - source.first_offset
    assert source.rows == len(bases)


@given(logs())
def test_without_a_cut_everything_is_counted_exactly(log: Log) -> None:
    if not log.rows:
        return
    source = measure(log.rows)
    data = [row for row in log.rows if isinstance(row, Segment) and row.records]
    assert source.records == len(log.records)
    assert source.bytes == sum(row.bytes for row in data)
    assert (source.asked_first, source.asked_end) == (log.rows[0].base_offset, log.rows[-1].end_offset)
    assert source.first_offset == (data[0].base_offset if data else source.asked_end)
    if data and all(row.records for row in log.rows if isinstance(row, Segment)):
        assert source.holes == source.asked_end - source.first_offset - source.records


def test_a_row_with_a_low_minimum_that_is_not_sure_is_never_skipped_for_until() -> None:
    rows = [segment(0, 10, min_timestamp=50, max_timestamp=60), segment(10, 11, min_timestamp=50, max_timestamp=50)]
    assert read(rows, RestoreRequest(until_ms=40)) == [0]
    assert measure(rows, RestoreRequest(until_ms=40)).records == 0


def test_rows_older_than_since_are_skipped_but_never_those_without_a_time() -> None:
    rows = [
        segment(0, 10, min_timestamp=1, max_timestamp=40),
        segment(10, 20, min_timestamp=None, max_timestamp=None),
        segment(20, 30, min_timestamp=1, max_timestamp=41),
        segment(30, 40, min_timestamp=None, max_timestamp=None, records=0),
    ]
    assert read(rows, RestoreRequest(since_ms=41)) == [10, 20]
    assert measure(rows, RestoreRequest(since_ms=41)).first_offset == 10
    mixed = [segment(0, 10, min_timestamp=-9, max_timestamp=-5)]
    assert read(mixed, RestoreRequest(since_ms=-2)) == [0], (
        "a record without a time counts as -1, and may stand among others"
    )
    assert read(mixed, RestoreRequest(since_ms=0)) == []


def test_a_row_whose_timestamps_contradict_each_other_is_never_skipped() -> None:
    rows = [segment(0, 10, min_timestamp=50, max_timestamp=20), segment(10, 11, min_timestamp=50, max_timestamp=20)]
    assert read(rows, RestoreRequest(since_ms=41)) == [0, 10]
    assert read(rows, RestoreRequest(until_ms=10)) == [0, 10]
    assert measure(rows, RestoreRequest(until_ms=10)).records == 11, "unknown is not none"


def test_as_of_a_run_nothing_beyond_its_ends_exists() -> None:
    rows = [segment(0, 10), segment(10, 20), segment(0, 5, partition=1)]
    source = measure(rows, ends={partition_id(0): 15}, as_of=True)
    assert (source.partition, source.asked_end, source.records) == (0, 15, 15)
    assert read(rows, RestoreRequest(), replace(source, asked_end=10)) == [0]


def test_a_partition_that_is_archived_and_empty_is_still_there() -> None:
    sources = measure_sources(
        encode_rows([segment(3, 9)]), RestoreRequest(), CHOSEN, {partition_id(0): 7, partition_id(1): 50}, as_of=False
    )
    extents = [(each.partition, each.asked_first, each.first_offset, each.asked_end) for each in sources]
    assert extents == [(0, 3, 3, 9), (1, 50, 50, 50)]


def test_of_a_topic_with_ranges_only_their_partitions_are_taken() -> None:
    rows = [segment(0, 10, partition=number) for number in range(3)]
    request = RestoreRequest(ranges=(OffsetRange(where=TopicPartition(topic="orders", partition=1), first=4, end=6),))
    source = measure(rows, request)
    assert (source.partition, source.asked_first, source.asked_end, source.records) == (1, 4, 6, 2)
    request = RestoreRequest(partitions=frozenset({2}))
    assert measure(rows, request).partition == 2


def test_what_is_missing_is_named_with_its_reason() -> None:
    rows = [
        segment(0, 10),
        gap(10, 20, reason=GapReason.RETENTION),
        gap(20, 30, reason=GapReason.CORRUPT),
        segment(40, 50, records=4, reason=GapReason.UNEXPLAINED),
    ]
    source = measure(rows)
    found = [(each.first, each.end, each.reason) for each in source.troubles]
    assert found == [(20, 30, GapReason.CORRUPT), (30, 40, None), (40, 50, GapReason.UNEXPLAINED)]
    assert source.gaps == {"retention": 10, "corrupt": 10}
    request = RestoreRequest(ranges=(OffsetRange(where=ORDERS_0, first=45, end=70),))
    found = [(each.first, each.end, each.reason) for each in measure(rows, request).troubles]
    assert found == [(45, 50, GapReason.UNEXPLAINED), (50, 70, None)]


def test_offsets_of_aborted_transactions_are_counted_within_the_row() -> None:
    aborted = (
        AbortedTransaction(producer_id=1, first_offset=5, last_offset=12),
        AbortedTransaction(producer_id=2, first_offset=15, last_offset=99),
    )
    rows = encode_rows([segment(0, 10, partition=9), segment(10, 20, aborted=aborted), segment(20, 30)])
    chunked = pa.concat_tables([rows.slice(0, 1), rows.slice(1, 1), rows.slice(2, 1)])
    assert measure(chunked, RestoreRequest(partitions=frozenset({0}))).aborted == 3 + 5
    assert measure(rows, RestoreRequest(partitions=frozenset({0}))).aborted == 3 + 5
    assert read_columns(chunked).aborted.tolist() == [0, 3 + 5, 0]


def test_rows_that_overlap_are_refused() -> None:
    with pytest.raises(CorruptDataError) as caught:
        measure([segment(0, 10), segment(5, 15)])
    assert caught.value.offset == 5


def test_a_reason_that_is_not_known_is_refused() -> None:
    table = encode_rows([gap(0, 10)])
    place = table.column_names.index("reason")
    with pytest.raises(UnsupportedFormatError, match="moths"):
        measure(table.set_column(place, "reason", pa.array(["moths"])))


def test_few_columns_are_enough_and_64_bits_survive() -> None:
    end = 2**63 - 1
    table = encode_rows([gap(0, end - 5), segment(end - 5, end, max_timestamp=end, min_timestamp=-end)])
    source = measure(table.select(list(SOURCE_COLUMNS)))
    assert (source.first_offset, source.asked_end, source.max_timestamp) == (end - 5, end, end)
    assert source.gaps == {"retention": end - 5}
    assert source.topic_id == TOPIC_ID


def test_of_many_sources_each_has_its_own_rows_and_no_others() -> None:
    rows = [segment(base, base + 10, partition=number) for number in range(4) for base in (0, 10)]
    table = encode_rows([*rows, gap(20, 30, partition=1), segment(0, 10, topic_id="another", partition=1)])
    sources = [measure(table, RestoreRequest(partitions=frozenset({number}))) for number in (3, 1)]
    sources[0] = replace(sources[0], asked_first=10)
    found = [row for row in decode_rows(rows_to_read(table, sources, RestoreRequest())) if isinstance(row, Segment)]
    assert [(row.topic_id, row.partition, row.base_offset) for row in found] == [
        (TOPIC_ID, 1, 0),
        (TOPIC_ID, 1, 10),
        (TOPIC_ID, 3, 10),
    ]
    assert rows_to_read(table, [], RestoreRequest()).num_rows == 0


def lost(first: int, end: int) -> UnreadableRange:
    return UnreadableRange(first=first, end=end, object_name=f"segments/{first}.log", why="the object is not there")


def test_rows_whose_objects_are_gone_are_left_out_and_keep_their_place() -> None:
    rows = [segment(0, 10), segment(10, 20), segment(20, 30), segment(30, 40)]
    found = measure(rows, lost={partition_id(): [lost(0, 10), lost(20, 30)]})
    assert (found.first_offset, found.asked_end, found.records, found.holes) == (10, 40, 20, 10)
    assert [each.first for each in found.lost] == [0, 20]
    cut = measure(rows, lost={partition_id(): [lost(24, 30)]})
    assert (cut.first_offset, cut.rows, cut.holes) == (0, 4, 0), "what stands before the damage is still read"
    everything = measure(rows, lost={partition_id(): [lost(each, each + 10) for each in range(0, 40, 10)]})
    assert (everything.records, everything.first_offset, len(everything.lost)) == (0, 40, 4)


def test_what_is_lost_and_not_asked_for_is_nobodys_trouble() -> None:
    rows = [segment(each, each + 10, min_timestamp=0, max_timestamp=each + 5) for each in (0, 10, 20)]
    gone = {partition_id(): [lost(0, 10), lost(10, 20)]}
    assert [each.first for each in measure(rows, RestoreRequest(since_ms=10), lost=gone).lost] == [10]
    ranged = RestoreRequest(ranges=(OffsetRange(where=ORDERS_0, first=15, end=25),))
    assert [each.first for each in measure(rows, ranged, lost=gone).lost] == [10]


def test_a_slice_is_read_up_to_what_is_lost_of_it() -> None:
    first, second = slice_of(segment(0, 10)), slice_of(segment(10, 20))
    known = {10: lost(0, 10), 20: lost(14, 20)}
    assert sound_part(first, known) is None
    assert sound_part(second, known) == replace(second, sound_end=14)
    assert sound_part(second, {10: lost(4, 10)}) == second
