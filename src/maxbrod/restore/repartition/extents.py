"""The order in which records of several source partitions are written into a repartitioned topic: a list of extents.

An extent is a range of offsets of one source partition. The list is part of the plan, so the order of records in every
target partition depends on the plan alone, even if segments of the archive are compacted into others in the meantime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod.catalog.schema import SORT_ORDER, Kind
from maxbrod.restore.plan.sources import RowColumns, Source, read_columns

EXTENTS_MAX: Final = 4096
"""Extents of one topic, unless it has more partitions: the plan stores the list."""
SHARES_MAX: Final = 500_000
"""Shares of one topic: each extent is distributed among all target partitions, and groups need every share."""
OPEN_SOURCES_MAX: Final = 8
"""With up to this many source partitions, rows are split: a reader in this order holds a part of a row of each."""
_SPLIT_BYTES: Final = 4 << 20
_LONG_AGO: Final = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceExtent:
    """Offsets [first, end) of a source partition."""

    partition: int
    first: int
    end: int


def plan_extents(rows: pa.Table, sources: Sequence[Source], partition_count: int) -> tuple[SourceExtent, ...]:
    """The extents of one topic, which gets `partition_count` partitions.

    The extents of a source with rows tile the offsets that are requested of it.
    """
    mine = (pc.field("kind") == Kind.DATA) & (pc.field("topic_id") == sources[0].topic_id)
    columns = read_columns(rows.filter(mine).sort_by(SORT_ORDER))
    most = max(min(EXTENTS_MAX, SHARES_MAX // partition_count) // len(sources), 1)
    found: list[tuple[SourceExtent, float | None]] = []
    for source in sources:
        found += _extents(columns, source, several=len(sources) <= OPEN_SOURCES_MAX, most=most)
    order = interleave((extent.partition, extent.first, time) for extent, time in found)
    return tuple(found[place][0] for place in order)


def interleave(extents: Iterable[tuple[int, int, float | None]]) -> list[int]:
    """The order in which extents of several partitions are written, as places in the input.

    An extent is given by its partition, base offset and highest timestamp; those of one partition are in the order of
    offsets. The result is as close to the order of time as the order within each partition allows. So consumers see
    records about in their old order, and few records after a group's position are ones it has processed. The result
    is deterministic.
    """
    reached: dict[int, float] = {}
    keys = []
    for place, (partition, base, highest) in enumerate(extents):
        # The order within a partition comes first: its time never goes back.
        time = reached.get(partition, _LONG_AGO) if highest is None else max(reached.get(partition, _LONG_AGO), highest)
        reached[partition] = time
        keys.append((time, partition, base, place))
    return [key[-1] for key in sorted(keys)]


def _extents(
    columns: RowColumns, source: Source, *, several: bool, most: int
) -> Iterator[tuple[SourceExtent, float | None]]:
    span = columns.spans.get(source.id, slice(0, 0))
    base, end = columns.base[span], columns.end[span]
    rows = np.flatnonzero((end > source.asked_first) & (base < source.asked_end)) + span.start
    edges, times = _split(columns, rows, several=several)
    edges = np.clip(edges, source.asked_first, source.asked_end)
    step = -(-len(edges) // most) or 1
    # Counted backwards from the last edge, so that it is kept.
    edges, times = edges[::-1][::step][::-1], times[::-1][::step][::-1]
    first = source.asked_first
    for place, (edge, time) in enumerate(zip(edges.tolist(), times.tolist(), strict=True)):
        stop = source.asked_end if place == len(edges) - 1 else edge
        if stop > first:
            yield SourceExtent(partition=source.partition, first=first, end=stop), None if np.isnan(time) else time
        first = max(first, stop)


def _split(
    columns: RowColumns, rows: NDArray[np.int64], *, several: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The ends of extents, with their times: times within a row are estimated as if records were spread evenly."""
    base, end = columns.base[rows], columns.end[rows]
    counts = np.maximum(-(-columns.raw_bytes[rows] // _SPLIT_BYTES), 1) if several else np.ones(len(rows), np.int64)
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    share = number / np.repeat(counts, counts)
    edges = np.repeat(base, counts) + (np.repeat(end - base, counts) * share).astype(np.int64)
    low, high = columns.lowest[rows].astype(np.float64), columns.highest[rows].astype(np.float64)
    times = np.repeat(low, counts) + np.repeat(high - low, counts) * share
    times[np.repeat(~columns.dated[rows], counts)] = np.nan
    return edges, times
