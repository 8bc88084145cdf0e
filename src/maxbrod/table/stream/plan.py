"""The position of a stream, and the plan of its next batch: from the position, the archive's rows, and limits. Pure.

Spark writes the position into the stream's checkpoint, as one line of JSON: how far each partition is read, and which
gaps below that may still be filled. It holds offsets, and never objects, rows or versions of the catalog. So folding,
compaction and `gc` do not affect it, and a batch that is planned again has the same records. See docs/table.md for the
fields.

If a batch is limited, it takes the oldest segments of all partitions first, so that no partition runs ahead of the
others and watermarks hold. Python looks at partitions that have changed and at rows that a batch takes; numpy looks at
all others.

An archive only grows, with three exceptions: a log was truncated and written again, so that rows which the stream has
read were replaced; rows were pruned before they were read; or it is another archive. Each of them is an error unless
the stream's options accept it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod.archive.selection import select_topics
from maxbrod.batch.columns import number_column
from maxbrod.bounds import count_partitions
from maxbrod.catalog.rows import newest_times
from maxbrod.catalog.schema import Kind
from maxbrod.errors import LogTruncatedError, RefusedError, UnsupportedFormatError
from maxbrod.model import MENDABLE, GapReason, PartitionId

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.table.read.options import TableOptions
    from maxbrod.table.read.scope import Scope


FORMAT_FIELD: Final = "maxbrod.stream"
FORMAT_VERSION: Final = 1
Range: TypeAlias = tuple[int, int]
"""Offsets [first, end)."""


@dataclass(frozen=True, slots=True)
class StreamMark:
    """The offset up to which one partition is read."""

    end: int
    epoch: int
    """The highest leader epoch that was read. A log that was truncated and written again has higher ones."""
    open: tuple[Range, ...] = ()
    """Gaps below `end` that a later run may fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    marks: Mapping[PartitionId, StreamMark]
    begins: Mapping[PartitionId, int] = field(default_factory=dict)
    """The first offsets of the batch that ends here, for partitions that did not begin at the mark before."""


def encode_start(starting: str) -> dict[str, Any]:
    """The start of a new stream, before the archive is opened. The end of the first batch records what it means."""
    return {FORMAT_FIELD: FORMAT_VERSION, "starting": starting}


def is_start(document: Mapping[str, Any]) -> bool:
    return "starting" in _checked(document)


def encode_position(position: StreamPosition) -> dict[str, Any]:
    """The same document for the same position, in whatever order it was made, because Spark compares the text."""
    marks = dict(sorted(position.marks.items()))
    opened = {partition: [list(gap) for gap in mark.open] for partition, mark in marks.items() if mark.open}
    document: dict[str, Any] = {
        FORMAT_FIELD: FORMAT_VERSION,
        "ends": _lists({partition: [mark.end, mark.epoch] for partition, mark in marks.items()}),
    }
    if opened:
        document["open"] = _by_number(opened)
    if position.begins:
        document["from"] = _by_number(dict(sorted(position.begins.items())))
    return document


def decode_position(document: Mapping[str, Any]) -> StreamPosition:
    """UnsupportedFormatError: not written by this source, or by a newer release."""
    _checked(document)
    opened = document.get("open", {})
    marks = {
        PartitionId(topic_id=topic_id, partition=number): StreamMark(
            pair[0], pair[1], tuple((first, end) for first, end in opened.get(topic_id, {}).get(str(number), ()))
        )
        for topic_id, pairs in document["ends"].items()
        for number, pair in enumerate(pairs)
        if pair is not None
    }
    begins = {
        PartitionId(topic_id=topic_id, partition=int(number)): offset
        for topic_id, offsets in document.get("from", {}).items()
        for number, offset in offsets.items()
    }
    return StreamPosition(marks=marks, begins=begins)


def without(ranges: Iterable[Range], taken: Sequence[Range]) -> list[Range]:
    """The ranges minus those `taken`, in order. Neither list may overlap itself."""
    left: list[Range] = []
    for first, end in sorted(ranges):
        at = first
        for taken_first, taken_end in sorted(taken):
            if taken_first >= end or taken_end <= at:
                continue
            if taken_first > at:
                left.append((at, taken_first))
            at = min(taken_end, end)
        if at < end:
            left.append((at, end))
    return left


def ranges_between(start: StreamPosition | None, end: StreamPosition) -> dict[PartitionId, list[Range]]:
    """The offsets of the batch from `start` (None: the stream's beginning) to `end`, by partition."""
    found: dict[PartitionId, list[Range]] = {}
    for partition, mark in end.marks.items():
        before = None if start is None else start.marks.get(partition)
        first = end.begins[partition] if before is None or partition in end.begins else before.end
        # An open gap beyond a truncation belongs to a history that no longer exists.
        again = [] if before is None else [(low, min(high, first)) for low, high in before.open if low < first]
        fresh = [(first, mark.end)] if first < mark.end else []
        if ranges := without([*again, *fresh], mark.open):
            found[partition] = ranges
    return found


def _checked(document: Mapping[str, Any]) -> Mapping[str, Any]:
    version = document.get(FORMAT_FIELD)
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise UnsupportedFormatError(
            f"the checkpoint holds no position that this release can read: its version is {version!r}",
            operation="follow an archive",
            hint="it belongs to another query or to a newer release; give the stream a checkpoint of its own",
        )
    return document


def _lists(values: Mapping[PartitionId, list[int]]) -> dict[str, list[list[int] | None]]:
    """By partition number; null for a partition that is not followed."""
    lists: dict[str, list[list[int] | None]] = {}
    count_partitions((place.topic_id, place.partition) for place in values)
    for place, value in values.items():
        numbers = lists.setdefault(place.topic_id, [])
        numbers.extend([None] * (place.partition - len(numbers)))
        numbers.append(value)
    return lists


def _by_number(values: Mapping[PartitionId, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for place, value in values.items():
        found.setdefault(place.topic_id, {})[str(place.partition)] = value
    return found


OPERATION: Final = "follow an archive"
ACCEPT: Final = "the option failOnDataLoss=false continues with what the archive holds"

TIMELESS: Final = -(2**63)
_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "end_offset", "kind", "reason", "bytes"),
    *("min_timestamp", "max_timestamp"),
    *("first_leader_epoch", "last_leader_epoch"),
)


_Candidates: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]"
"""Rows that a batch may take, by partition and offset: the rows, the numbers of their partitions, and the offset at
which reading each begins, which is its base or behind what was read of it before."""


def advance(
    view: StreamView, start: StreamPosition, limits: tuple[int | None, int | None], scope: Scope, *, lossy: bool
) -> StreamPosition:
    """The next position; `start` itself if nothing is new. RefusedError: the stream lost records, unless `lossy`.

    `limits` are the offsets and the stored bytes of one batch; None: no limit. A single segment may exceed its bytes.
    """
    lows = {
        number: resume(view, number, start.marks.get(partition), lossy=lossy)
        for number, partition in _news(view, start)
    }
    marks: dict[PartitionId, StreamMark] = dict(start.marks)
    begins: dict[PartitionId, int] = {}
    for number, low in lows.items():
        partition = view.partitions[number]
        before = marks.get(partition)
        if before is None or low != before.end:
            begins[partition] = low
        marks[partition] = _mended(view, number, low, before)
    for number, end, epoch in _taken(view, _candidates(view, lows), limits, scope):
        partition = view.partitions[number]
        mark = marks[partition]
        fresh = view.mendable_in(number, mark.end, end)
        marks[partition] = StreamMark(end, max(mark.epoch, epoch), (*mark.open, *fresh))
    # A new partition of which the limit left nothing joins in a later batch.
    kept = {
        partition: mark for partition, mark in marks.items() if partition in start.marks or mark.end > begins[partition]
    }
    if kept == start.marks:
        return start
    return StreamPosition(marks=kept, begins={partition: low for partition, low in begins.items() if partition in kept})


def mark_at(view: StreamView, number: int, end: int) -> StreamMark:
    """The mark of a stream that has read a partition up to `end`."""
    rows = view.rows_of(number)
    below = slice(rows.start, rows.start + int(np.searchsorted(view.base[rows], end)))
    return StreamMark(end, int(view.last_epoch[below].max(initial=-1)), view.mendable_in(number, 0, end))


def _news(view: StreamView, start: StreamPosition) -> list[tuple[int, PartitionId]]:
    """Partitions whose end or last epoch differs from the stream's, or that have open gaps."""
    last = view.starts[1:] - 1
    ends, epochs = view.end[last].tolist(), view.first_epoch[last].tolist()
    found = []
    for number, partition in enumerate(view.partitions):
        mark = start.marks.get(partition)
        if mark is None or mark.end != ends[number] or epochs[number] > mark.epoch or mark.open:
            found.append((number, partition))
    return found


def _mended(view: StreamView, number: int, low: int, before: StreamMark | None) -> StreamMark:
    """The mark before new rows are added: open gaps that the archive has filled since are closed."""
    if before is None:
        return StreamMark(low, -1, () if view.native else view.mendable_in(number, 0, low))
    wanted = [(first, min(end, low)) for first, end in before.open if first < low]
    if not wanted:
        return StreamMark(low, before.epoch)
    span = view.rows_of(number)
    meeting = (view.end[span] > wanted[0][0]) & (view.base[span] < wanted[-1][1])
    settled = np.flatnonzero(meeting & ~view.mendable[span]) + span.start
    left = without(wanted, [(int(view.base[row]), int(view.end[row])) for row in settled])
    inside = [row for row in settled if any(view.base[row] < end and first < view.end[row] for first, end in wanted)]
    return StreamMark(low, max([before.epoch, *view.last_epoch[inside].tolist()]), tuple(left))


def _candidates(view: StreamView, lows: Mapping[int, int]) -> _Candidates:
    rows, groups, firsts = ([np.empty(0, np.int64)] for _ in range(3))
    for number, low in lows.items():
        span = view.rows_of(number)
        # Rows do not overlap, so ends are sorted as bases are.
        mine = np.arange(span.start + np.searchsorted(view.end[span], low, side="right"), span.stop, dtype=np.int64)
        rows.append(mine)
        groups.append(np.full(mine.size, number, np.int64))
        firsts.append(np.maximum(view.base[mine], low))
    return np.concatenate(rows), np.concatenate(groups), np.concatenate(firsts)


def _taken(
    view: StreamView, candidates: _Candidates, limits: tuple[int | None, int | None], scope: Scope
) -> list[tuple[int, int, int]]:
    """The number, new end and highest epoch of each partition that the batch reads."""
    order = np.argsort(_ages(view, *candidates[:2]), kind="stable")
    rows, groups, first = (column[order] for column in candidates)
    wanted = view.data[rows] & _in_scope(view, rows, scope)
    by_offsets, left = _fitting(np.where(wanted, view.end[rows] - first, 0), limits[0])
    by_bytes, _ = _fitting(np.where(wanted, view.bytes[rows], 0), limits[1])
    if by_bytes == 0 or not wanted[:by_bytes].any():
        # At least one segment, or the stream would never advance.
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


def _ages(view: StreamView, rows: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row the highest timestamp up to it in its partition, so that sorting by it keeps offsets in order."""
    times = np.where(view.data[rows], view.timestamp[rows], TIMELESS)
    borders = np.flatnonzero(np.diff(groups)) + 1
    return np.concatenate([np.maximum.accumulate(run) for run in np.split(times, borders)])


def _in_scope(view: StreamView, rows: NDArray[np.int64], scope: Scope) -> NDArray[np.bool_]:
    wanted = view.end[rows] > scope.first_offset
    if scope.end_offset is not None:
        wanted &= view.base[rows] < scope.end_offset
    if scope.since_ms is not None:
        wanted &= (view.timestamp[rows] >= scope.since_ms) | (view.timestamp[rows] == TIMELESS)
    return np.asarray(wanted)


def _fitting(costs: NDArray[np.int64], limit: int | None) -> tuple[int, int]:
    """The number of first costs that fit into the limit, and what is left of it for the next one."""
    if limit is None:
        return costs.size, 0
    sums = np.cumsum(np.minimum(costs, limit + 1))
    count = int(np.searchsorted(sums, limit, side="right"))
    return count, limit - (int(sums[count - 1]) if count else 0)


def resume(view: StreamView, number: int, mark: StreamMark | None, *, lossy: bool) -> int:
    """The offset at which reading a partition resumes: that of its mark, unless something was lost."""
    rows = view.rows_of(number)
    if mark is None:
        # Rows that were pruned before the stream met the partition are no loss.
        left = np.flatnonzero(~view.pruned[rows]) + rows.start
        return int(view.base[left[0]]) if left.size else int(view.end[rows.stop - 1])
    first = int(view.base[rows.start])
    if (cut := _cut(view, rows, mark)) is not None:
        if not lossy:
            raise _truncated(view, number, mark, cut)
        return cut
    if lossy:
        return max(mark.end, first)
    if first > mark.end:
        raise lost(_name(view, number), mark.end, first)
    pruned = np.flatnonzero(view.pruned[rows] & (view.end[rows] > mark.end)) + rows.start
    if pruned.size:
        raise lost(_name(view, number), max(mark.end, int(view.base[pruned[0]])), int(view.end[pruned[0]]))
    return mark.end


def check_known(view: StreamView, start: StreamPosition) -> None:
    """RefusedError: the archive does not have a topic that the stream has read."""
    gone = next((mark for mark in start.marks if mark.topic_id not in view.known), None)
    if gone is not None:
        raise RefusedError(
            f"the archive does not have a topic that the stream has read up to offset {start.marks[gone].end}",
            operation=OPERATION,
            object_name=str(gone),
            hint=f"this is probably another archive: start the stream with a new checkpoint; {ACCEPT}",
        )


def lost(name: str, first: int, end: int) -> RefusedError:
    return RefusedError(
        f"offsets {first} to {end - 1} left the archive before the stream read them",
        operation=OPERATION,
        object_name=name,
        offset=first,
        hint=ACCEPT,
    )


def _cut(view: StreamView, rows: slice, mark: StreamMark) -> int | None:
    """The offset below the mark at which another history begins. Every leader since a truncation has a higher epoch."""
    below = slice(rows.start, rows.start + int(np.searchsorted(view.base[rows], mark.end)))
    newer = np.flatnonzero(view.data[below] & (view.first_epoch[below] > mark.epoch)) + below.start
    for row in newer:
        first, end = int(view.base[row]), min(int(view.end[row]), mark.end)
        # The stream had passed over a gap that was filled since, so it has read nothing there.
        if without([(first, end)], mark.open):
            return first
    last = int(view.end[rows.stop - 1])
    return last if last < mark.end else None


def _truncated(view: StreamView, number: int, mark: StreamMark, cut: int) -> LogTruncatedError:
    return LogTruncatedError(
        f"the log was truncated at offset {cut}, and the stream has read up to {mark.end} of the history before",
        operation=OPERATION,
        object_name=_name(view, number),
        offset=cut,
        hint=f"undo in the stream's target everything from offset {cut} on; {ACCEPT}, from {cut} on",
    )


def _name(view: StreamView, number: int) -> str:
    partition = view.partitions[number]
    return f"{view.topics[partition.topic_id]}-{partition.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """Rows by partition and offset: those of `partitions[i]` are at [starts[i], starts[i + 1])."""

    partitions: tuple[PartitionId, ...]
    topics: Mapping[str, str]
    """The name of each topic id that is followed."""
    known: frozenset[str]
    """Every topic id of the archive."""
    starts: NDArray[np.int64]
    base: NDArray[np.int64]
    end: NDArray[np.int64]
    bytes: NDArray[np.int64]
    timestamp: NDArray[np.int64]
    """The highest timestamp; `TIMELESS` if it is unknown."""
    first_epoch: NDArray[np.int64]
    last_epoch: NDArray[np.int64]
    data: NDArray[np.bool_]
    mendable: NDArray[np.bool_]
    """Gaps that a later run may fill."""
    pruned: NDArray[np.bool_]
    native: bool

    def rows_of(self, number: int) -> slice:
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def mendable_in(self, number: int, first: int, end: int) -> tuple[tuple[int, int], ...]:
        """The gaps of a partition within [first, end) that a later run may fill."""
        rows = self.rows_of(number)
        chosen = np.flatnonzero(self.mendable[rows] & (self.end[rows] > first) & (self.base[rows] < end)) + rows.start
        found = [(max(int(self.base[row]), first), min(int(self.end[row]), end)) for row in chosen]
        if not self.native and first <= 0 < self.base[rows.start]:
            # Another tool may add older files later; a backup of ours never does.
            found.insert(0, (0, int(self.base[rows.start])))
        return tuple(found)


def view_of(archive: Archive, options: TableOptions) -> StreamView:
    """The topics and partitions that the options select. A pattern may match nothing yet."""
    rows = archive.catalog.rows(columns=_COLUMNS)
    named = rows.group_by("topic_id").aggregate([("topic", "max")]).to_pylist()
    names = {row["topic_id"]: row["topic_max"] for row in named}
    chosen = {*select_topics(dict.fromkeys(names.values(), False), options.topics, internal=True).chosen}
    topics = {topic_id: name for topic_id, name in names.items() if name in chosen}
    followed = pc.field("topic_id").isin(pa.array(sorted(topics), pa.string()))
    if options.scope.partitions is not None:
        followed &= pc.field("partition").isin(pa.array(sorted(options.scope.partitions), pa.int32()))
    rows = rows.filter(followed).combine_chunks()
    # Without threads, so that groups keep the order of the rows.
    groups = rows.group_by(["topic_id", "partition"], use_threads=False).aggregate([("kind", "count")]).to_pylist()
    counts = [group["kind_count"] for group in groups]
    open_reasons = sorted(MENDABLE if archive.is_native else {*MENDABLE, GapReason.UNRECORDED})
    gap = pc.equal(rows["kind"], Kind.GAP)

    def because(reasons: list[GapReason]) -> NDArray[np.bool_]:
        wanted = pc.is_in(rows["reason"], pa.array(list(map(str, reasons)), pa.string()))
        return _truths(pc.and_(gap, wanted))

    return StreamView(
        partitions=tuple(PartitionId(topic_id=group["topic_id"], partition=group["partition"]) for group in groups),
        topics=topics,
        known=frozenset(names),
        starts=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)]),
        base=_numbers(rows["base_offset"], 0),
        end=_numbers(rows["end_offset"], 0),
        bytes=_numbers(rows["bytes"], 0),
        timestamp=_numbers(newest_times(rows), TIMELESS),
        first_epoch=_numbers(rows["first_leader_epoch"], -1),
        last_epoch=_numbers(rows["last_leader_epoch"], -1),
        data=_truths(pc.equal(rows["kind"], Kind.DATA)),
        mendable=because(open_reasons),
        pruned=because([GapReason.PRUNED]),
        native=archive.is_native,
    )


def _numbers(column: pa.ChunkedArray, missing: int) -> NDArray[np.int64]:
    filled = pc.fill_null(column, missing).cast(pa.int64()).combine_chunks()
    numbers: NDArray[np.int64] = number_column(filled) if len(filled) else np.empty(0, np.int64)
    return numbers


def _truths(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    filled = column.combine_chunks()
    truths: NDArray[np.bool_] = number_column(filled) if len(filled) else np.empty(0, np.bool_)
    return truths
