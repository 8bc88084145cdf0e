"""What the archive has of a request: per source partition which rows to read, how much that is, and what is missing.

Works on columns, so that a million rows take tens of megabytes, and keeps nothing of a row: a plan speaks of offsets,
because segments may be compacted into others while a restore is under way, and hold the same records then.

Rows are left out only where it is sure that they hold nothing. That is `max_timestamp` below `since`; the lowest
timestamp of a row may be higher than that of a record in it, so it rules out nothing: it serves estimates only.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic reads the types of fields
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from maxbrod.catalog.schema import SORT_ORDER, Kind
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.errors import CorruptDataError
from maxbrod.model import GapReason, PartitionId
from maxbrod.restore.plan.columns import RowColumns, read_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.catalog.replaced import Revisions
    from maxbrod.catalog.tiling import Overlap
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.restore.plan.choosing import Chosen
    from maxbrod.restore.plan.request import RestoreRequest

TROUBLES_MAX: Final = 20
"""Named of each partition: whoever sees that many looks at the archive first."""
_REASONS: Final = tuple(GapReason)
_BAD: Final = (_REASONS.index(GapReason.CORRUPT), _REASONS.index(GapReason.UNEXPLAINED))
_UNDATED_MS: Final = -1
"""The time of a record without one (magic 0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRange:
    """Offsets [first, end) of which records are known, or must be feared, to be lost. `reason` None: no row at all."""

    first: int
    end: int
    reason: GapReason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRange:
    """Offsets [first, end) of a row that cannot be read: its object is gone, or is damaged from `first` on.

    `end` is the row's own. Where both are one, all records are there, and yet the bytes are not what was written.
    """

    first: int
    end: int
    object_name: str
    why: str

    def __str__(self) -> str:
        if self.first == self.end:
            return f"{self.object_name} is not what was written, though every batch below offset {self.end} is sound"
        return f"offsets {self.first} to {self.end} cannot be read: {self.why} ({self.object_name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One partition of the archive as far as it is wanted for. Counts and bytes are estimates where a row is cut."""

    topic: str
    topic_id: str
    partition: int
    asked_first: int
    asked_end: int
    """Offsets [asked_first, asked_end) are to be restored or explained."""
    first_offset: int
    """The first that can hold a record to restore. Where none does, where the log is to begin and end: at `asked_end`,
    or at `asked_first` if `until` is before all that there is."""
    rows: int = 0
    records: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    slice_bytes_max: int = 0
    """No batch is larger: the log of the largest slice."""
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    holes: int = 0
    """Offsets from `first_offset` on that surely get no record: compacted, gaps. Markers are not among them."""
    aborted: int = 0
    """Offsets that at most belong to aborted transactions."""
    gaps: Mapping[str, int] = field(default_factory=dict)
    """Offsets without data by reason, of all that was asked for."""
    troubles: tuple[MissingRange, ...] = ()
    troubles_total: int = 0
    lost: tuple[UnreadableRange, ...] = ()
    """What the rows promise of the offsets that are asked for, and the objects do not hold: it is left out."""
    revision: int = 0
    """How often rows of the partition had been replaced when this was planned: what comes later changes no plan."""

    @property
    def id(self) -> PartitionId:
        return PartitionId(topic_id=self.topic_id, partition=self.partition)


def measure_sources(
    rows: pa.Table,
    request: RestoreRequest,
    chosen: Chosen,
    ends: Mapping[PartitionId, int],
    *,
    as_of: bool,
    lost: Mapping[PartitionId, Sequence[UnreadableRange]] | None = None,
    revisions: Revisions | None = None,
) -> tuple[Source, ...]:
    """In the order of topic and partition. `rows` need the columns of `SOURCE_COLUMNS`, in any order.

    `ends` is what a snapshot says of the end of each partition: with `as_of` nothing beyond it exists, else it tells
    of partitions that are archived and empty. `lost` are rows of which it is known that they cannot be read.
    `revisions` are those that the rows are of.
    """
    rows = rows.filter(pc.field("kind") != Kind.RUN).sort_by(SORT_ORDER)
    columns = read_columns(rows)
    spans = columns.spans
    known = {**({} if as_of else dict.fromkeys(spans)), **dict.fromkeys(ends)}
    asked = {}
    for each in known:
        topic = chosen.topics.get(each.topic_id)
        if topic is None or not _is_wanted(request, topic, each.partition):
            continue
        extent = columns.extent(each)
        end = ends[each] if extent is None or as_of else extent[1]
        first = end if extent is None else min(extent[0], end)
        asked[each] = _within_range(request, topic, each.partition, first, end)
    holes: dict[PartitionId, list[MissingRange]] = {}
    faults = find_tiling_faults(rows, {each: extent for each, extent in asked.items() if extent[0] < extent[1]})
    for overlap in faults.overlaps:
        if overlap.partition in asked:
            raise _covered_twice(overlap)
    for fault in faults.holes:
        if fault.partition in asked:
            trouble = MissingRange(first=fault.first_offset, end=fault.end_offset, reason=None)
            holes.setdefault(fault.partition, []).append(trouble)
    unread = lost or {}
    sources = [
        _measure(
            columns, request, chosen.topics[each.topic_id], each, extent, holes.get(each, []), unread.get(each, ())
        )
        for each, extent in asked.items()
    ]
    sources = [replace(each, revision=(revisions or {}).get(each.id, 0)) for each in sources]
    return tuple(sorted(sources, key=lambda source: (source.topic, source.topic_id, source.partition)))


def revisions_of(sources: Iterable[Source]) -> dict[PartitionId, int]:
    """What to ask the catalog with for the rows that the sources were measured by."""
    return {each.id: each.revision for each in sources}


def rows_to_read(rows: pa.Table, sources: Sequence[Source], request: RestoreRequest) -> pa.Table:
    """Of rows of any partitions the sources' data, in the order of offsets, without what surely holds nothing.

    As many columns as `rows` has; those of `SOURCE_COLUMNS` must be among them. `catalog.rows.decode_rows` makes
    values of them. The first and the last of each source may reach beyond the offsets that are asked for.
    """
    rows = rows.filter(pc.field("kind") == Kind.DATA).sort_by(SORT_ORDER)
    columns = read_columns(rows)
    kept = np.zeros(rows.num_rows, np.bool_)
    for source in sources:
        span = columns.spans.get(source.id)
        if span is not None:
            kept[span] |= _kept(columns, span, (source.asked_first, source.asked_end), request)
    return rows.take(np.flatnonzero(kept))


def _covered_twice(overlap: Overlap) -> CorruptDataError:
    return CorruptDataError(
        f"two rows of the catalog cover the offsets {overlap.first_offset} to {overlap.end_offset}",
        operation="plan a restore",
        object_name=str(overlap.partition),
        offset=overlap.first_offset,
        hint="nothing was restored; see 'maxbrod check'",
    )


def _is_wanted(request: RestoreRequest, topic: str, partition: int) -> bool:
    ranged = {each.where.partition for each in request.ranges if each.where.topic == topic}
    return (not ranged or partition in ranged) and (not request.partitions or partition in request.partitions)


def _within_range(request: RestoreRequest, topic: str, partition: int, first: int, end: int) -> tuple[int, int]:
    """What is asked for beyond the archive's end stays asked for: it is missing, and the preflight says so."""
    for each in request.ranges:
        if (each.where.topic, each.where.partition) == (topic, partition):
            first = first if each.first is None else max(each.first, first)
            end = end if each.end is None else each.end
    return min(first, end), end


def sound_part(stored: Slice, lost: Mapping[int, UnreadableRange]) -> Slice | None:
    """What can be read of a slice; None if nothing can. `lost` are those of its source, by their ends."""
    found = lost.get(stored.end_offset)
    if found is None:
        return stored
    return None if found.first <= stored.base_offset else replace(stored, sound_end=found.first)


def with_lost(source: Source, lost: Iterable[UnreadableRange]) -> Source:
    """The same source of which more is known to be lost."""
    known = {each.end: each for each in source.lost} | {each.end: each for each in lost}
    return replace(source, lost=tuple(known[end] for end in sorted(known)))


def _kept(columns: RowColumns, span: slice, asked: tuple[int, int], request: RestoreRequest) -> NDArray[np.bool_]:
    """Data rows that may hold a record to restore."""
    return _asked(columns, span, asked, request) & (columns.records[span] > 0)


def _asked(columns: RowColumns, span: slice, asked: tuple[int, int], request: RestoreRequest) -> NDArray[np.bool_]:
    """Data rows of the offsets and times that are asked for."""
    base, end = columns.base[span], columns.end[span]
    kept = columns.data[span] & (end > asked[0]) & (base < asked[1])
    dated, highest = columns.dated[span], columns.highest[span]
    if request.since_ms is not None and request.since_ms > _UNDATED_MS:
        kept &= ~dated | (highest >= request.since_ms)
    if request.until_ms is not None:
        # The highest timestamp of a single record is its own.
        kept &= ~(dated & (columns.records[span] == 1) & (highest >= request.until_ms))
    return kept


def _measure(
    columns: RowColumns,
    request: RestoreRequest,
    topic: str,
    partition: PartitionId,
    asked: tuple[int, int],
    troubles: list[MissingRange],
    lost: Sequence[UnreadableRange],
) -> Source:
    span = columns.spans.get(partition, slice(0, 0))
    base, end = columns.base[span], columns.end[span]
    kept = _kept(columns, span, asked, request)
    wanted = set(end[_asked(columns, span, asked, request)].tolist()) if lost else set()
    lost = [each for each in lost if each.end in wanted]
    # A row that begins before what is lost of it still holds records.
    gone = np.isin(end, [each.end for each in lost if each.first <= base[np.searchsorted(end, each.end)]])
    kept &= ~gone
    shares = np.where(kept, _estimate_shares(columns, span, asked, request), 0.0)
    first = asked[0] if request.until_ms is not None and columns.data[span].any() else asked[1]
    if kept.any():
        first = int(max(base[kept.argmax()], asked[0]))
    filled = np.flatnonzero(shares > 0)
    # Nothing has to stand behind the last record where a time cut the rest off.
    last = asked[1] if request.until_ms is None else int(min(end[filled[-1]], asked[1])) if filled.size else first
    lengths = np.clip(np.minimum(end, last) - np.maximum(base, first), 0, None)
    missing = np.where(columns.data[span], columns.end[span] - base - columns.records[span], 0)
    dated = kept & columns.dated[span]
    troubles = sorted([*troubles, *_troubles(columns, span, asked)], key=lambda each: each.first)
    return Source(
        topic=topic,
        topic_id=partition.topic_id,
        partition=partition.partition,
        asked_first=asked[0],
        asked_end=asked[1],
        first_offset=first,
        rows=int(kept.sum()),
        records=_add_shares(columns.records[span], shares),
        bytes=_add_shares(columns.bytes[span], shares),
        raw_bytes=_add_shares(columns.raw_bytes[span], shares),
        slice_bytes_max=int(columns.raw_bytes[span][kept].max(initial=0)),
        min_timestamp=int(columns.lowest[span][dated].min()) if dated.any() else None,
        max_timestamp=int(columns.highest[span][dated].max()) if dated.any() else None,
        holes=_add_shares(missing, shares) + int(lengths[gone | ~columns.data[span]].sum()),
        aborted=_add_shares(columns.aborted[span], shares),
        gaps=_gaps(columns, span, asked),
        troubles=tuple(troubles[:TROUBLES_MAX]),
        troubles_total=len(troubles),
        lost=tuple(lost),
    )


def _gaps(columns: RowColumns, span: slice, asked: tuple[int, int]) -> dict[str, int]:
    lengths = np.minimum(columns.end[span], asked[1]) - np.maximum(columns.base[span], asked[0])
    gaps = ~columns.data[span] & (lengths > 0)
    reasons, lengths = columns.reason[span][gaps], lengths[gaps]
    return {str(_REASONS[number]): int(lengths[reasons == number].sum()) for number in sorted(set(reasons.tolist()))}


def _troubles(columns: RowColumns, span: slice, asked: tuple[int, int]) -> list[MissingRange]:
    """Gaps, and rows of data with holes in them, whose reason is a bad one."""
    base, end, reason = columns.base[span], columns.end[span], columns.reason[span]
    bad = (reason == _BAD[0]) | (reason == _BAD[1])
    bad &= (end > asked[0]) & (base < asked[1])
    return [
        MissingRange(
            first=max(int(base[row]), asked[0]), end=min(int(end[row]), asked[1]), reason=_REASONS[int(reason[row])]
        )
        for row in np.flatnonzero(bad).tolist()
    ]


def _estimate_shares(
    columns: RowColumns, span: slice, asked: tuple[int, int], request: RestoreRequest
) -> NDArray[np.float64]:
    """Which part of each row is about wanted, as if offsets and times were spread evenly in it."""
    base, end = columns.base[span], columns.end[span]
    inside = np.clip(np.minimum(end, asked[1]) - np.maximum(base, asked[0]), 0, None)
    shares: NDArray[np.float64] = inside / np.maximum(end - base, 1)
    if request.since_ms is None and request.until_ms is None:
        return shares
    low, high = columns.lowest[span].astype(np.float64), columns.highest[span].astype(np.float64)
    length = np.maximum(high - low, 0) + 1
    since = low if request.since_ms is None else np.maximum(low, request.since_ms)
    until = high + 1 if request.until_ms is None else np.minimum(high + 1, request.until_ms)
    return np.where(columns.dated[span], shares * np.clip((until - since) / length, 0, 1), shares)


def _add_shares(values: NDArray[np.int64], shares: NDArray[np.float64]) -> int:
    """Rows that are taken whole count exactly."""
    whole = shares == 1
    if whole.all():
        return int(values.sum())
    return int(values[whole].sum()) + int(np.ceil((values[~whole] * shares[~whole]).sum()))
