"""Follows one archive: opens it again when it has changed, and turns checkpoints into plans and back.

Spark plans a batch again after a crash, by then perhaps from other rows. So only the batch's offsets count, and each of
them must be accounted for: by data, or by a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.archive import AnyCatalog, Archive
from maxbrod.archive.erasures import NO_ERASURES, Erasures
from maxbrod.archive.selection import incarnations_in, newest_ids, select_names
from maxbrod.archive.snapshot_document import Snapshot
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.batch.columns import number_array, number_column
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Gap, Segment, decode_rows, newest_time
from maxbrod.errors import LogTruncatedError
from maxbrod.model import GapReason, PartitionId
from maxbrod.table.read.options import EARLIEST, LATEST, StreamOptions
from maxbrod.table.read.scope import Scope, SliceRead
from maxbrod.table.read.splits import group, open_table, slice_read
from maxbrod.table.stream.plan import (
    ACCEPT,
    OPERATION,
    Range,
    StreamMark,
    StreamPosition,
    StreamView,
    advance,
    check_known,
    decode_position,
    encode_position,
    is_start,
    lost,
    mark_at,
    ranges_between,
    view_of,
    without,
)

_Row: TypeAlias = Segment | Gap
_FOREVER: Final = 2**63 - 1


class Follower:
    """Holds nothing that a checkpoint does not hold, except a cache of the archive while it is unchanged."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._lossy = not options.fail_on_data_loss
        self._archive: Archive | None = None
        self._view: StreamView | None = None
        self._stands_still = False

    def stand_still(self) -> None:
        """End the stream with what the archive holds now (trigger availableNow)."""
        self._look()
        self._stands_still = True

    def latest(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any]:
        """The end of the batch that begins at `start`; `start` itself if there is nothing to read."""
        archive, view = self._look()
        begun = None if is_start(start) else decode_position(start)
        before = StreamPosition(marks=self._beginning(archive, view)) if begun is None else begun
        if not self._lossy:
            check_known(view, before)
        limits = (self._options.offsets_max, self._options.bytes_max) if limited else (None, None)
        end = advance(view, before, limits, self._options.table.scope, lossy=self._lossy)
        if begun is None:
            # Spark's checkpoint does not record where the stream began, so the end of its first batch does.
            begins = {partition: mark.end for partition, mark in before.marks.items()}
            return encode_position(StreamPosition(marks=end.marks, begins={**begins, **end.begins}))
        return start if end is begun else encode_position(end)

    def plan(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[SliceRead, ...]]:
        """The slices that each task of a batch reads."""
        archive, _ = self._look(to_plan=True)
        table = self._options.table
        begun = None if is_start(start) else decode_position(start)
        reads = plan_batch(
            archive.catalog,
            begun,
            decode_position(end),
            table.scope,
            lossy=self._lossy,
            erasures=archive.erasures(),
        )
        return group(reads, table.split_bytes)

    def _look(self, *, to_plan: bool = False) -> tuple[Archive, StreamView]:
        """The archive, opened again if it has changed.

        A plan needs today's rows even if the stream stands still: `gc` may have deleted the objects of older rows.
        """
        wanted = to_plan or not self._stands_still
        if self._archive is None or self._view is None or (wanted and _is_outdated(self._archive, to_plan=to_plan)):
            self._archive = open_table(self._options.table)
            if self._view is None or not self._stands_still:
                self._view = view_of(self._archive, self._options.table)
        return self._archive, self._view

    def _beginning(self, archive: Archive, view: StreamView) -> dict[PartitionId, StreamMark]:
        """The marks of a new stream: it counts as read up to them. UsageError: a topic or a run does not exist."""
        starting, runs = self._options.starting, archive.catalog.runs()
        now = find_moment(archive.storage, runs, None)
        # A topic without records has no row, and naming it is no mistake.
        empty = () if now.snapshot is None else now.snapshot.topics.values()
        select_names({*view.topics.values(), *empty}, self._options.table.topics, may_come=True)
        if starting == LATEST:
            last = view.end[view.starts[1:] - 1].tolist()
            return {partition: mark_at(view, number, last[number]) for number, partition in enumerate(view.partitions)}
        marks: dict[PartitionId, StreamMark] = {}
        then = None if starting == EARLIEST else find_moment(archive.storage, runs, starting).snapshot
        ends = {} if then is None else then.ends
        cut = {} if then is None else _epochs_before(archive, then)
        older = set() if self._options.table.every_incarnation else _older_ids(archive, view, now)
        for number, partition in enumerate(view.partitions):
            first, last = int(view.base[view.starts[number]]), int(view.end[view.starts[number + 1] - 1])
            if partition.topic_id in older:
                marks[partition] = mark_at(view, number, last)
            elif partition in cut:
                # The epoch is that of the history which the run saw: by it the stream finds where that was truncated.
                marks[partition] = replace(mark_at(view, number, ends[partition]), epoch=cut[partition])
            elif partition in ends:
                marks[partition] = mark_at(view, number, min(max(ends[partition], first), last))
        return marks


def _is_outdated(archive: Archive, *, to_plan: bool) -> bool:
    if isinstance(archive.catalog, Catalog):
        return not archive.catalog.is_newest()
    # Only a new survey shows what another tool has done since. The one that found a batch is new enough to plan it.
    return not to_plan


def _epochs_before(archive: Archive, then: Snapshot) -> dict[PartitionId, int]:
    """For partitions whose rows were replaced after a run: the highest leader epoch of the rows at that run."""
    replaced = {
        partition
        for partition, count in archive.catalog.revisions().items()
        if count > then.revisions.get(partition, 0)
    } & then.ends.keys()
    if not replaced:
        return {}
    rows = archive.catalog.rows(
        columns=("topic_id", "partition", "last_leader_epoch"),
        as_of={partition: then.ends[partition] for partition in replaced},
        revisions=then.revisions,
    )
    highest = rows.group_by(["topic_id", "partition"]).aggregate([("last_leader_epoch", "max")]).to_pylist()
    found = {
        PartitionId(topic_id=row["topic_id"], partition=row["partition"]): row["last_leader_epoch_max"]
        for row in highest
    }
    return {partition: -1 if found.get(partition) is None else found[partition] for partition in replaced}


def _older_ids(archive: Archive, view: StreamView, now: Moment) -> set[str]:
    """The ids of topics that were deleted and created again under the same name."""
    rows = archive.catalog.topics()
    incarnations = incarnations_in(rows.filter(pc.field("topic_id").isin(sorted(view.topics))))
    return view.topics.keys() - newest_ids(incarnations, now.ranks)


def plan_batch(
    catalog: AnyCatalog,
    start: StreamPosition | None,
    end: StreamPosition,
    scope: Scope,
    *,
    lossy: bool,
    erasures: Erasures = NO_ERASURES,
) -> list[SliceRead]:
    """Slices by topic id, partition and offset. RefusedError: some of the batch is no longer in the archive."""
    ranges = ranges_between(start, end)
    found = _rows_of(catalog, ranges) if ranges else {}
    planned: list[SliceRead] = []
    for partition in sorted(ranges):
        rows, mark = found.get(partition, []), end.marks[partition]
        if not lossy:
            _check(partition, ranges[partition], rows, mark)
        planned += _reads(ranges[partition], rows, mark, scope, erasures)
    return planned


def _rows_of(catalog: AnyCatalog, ranges: Mapping[PartitionId, Sequence[Range]]) -> dict[PartitionId, list[_Row]]:
    lows = {partition: wanted[0][0] for partition, wanted in ranges.items()}
    highs = {partition: wanted[-1][1] for partition, wanted in ranges.items()}
    table = catalog.rows(offsets=(min(lows.values()), max(highs.values())), as_of=highs).combine_chunks()
    # Filtered as columns first, because an archive may have millions of rows.
    found: dict[PartitionId, list[_Row]] = {}
    for row in decode_rows(table.filter(_ending_after(table, lows))):
        if isinstance(row, Segment | Gap):
            found.setdefault(PartitionId(topic_id=row.topic_id, partition=row.partition), []).append(row)
    return found


def _ending_after(table: pa.Table, lows: Mapping[PartitionId, int]) -> pa.Array:
    groups = table.group_by(["topic_id", "partition"], use_threads=False).aggregate([("kind", "count")]).to_pylist()
    wanted = [lows[PartitionId(topic_id=row["topic_id"], partition=row["partition"])] for row in groups]
    low = np.repeat(np.array(wanted, np.int64), [row["kind_count"] for row in groups])
    ends = table["end_offset"].combine_chunks()
    return number_array((number_column(ends) if len(ends) else low) > low)


def _check(partition: PartitionId, ranges: Sequence[Range], rows: Sequence[_Row], mark: StreamMark) -> None:
    other = next((row for row in rows if _is_newer(row, mark) and without(ranges, [_span(row)]) != ranges), None)
    if other is not None:
        raise LogTruncatedError(
            "the log was truncated after this batch was planned, and the archive now holds another history",
            operation=OPERATION,
            object_name=f"{other.topic}-{other.partition}",
            offset=other.base_offset,
            hint=f"undo in the stream's target everything from this offset on; {ACCEPT}",
        )
    held = [_span(row) for row in rows if isinstance(row, Segment) or row.reason is not GapReason.PRUNED]
    missing = without(ranges, held)
    if missing:
        name = f"{rows[0].topic}-{rows[0].partition}" if rows else str(partition)
        raise lost(name, *missing[0])


def _reads(
    ranges: Sequence[Range], rows: Sequence[_Row], mark: StreamMark, scope: Scope, erasures: Erasures
) -> Iterator[SliceRead]:
    for row in rows:
        if not isinstance(row, Segment) or _is_newer(row, mark) or not _in_scope(row, scope):
            continue
        whole = slice_read(row, erasures)
        for first, end in ranges:
            low, high = max(first, row.base_offset), min(end, row.end_offset)
            if low < high:
                yield replace(whole, first_offset=low, end_offset=high)


def _is_newer(row: _Row, mark: StreamMark) -> bool:
    """True if it was written after the log was truncated. A later batch reads it, if the stream accepts that."""
    return isinstance(row, Segment) and row.first_leader_epoch > mark.epoch


def _span(row: _Row) -> Range:
    return row.base_offset, row.end_offset


def _in_scope(row: Segment, scope: Scope) -> bool:
    high = _FOREVER if scope.end_offset is None else scope.end_offset
    if row.end_offset <= scope.first_offset or row.base_offset >= high:
        return False
    newest = newest_time(row.min_timestamp, row.max_timestamp)
    return scope.since_ms is None or newest is None or newest >= scope.since_ms
