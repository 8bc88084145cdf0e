"""Which slices a batch of a stream reads: from its offsets, and the rows that hold them now.

A batch is planned once more after a crash, by then perhaps from other rows. So nothing counts here but its offsets, and
every one of them must be answered for: by data, or by a gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from maxbrod.batch.columns import number_array, number_column
from maxbrod.catalog.rows import Gap, Segment, decode_rows, slice_of
from maxbrod.errors import LogTruncatedError
from maxbrod.model import GapReason, PartitionId
from maxbrod.table.read.columns import Source
from maxbrod.table.read.splits import SliceRead
from maxbrod.table.stream.positions import ranges_between, without
from maxbrod.table.stream.resuming import ACCEPT, OPERATION, lost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from maxbrod.table.read.archive import AnyCatalog
    from maxbrod.table.read.scope import Scope
    from maxbrod.table.stream.positions import Mark, Range, StreamPosition

_Row: TypeAlias = Segment | Gap
_FOREVER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPortion:
    """Of one slice the offsets from `first_offset` on, up to the portion's end."""

    portion: SliceRead
    first_offset: int


def plan_batch(
    catalog: AnyCatalog, start: StreamPosition | None, end: StreamPosition, scope: Scope, *, lossy: bool
) -> list[StreamPortion]:
    """In the order of topic ids, partitions and offsets. RefusedError: not all of it is there any more."""
    ranges = ranges_between(start, end)
    found = _rows_of(catalog, ranges) if ranges else {}
    planned: list[StreamPortion] = []
    for each in sorted(ranges):
        rows, mark = found.get(each, []), end.marks[each]
        if not lossy:
            _check(each, ranges[each], rows, mark)
        planned += _portions(ranges[each], rows, mark, scope)
    return planned


def group_portions(portions: Iterable[StreamPortion], split_bytes: int) -> list[tuple[StreamPortion, ...]]:
    """Neighbours together until they have so many bytes; a slice is never cut."""
    splits: list[list[StreamPortion]] = []
    filled = split_bytes
    for each in portions:
        if filled >= split_bytes:
            splits.append([])
            filled = 0
        splits[-1].append(each)
        filled += each.portion.stored.bytes
    return [tuple(each) for each in splits]


def _rows_of(catalog: AnyCatalog, ranges: Mapping[PartitionId, Sequence[Range]]) -> dict[PartitionId, list[_Row]]:
    lows = {each: wanted[0][0] for each, wanted in ranges.items()}
    highs = {each: wanted[-1][1] for each, wanted in ranges.items()}
    table = catalog.rows(offsets=(min(lows.values()), max(highs.values())), as_of=highs).combine_chunks()
    # Rows become values only where they are needed: an archive may have millions.
    found: dict[PartitionId, list[_Row]] = {}
    for row in decode_rows(table.filter(_ending_after(table, lows))):
        if isinstance(row, Segment | Gap):
            found.setdefault(PartitionId(topic_id=row.topic_id, partition=row.partition), []).append(row)
    return found


def _ending_after(table: pa.Table, lows: Mapping[PartitionId, int]) -> pa.Array:
    groups = table.group_by(["topic_id", "partition"], use_threads=False).aggregate([("kind", "count")]).to_pylist()
    wanted = [lows[PartitionId(topic_id=each["topic_id"], partition=each["partition"])] for each in groups]
    low = np.repeat(np.array(wanted, np.int64), [each["kind_count"] for each in groups])
    ends = table["end_offset"].combine_chunks()
    return number_array((number_column(ends) if len(ends) else low) > low)


def _check(partition: PartitionId, ranges: Sequence[Range], rows: Sequence[_Row], mark: Mark) -> None:
    other = next((row for row in rows if _is_newer(row, mark) and without(ranges, [_span(row)]) != ranges), None)
    if other is not None:
        raise LogTruncatedError(
            "the log was cut after this batch was planned, and the archive holds another history by now",
            operation=OPERATION,
            object_name=f"{other.topic}-{other.partition}",
            offset=other.base_offset,
            hint=f"undo in the stream's target what came from there on; {ACCEPT}",
        )
    held = [_span(row) for row in rows if isinstance(row, Segment) or row.reason is not GapReason.PRUNED]
    missing = without(ranges, held)
    if missing:
        name = f"{rows[0].topic}-{rows[0].partition}" if rows else str(partition)
        raise lost(name, *missing[0])


def _portions(ranges: Sequence[Range], rows: Sequence[_Row], mark: Mark, scope: Scope) -> Iterable[StreamPortion]:
    for row in rows:
        if not isinstance(row, Segment) or _is_newer(row, mark) or not _in_scope(row, scope):
            continue
        source = Source(topic=row.topic, topic_id=row.topic_id, partition=row.partition)
        for first, end in ranges:
            low, high = max(first, row.base_offset), min(end, row.end_offset)
            if low < high:
                portion = SliceRead(source=source, stored=slice_of(row), end_offset=high)
                yield StreamPortion(portion=portion, first_offset=low)


def _is_newer(row: _Row, mark: Mark) -> bool:
    """Written after the log was cut. Read by a later batch, if the stream accepts that at all."""
    return isinstance(row, Segment) and row.first_leader_epoch > mark.epoch


def _span(row: _Row) -> Range:
    return row.base_offset, row.end_offset


def _in_scope(row: Segment, scope: Scope) -> bool:
    high = _FOREVER if scope.end_offset is None else scope.end_offset
    if row.end_offset <= scope.first_offset or row.base_offset >= high:
        return False
    return scope.since_ms is None or row.max_timestamp is None or row.max_timestamp >= scope.since_ms
