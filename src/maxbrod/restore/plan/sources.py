"""The archive's part of a plan: for each source partition the rows to read, their size, and what is missing.

Works on columns, so that a million rows take tens of megabytes, and keeps no rows: a plan is about offsets, because
segments may be compacted into others during a restore, and hold the same records then.

A row is left out only if it certainly holds no requested record, which is if its `max_timestamp` is below `since`. The
`min_timestamp` of a row may be higher than that of a record in it. It excludes nothing, and serves estimates only.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic reads the types of fields
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.schema import SCHEMA, SORT_ORDER, Kind
from maxbrod.catalog.tiling import Overlap, find_tiling_faults
from maxbrod.errors import CorruptDataError
from maxbrod.model import GapReason, PartitionId
from maxbrod.restore.plan.columns import RowColumns, read_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from maxbrod.catalog.replaced import Revisions
    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.restore.plan.request import Chosen, RestoreRequest

TROUBLES_MAX: Final = 20
"""Missing ranges that are named for one partition. With more, the user looks at the archive first."""
_REASONS: Final = tuple(GapReason)
_UNDATED_MS: Final = -1
"""The timestamp of records without one (magic 0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRange:
    """Offsets [first, end) where records are, or may be, missing. `reason` None: no row covers them."""

    first: int
    end: int
    reason: GapReason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRange:
    """Offsets [first, end) of a row that cannot be read: its object is missing, or damaged from `first` on.

    `end` is the end of the row. If `first` equals it, all records can be read, but the bytes are not those written.
    """

    first: int
    end: int
    object_name: str
    why: str

    def __str__(self) -> str:
        if self.first == self.end:
            return f"{self.object_name} has changed since it was written, but all batches below {self.end} are sound"
        return f"offsets {self.first} to {self.end} cannot be read: {self.why} ({self.object_name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The requested part of one archived partition. Counts and bytes are estimates if a row is cut."""

    topic: str
    topic_id: str
    partition: int
    asked_first: int
    asked_end: int
    """Offsets [asked_first, asked_end) are to be restored or explained."""
    first_offset: int
    """The first offset that can hold a record to restore. Without any such record, the offset at which the log begins
    and ends: `asked_end`, or `asked_first` if `until` is before all records."""
    rows: int = 0
    records: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    slice_bytes_max: int = 0
    """The size of the largest slice, which no batch exceeds."""
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    holes: int = 0
    """Offsets from `first_offset` on that certainly get no record: compacted ones and gaps. Markers do not count."""
    aborted: int = 0
    """An upper bound of the offsets that belong to aborted transactions."""
    gaps: Mapping[str, int] = field(default_factory=dict)
    """The number of requested offsets without data, by reason."""
    troubles: tuple[MissingRange, ...] = ()
    troubles_total: int = 0
    lost: tuple[UnreadableRange, ...] = ()
    """Requested ranges that rows name and that cannot be read from their objects. They are left out."""
    revision: int = 0
    """The replacements of rows of the partition until planning. Later replacements do not change the plan."""

    @property
    def id(self) -> PartitionId:
        return PartitionId(topic_id=self.topic_id, partition=self.partition)


class SourceRows(Protocol):
    """The rows of the topics of a request, with the columns of `SOURCE_COLUMNS`, read when they are needed."""

    def portions(self) -> Iterator[pa.Table]:
        """All of them, in portions that have all rows of one or more partitions."""

    def of_topic(self, topic_id: str) -> pa.Table: ...


@dataclass(frozen=True, slots=True)
class RowsInMemory:
    table: pa.Table

    def portions(self) -> Iterator[pa.Table]:
        yield self.table

    def of_topic(self, topic_id: str) -> pa.Table:
        return self.table.filter(pc.field("topic_id") == topic_id)


def measure_sources(
    rows: pa.Table | Iterable[pa.Table],
    request: RestoreRequest,
    chosen: Chosen,
    ends: Mapping[PartitionId, int],
    *,
    as_of: bool,
    lost: Mapping[PartitionId, Sequence[UnreadableRange]] | None = None,
    revisions: Revisions | None = None,
    had: Callable[[pa.Table], pa.ChunkedArray] | None = None,
) -> tuple[Source, ...]:
    """The requested partitions, sorted by topic and partition. `rows` have the columns of `SOURCE_COLUMNS`.

    Rows in portions are measured one by one, and a portion has all rows of its partitions.
    `ends` are the ends of partitions in a snapshot. With `as_of` nothing beyond them exists; otherwise they only tell
    which partitions are archived and empty. `lost` are ranges that cannot be read. `revisions` are those of the rows.
    `had` marks gaps `pruned` since the chosen point in the past; None: what was pruned is not missed.
    """
    sources: list[Source] = []
    seen: set[PartitionId] = set()

    def measure(portion: pa.Table, columns: RowColumns, partitions: Iterable[PartitionId]) -> None:
        asked = _ask(columns, request, chosen, partitions, ends, as_of=as_of)
        missed = None if had is None else had(portion).to_numpy()
        sources.extend(_measure_portion(portion, columns, request, chosen, asked, lost or {}, missed))

    for portion in [rows] if isinstance(rows, pa.Table) else rows:
        ordered = portion.filter(pc.field("kind") != Kind.RUN).sort_by(SORT_ORDER)
        columns = read_columns(ordered)
        measure(ordered, columns, [span for span in columns.spans if not as_of or span in ends])
        seen |= columns.spans.keys()
    nothing = SCHEMA.empty_table()
    measure(nothing, read_columns(nothing), [end for end in ends if end not in seen])
    sources = [replace(each, revision=(revisions or {}).get(each.id, 0)) for each in sources]
    return tuple(sorted(sources, key=lambda source: (source.topic, source.topic_id, source.partition)))


def _ask(
    columns: RowColumns,
    request: RestoreRequest,
    chosen: Chosen,
    partitions: Iterable[PartitionId],
    ends: Mapping[PartitionId, int],
    *,
    as_of: bool,
) -> dict[PartitionId, tuple[int, int]]:
    """The requested offsets of those of these partitions that are requested."""
    asked = {}
    for partition in partitions:
        topic = chosen.topics.get(partition.topic_id)
        if topic is None or not _is_requested(request, topic, partition.partition):
            continue
        extent = columns.extent(partition)
        end = ends[partition] if extent is None or as_of else extent[1]
        first = end if extent is None else min(extent[0], end)
        asked[partition] = _within_range(request, topic, partition.partition, first, end)
    return asked


def _measure_portion(
    rows: pa.Table,
    columns: RowColumns,
    request: RestoreRequest,
    chosen: Chosen,
    asked: Mapping[PartitionId, tuple[int, int]],
    lost: Mapping[PartitionId, Sequence[UnreadableRange]],
    missed: NDArray[np.bool_] | None,
) -> list[Source]:
    holes: dict[PartitionId, list[MissingRange]] = {}
    faults = find_tiling_faults(rows, {each: extent for each, extent in asked.items() if extent[0] < extent[1]})
    for overlap in faults.overlaps:
        if overlap.partition in asked:
            raise _covered_twice(overlap)
    for fault in faults.holes:
        if fault.partition in asked:
            missing = MissingRange(first=fault.first_offset, end=fault.end_offset, reason=None)
            holes.setdefault(fault.partition, []).append(missing)
    found = []
    for each, extent in asked.items():
        topic = chosen.topics[each.topic_id]
        span = columns.spans.get(each, slice(0, 0))
        bad = _bad_ranges(
            columns, span, extent, None if missed is None else missed[span] | request.names(topic, each.partition)
        )
        found.append(_measure(columns, request, topic, each, extent, [*holes.get(each, []), *bad], lost.get(each, ())))
    return found


def revisions_of(sources: Iterable[Source]) -> dict[PartitionId, int]:
    """The revisions by which the catalog returns the rows that the sources were measured with."""
    return {source.id: source.revision for source in sources}


def rows_to_read(rows: pa.Table, sources: Sequence[Source], request: RestoreRequest) -> pa.Table:
    """The data rows of the sources in the order of offsets, without rows that certainly hold no requested record.

    Keeps all columns of `rows`, which must include those of `SOURCE_COLUMNS`. The first and the last row of each source
    may reach beyond the requested offsets.
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


def _is_requested(request: RestoreRequest, topic: str, partition: int) -> bool:
    ranged = {each.where.partition for each in request.ranges if each.where.topic == topic}
    return (not ranged or partition in ranged) and (not request.partitions or partition in request.partitions)


def _within_range(request: RestoreRequest, topic: str, partition: int, first: int, end: int) -> tuple[int, int]:
    """Offsets beyond the archive's end stay requested: they are missing, and the preflight reports them."""
    for each in request.ranges:
        if (each.where.topic, each.where.partition) == (topic, partition):
            first = first if each.first is None else max(each.first, first)
            end = end if each.end is None else each.end
    return min(first, end), end


def sound_part(stored: Slice, lost: Mapping[int, UnreadableRange]) -> Slice | None:
    """The readable part of a slice; None if there is none. `lost` are the ranges of its source, by their ends."""
    found = lost.get(stored.end_offset)
    if found is None:
        return stored
    return None if found.first <= stored.base_offset else replace(stored, sound_end=found.first)


def with_lost(source: Source, lost: Iterable[UnreadableRange]) -> Source:
    """The source with more unreadable ranges."""
    known = {each.end: each for each in source.lost} | {each.end: each for each in lost}
    return replace(source, lost=tuple(known[end] for end in sorted(known)))


def _kept(columns: RowColumns, span: slice, asked: tuple[int, int], request: RestoreRequest) -> NDArray[np.bool_]:
    """Data rows that may hold a record to restore."""
    return _asked(columns, span, asked, request) & (columns.records[span] > 0)


def _asked(columns: RowColumns, span: slice, asked: tuple[int, int], request: RestoreRequest) -> NDArray[np.bool_]:
    """Data rows within the requested offsets and times."""
    base, end = columns.base[span], columns.end[span]
    kept = columns.data[span] & (end > asked[0]) & (base < asked[1])
    dated, highest = columns.dated[span], columns.highest[span]
    if request.since_ms is not None and request.since_ms > _UNDATED_MS:
        kept &= ~dated | (highest >= request.since_ms)
    if request.until_ms is not None:
        # In a row with one record, the highest timestamp is that of the record.
        kept &= ~(dated & (columns.records[span] == 1) & (highest >= request.until_ms))
    return kept


def _measure(
    columns: RowColumns,
    request: RestoreRequest,
    topic: str,
    partition: PartitionId,
    asked: tuple[int, int],
    missing_ranges: list[MissingRange],
    lost: Sequence[UnreadableRange],
) -> Source:
    span = columns.spans.get(partition, slice(0, 0))
    base, end = columns.base[span], columns.end[span]
    kept = _kept(columns, span, asked, request)
    requested_ends = set(end[_asked(columns, span, asked, request)].tolist()) if lost else set()
    lost = [each for each in lost if each.end in requested_ends]
    # A row that begins before its unreadable range still holds records.
    gone = np.isin(end, [each.end for each in lost if each.first <= base[np.searchsorted(end, each.end)]])
    kept &= ~gone
    shares = np.where(kept, _estimate_shares(columns, span, asked, request), 0.0)
    first = asked[0] if request.until_ms is not None and columns.data[span].any() else asked[1]
    if kept.any():
        first = int(max(base[kept.argmax()], asked[0]))
    filled = np.flatnonzero(shares > 0)
    # If a time limit cuts the rest off, the log ends with the last record.
    last = asked[1] if request.until_ms is None else int(min(end[filled[-1]], asked[1])) if filled.size else first
    lengths = np.clip(np.minimum(end, last) - np.maximum(base, first), 0, None)
    missing = np.where(columns.data[span], columns.end[span] - base - columns.records[span], 0)
    dated = kept & columns.dated[span]
    missing_ranges = sorted(missing_ranges, key=lambda each: each.first)
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
        troubles=tuple(missing_ranges[:TROUBLES_MAX]),
        troubles_total=len(missing_ranges),
        lost=tuple(lost),
    )


def _gaps(columns: RowColumns, span: slice, asked: tuple[int, int]) -> dict[str, int]:
    lengths = np.minimum(columns.end[span], asked[1]) - np.maximum(columns.base[span], asked[0])
    gaps = ~columns.data[span] & (lengths > 0)
    reasons, lengths = columns.reason[span][gaps], lengths[gaps]
    return {str(_REASONS[number]): int(lengths[reasons == number].sum()) for number in sorted(set(reasons.tolist()))}


def _loses_records(reason: GapReason) -> bool:
    """True if records may be missing from the archive that the log had."""
    match reason:
        case GapReason.CORRUPT | GapReason.UNEXPLAINED:
            return True
        case GapReason.COMPACTED | GapReason.RETENTION | GapReason.TRUNCATED | GapReason.PRUNED:
            return False
        case GapReason.DELETED | GapReason.UNRECORDED:
            return False
        case _:
            assert_never(reason)


def _bad_ranges(
    columns: RowColumns, span: slice, asked: tuple[int, int], missed: NDArray[np.bool_] | None
) -> list[MissingRange]:
    """Gaps, and data rows with holes, whose reason is `corrupt` or `unexplained`; and gaps `pruned` that are `missed`.

    `missed` marks rows of the span. Whoever asks for the present misses nothing that was pruned on purpose.
    """
    base, end, reason = columns.base[span], columns.end[span], columns.reason[span]
    bad = np.isin(reason, [place for place, each in enumerate(_REASONS) if _loses_records(each)])
    if missed is not None:
        bad |= missed & (reason == _REASONS.index(GapReason.PRUNED))
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
    """The requested part of each row, estimated as if its offsets and times were spread evenly.

    For sums that a person reads.
    """
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
    """The sum of `values` by these shares. Rows that are requested completely count exactly."""
    whole = shares == 1
    if whole.all():
        return int(values.sum())
    return int(values[whole].sum()) + int(np.ceil((values[~whole] * shares[~whole]).sum()))
