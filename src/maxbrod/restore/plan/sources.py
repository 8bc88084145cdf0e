"""The archive's part of a plan: for each source partition the rows to read, their size, and what is missing.

Works on columns, so that a million rows take tens of megabytes, and keeps no rows: a plan is about offsets, because
segments may be compacted into others during a restore, and hold the same records then.

A row is left out only if it certainly holds no requested record, which is if its `max_timestamp` is below `since`. The
`min_timestamp` of a row may be higher than that of a record in it. It excludes nothing, and serves estimates only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod.catalog.rows import newest_times
from maxbrod.catalog.schema import SCHEMA, SORT_ORDER, Kind
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import GapReason, PartitionId

if TYPE_CHECKING:
    from maxbrod.catalog.replaced import Revisions
    from maxbrod.restore.plan.request import Chosen, RestoreRequest

SOURCE_COLUMNS: Final = (
    *("topic_id", "partition", "base_offset", "end_offset", "kind", "reason", "bytes", "raw_bytes", "records"),
    *("min_timestamp", "max_timestamp", "aborted"),
)
"""The columns that planning a restore reads."""

_NO_REASON: Final = -1
TROUBLES_MAX: Final = 20
"""Missing ranges that are named for one partition. With more, the user looks at the archive first."""
_REASONS: Final = tuple(GapReason)
_EXPLAINED: Final = frozenset(
    {
        *(GapReason.COMPACTED, GapReason.RETENTION, GapReason.TRUNCATED),
        *(GapReason.PRUNED, GapReason.DELETED, GapReason.ERASED, GapReason.UNRECORDED),
    }
)
"""With any other reason, records may be missing from the archive that the log had."""
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
    sources = [replace(source, revision=(revisions or {}).get(source.id, 0)) for source in sources]
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
        if topic is None or not request.selects(topic, partition.partition):
            continue
        extent = columns.extent(partition)
        end = ends[partition] if extent is None or as_of else extent[1]
        first = end if extent is None else min(extent[0], end)
        # Offsets beyond the archive's end stay requested: they are missing, and the preflight reports them.
        named_first, named_end = request.range_of(topic, partition.partition)
        end = end if named_end is None else named_end
        asked[partition] = min(max(named_first or 0, first), end), end
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
    faults = find_tiling_faults(rows, {place: extent for place, extent in asked.items() if extent[0] < extent[1]})
    for overlap in faults.overlaps:
        if overlap.partition in asked:
            raise CorruptDataError(
                f"two rows of the catalog cover the offsets {overlap.first_offset} to {overlap.end_offset}",
                operation="plan a restore",
                object_name=str(overlap.partition),
                offset=overlap.first_offset,
                hint="nothing was restored; see 'maxbrod check'",
            )
    for fault in faults.holes:
        if fault.partition in asked:
            hole = MissingRange(first=fault.first_offset, end=fault.end_offset, reason=None)
            holes.setdefault(fault.partition, []).append(hole)
    found = []
    for place, extent in asked.items():
        topic = chosen.topics[place.topic_id]
        span = columns.spans.get(place, slice(0, 0))
        ranged = request.range_of(topic, place.partition) != (None, None)
        bad = _bad_ranges(columns, span, extent, None if missed is None else missed[span] | ranged)
        ranges = [*holes.get(place, []), *bad]
        found.append(_measure(columns, request, topic, place, extent, ranges, lost.get(place, ())))
    return found


def revisions_of(sources: Iterable[Source]) -> dict[PartitionId, int]:
    """The revisions by which the catalog returns the rows that the sources were measured with."""
    return {source.id: source.revision for source in sources}


def rows_to_read(
    rows: pa.Table, sources: Iterable[Source], request: RestoreRequest, *, with_empty: bool = False
) -> pa.Table:
    """The data rows of the sources in the order of offsets, without rows that certainly hold no requested record.

    Keeps all columns of `rows`, which must include those of `SOURCE_COLUMNS`. The first and the last row of each source
    may reach beyond the requested offsets. `with_empty`: also rows whose batches hold no records.
    """
    rows = rows.filter(pc.field("kind") == Kind.DATA).sort_by(SORT_ORDER)
    columns = read_columns(rows)
    kept = np.zeros(rows.num_rows, np.bool_)
    for source in sources:
        span = columns.spans.get(source.id)
        if span is not None:
            asked = _asked(columns, span, (source.asked_first, source.asked_end), request)
            kept[span] |= asked & (with_empty | (columns.records[span] > 0))
    return rows.take(np.flatnonzero(kept))


def sound_part(stored: Slice, lost: Mapping[int, UnreadableRange]) -> Slice | None:
    """The readable part of a slice; None if there is none. `lost` are the ranges of its source, by their ends."""
    found = lost.get(stored.end_offset)
    if found is None:
        return stored
    return None if found.first <= stored.base_offset else replace(stored, sound_end=found.first)


def with_lost(source: Source, lost: Iterable[UnreadableRange]) -> Source:
    """The source with more unreadable ranges."""
    known = {range_.end: range_ for range_ in source.lost} | {range_.end: range_ for range_ in lost}
    return replace(source, lost=tuple(known[end] for end in sorted(known)))


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
    requested = _asked(columns, span, asked, request)
    kept = requested & (columns.records[span] > 0)
    requested_ends = set(end[requested].tolist())
    lost = [range_ for range_ in lost if range_.end in requested_ends]
    # A row that begins before its unreadable range still holds records.
    gone = np.isin(end, [range_.end for range_ in lost if range_.first <= base[np.searchsorted(end, range_.end)]])
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
    missing_ranges = sorted(missing_ranges, key=lambda missing_range: missing_range.first)
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


def _bad_ranges(
    columns: RowColumns, span: slice, asked: tuple[int, int], missed: NDArray[np.bool_] | None
) -> list[MissingRange]:
    """Gaps, and data rows with holes, whose reason is `corrupt` or `unexplained`; and gaps `pruned` that are `missed`.

    `missed` marks rows of the span. Whoever asks for the present misses nothing that was pruned on purpose.
    """
    base, end, reason = columns.base[span], columns.end[span], columns.reason[span]
    bad = np.isin(reason, [place for place, other in enumerate(_REASONS) if other not in _EXPLAINED])
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumns:
    """One value for each row, in the order of partition and offset. Counts are 0 where a row has none."""

    spans: Mapping[PartitionId, slice]
    """The places of each partition's rows."""
    base: NDArray[np.int64]
    end: NDArray[np.int64]
    data: NDArray[np.bool_]
    reason: NDArray[np.int8]
    """The index of the reason in `GapReason`; -1 without a reason."""
    bytes: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    records: NDArray[np.int64]
    dated: NDArray[np.bool_]
    """True if the row has both timestamps, and they do not contradict each other."""
    lowest: NDArray[np.int64]
    highest: NDArray[np.int64]
    aborted: NDArray[np.int64]
    """The sum of the lengths of aborted transactions within the row."""

    def extent(self, partition: PartitionId) -> tuple[int, int] | None:
        """From the start of the first row to the end of the last; None without rows."""
        span = self.spans.get(partition)
        return None if span is None else (int(self.base[span.start]), int(self.end[span].max()))


def read_columns(rows: pa.Table) -> RowColumns:
    """`rows` of kind data and gap, sorted by topic id, partition and base offset."""
    base, end = _numbers(rows["base_offset"]), _numbers(rows["end_offset"])
    return RowColumns(
        spans=spans_of(rows),
        base=base,
        end=end,
        data=_flags(pc.equal(rows["kind"], Kind.DATA)),
        reason=_reasons(rows),
        bytes=_numbers(rows["bytes"]),
        raw_bytes=_numbers(rows["raw_bytes"]),
        records=_numbers(rows["records"]),
        dated=_flags(pc.and_(pc.is_valid(rows["min_timestamp"]), pc.is_valid(newest_times(rows)))),
        lowest=_numbers(rows["min_timestamp"]),
        highest=_numbers(rows["max_timestamp"]),
        aborted=_aborted(rows["aborted"], base, end),
    )


def _numbers(column: Any) -> NDArray[np.int64]:  # noqa: ANN401 - an Arrow array
    # Arrow converts a column with nulls to floats, which cannot hold all 64-bit integers.
    return cast("NDArray[np.int64]", pc.fill_null(column, 0).to_numpy().astype(np.int64, copy=False))


def _flags(column: Any) -> NDArray[np.bool_]:  # noqa: ANN401 - an Arrow array
    return cast("NDArray[np.bool_]", pc.fill_null(column, False).to_numpy().astype(np.bool_, copy=False))


def _reasons(rows: pa.Table) -> NDArray[np.int8]:
    known = pa.array([str(reason) for reason in GapReason], pa.string())
    places = pc.index_in(rows["reason"], value_set=known)
    unknown = pc.and_(pc.is_valid(rows["reason"]), pc.is_null(places))
    if (row := pc.index(unknown, True).as_py()) >= 0:
        values = rows.slice(row, 1).select(["topic_id", "partition", "base_offset", "reason"]).to_pylist()[0]
        raise UnsupportedFormatError(
            f"a row of the catalog has reason {values['reason']!r}",
            operation="plan a restore",
            object_name=f"{values['topic_id']}-{values['partition']}",
            offset=values["base_offset"],
            hint="the catalog was written by a newer release of maxbrod, or by another program",
        )
    return cast("NDArray[np.int8]", pc.fill_null(places, _NO_REASON).to_numpy().astype(np.int8))


def spans_of(rows: pa.Table) -> dict[PartitionId, slice]:
    if not rows.num_rows:
        return {}
    topics = rows["topic_id"].combine_chunks().dictionary_encode()
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.combine_chunks()
    topic, partition = topics.indices.to_numpy(), rows["partition"].to_numpy()
    fresh = np.ones(rows.num_rows, np.bool_)
    fresh[1:] = (topic[1:] != topic[:-1]) | (partition[1:] != partition[:-1])
    starts = np.flatnonzero(fresh)
    names = topics.dictionary.to_pylist()
    return {
        PartitionId(topic_id=names[topic[start]], partition=int(partition[start])): slice(start, stop)
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), rows.num_rows], strict=True)
    }


def _aborted(column: pa.ChunkedArray, base: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    found = np.zeros(len(base), np.int64)
    offset = 0
    for chunk in column.chunks:
        rows = pc.list_parent_indices(chunk).to_numpy() + offset
        inside = pc.list_flatten(chunk)
        if len(inside):
            first, last = (_numbers(pc.struct_field(inside, name)) for name in ("first_offset", "last_offset"))
            lengths = np.minimum(last + 1, end[rows]) - np.maximum(first, base[rows])
            np.add.at(found, rows, np.clip(lengths, 0, None))
        offset += len(chunk)
    return found
