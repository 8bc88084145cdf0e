"""Where a stream's next batch ends: from where it stands, what the archive holds, and how much it may take. Pure.

With a limit the oldest segments come first, over all partitions, so that none runs ahead of the others and watermarks
hold. Python touches partitions that have news, and rows that a batch takes; all others are looked at by numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.table.stream.positions import Mark, StreamPosition, without
from maxbrod.table.stream.resuming import resume
from maxbrod.table.stream.view import TIMELESS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from maxbrod.model import PartitionId
    from maxbrod.table.read.scope import Scope
    from maxbrod.table.stream.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one batch; None: none. Bytes are as stored, and a single segment may have more."""

    offsets: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Rows that a batch may take, in order of partition and offset."""

    rows: NDArray[np.int64]
    groups: NDArray[np.int64]
    first: NDArray[np.int64]
    """Where each is read from: its base, or what was read of it before."""


def advance(view: View, start: StreamPosition, limits: Limits, scope: Scope, *, lossy: bool) -> StreamPosition:
    """`start` itself where there is no news. RefusedError: records are lost to the stream, unless that is accepted."""
    lows = {number: resume(view, number, start.marks.get(each), lossy=lossy) for number, each in _news(view, start)}
    marks: dict[PartitionId, Mark] = dict(start.marks)
    begins: dict[PartitionId, int] = {}
    for number, low in lows.items():
        each = view.partitions[number]
        before = marks.get(each)
        if before is None or low != before.end:
            begins[each] = low
        marks[each] = _mended(view, number, low, before)
    for number, end, epoch in _taken(view, _candidates(view, lows), limits, scope):
        each = view.partitions[number]
        mark = marks[each]
        fresh = view.mendable_in(number, mark.end, end)
        marks[each] = Mark(end, max(mark.epoch, epoch), (*mark.open, *fresh))
    # A partition that the limit left out joins later.
    kept = {each: mark for each, mark in marks.items() if each in start.marks or mark.end > begins[each]}
    if kept == start.marks:
        return start
    return StreamPosition(marks=kept, begins={each: low for each, low in begins.items() if each in kept})


def mark_at(view: View, number: int, end: int) -> Mark:
    """As if a stream had read a partition up to there."""
    rows = view.rows_of(number)
    below = slice(rows.start, rows.start + int(np.searchsorted(view.base[rows], end)))
    return Mark(end, int(view.last_epoch[below].max(initial=-1)), view.mendable_in(number, 0, end))


def _news(view: View, start: StreamPosition) -> list[tuple[int, PartitionId]]:
    """Partitions whose end or last epoch is another than the stream's, or that have something to be mended."""
    last = view.starts[1:] - 1
    ends, epochs = view.end[last].tolist(), view.first_epoch[last].tolist()
    found = []
    for number, each in enumerate(view.partitions):
        mark = start.marks.get(each)
        if mark is None or mark.end != ends[number] or epochs[number] > mark.epoch or mark.open:
            found.append((number, each))
    return found


def _mended(view: View, number: int, low: int, before: Mark | None) -> Mark:
    """Where the partition stands before it takes new rows: what it had passed over and now has is open no more."""
    if before is None:
        return Mark(low, -1, () if view.native else view.mendable_in(number, 0, low))
    wanted = [(first, min(end, low)) for first, end in before.open if first < low]
    if not wanted:
        return Mark(low, before.epoch)
    span = view.rows_of(number)
    meeting = (view.end[span] > wanted[0][0]) & (view.base[span] < wanted[-1][1])
    settled = np.flatnonzero(meeting & ~view.mendable[span]) + span.start
    left = without(wanted, [(int(view.base[row]), int(view.end[row])) for row in settled])
    inside = [row for row in settled if any(view.base[row] < end and first < view.end[row] for first, end in wanted)]
    return Mark(low, max([before.epoch, *view.last_epoch[inside].tolist()]), tuple(left))


def _candidates(view: View, lows: Mapping[int, int]) -> _Candidates:
    rows, groups, firsts = ([np.empty(0, np.int64)] for _ in range(3))
    for number, low in lows.items():
        span = view.rows_of(number)
        # Rows do not overlap, so that ends rise as bases do.
        mine = np.arange(span.start + np.searchsorted(view.end[span], low, side="right"), span.stop, dtype=np.int64)
        rows.append(mine)
        groups.append(np.full(mine.size, number, np.int64))
        firsts.append(np.maximum(view.base[mine], low))
    return _Candidates(np.concatenate(rows), np.concatenate(groups), np.concatenate(firsts))


def _taken(view: View, candidates: _Candidates, limits: Limits, scope: Scope) -> list[tuple[int, int, int]]:
    """The number, new end and highest epoch of each partition that the batch takes something of."""
    order = np.argsort(_ages(view, candidates), kind="stable")
    rows, groups, first = candidates.rows[order], candidates.groups[order], candidates.first[order]
    wanted = view.data[rows] & _in_scope(view, rows, scope)
    by_offsets, left = _fitting(np.where(wanted, view.end[rows] - first, 0), limits.offsets)
    by_bytes, _ = _fitting(np.where(wanted, view.bytes[rows], 0), limits.bytes)
    if by_bytes == 0 or not wanted[:by_bytes].any():
        # One segment at the least, or the stream would stand still.
        by_bytes = max(by_bytes, int(np.argmax(wanted)) + 1) if wanted.any() else rows.size
    count = min(by_offsets, by_bytes)
    ends = view.end[rows[:count]].tolist()
    if left and by_offsets < min(rows.size, by_bytes):
        ends.append(int(first[count]) + left)
        count += 1
    epochs = view.last_epoch[rows[:count]].tolist()
    found: dict[int, tuple[int, int]] = {}
    for number, end, epoch in zip(groups[:count].tolist(), ends, epochs, strict=True):
        found[number] = end, max(epoch, found.get(number, (0, -1))[1])
    return [(number, end, epoch) for number, (end, epoch) in found.items()]


def _ages(view: View, candidates: _Candidates) -> NDArray[np.int64]:
    """The highest timestamp of each row and those before it in its partition, so that offsets keep their order."""
    times = np.where(view.data[candidates.rows], view.timestamp[candidates.rows], TIMELESS)
    borders = np.flatnonzero(np.diff(candidates.groups)) + 1
    return np.concatenate([np.maximum.accumulate(each) for each in np.split(times, borders)])


def _in_scope(view: View, rows: NDArray[np.int64], scope: Scope) -> NDArray[np.bool_]:
    wanted = view.end[rows] > scope.first_offset
    if scope.end_offset is not None:
        wanted &= view.base[rows] < scope.end_offset
    if scope.since_ms is not None:
        wanted &= view.timestamp[rows] >= scope.since_ms
    return np.asarray(wanted)


def _fitting(costs: NDArray[np.int64], limit: int | None) -> tuple[int, int]:
    """How many of the first fit, and what is left for the next one."""
    if limit is None:
        return costs.size, 0
    sums = np.cumsum(np.minimum(costs, limit + 1))
    count = int(np.searchsorted(sums, limit, side="right"))
    return count, limit - (int(sums[count - 1]) if count else 0)
