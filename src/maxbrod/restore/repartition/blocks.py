"""The order in which the records of several partitions are written into others: blocks of offsets, one after another.

A block is all that a source partition has up to an offset. The list is part of the plan, so that the order of records
in every target partition is a function of the plan alone, however the archive's rows are cut by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from maxbrod.catalog.schema import SORT_ORDER, Kind
from maxbrod.restore.plan.columns import RowColumns, read_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.restore.plan.sources import Source

BLOCKS_MAX: Final = 4096
"""Of a topic, if it has fewer partitions: it is a list in the plan."""
SHARES_MAX: Final = 500_000
"""Of a topic: each block is shared out among all target partitions, and what each got is remembered for groups."""
OPEN_SOURCES_MAX: Final = 8
"""Of so many partitions rows are split: whoever reads in this order keeps a part of a row of each in memory."""
_SPLIT_BYTES: Final = 4 << 20
_LONG_AGO: Final = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceExtent:
    """What a source partition has at offsets [first, end)."""

    partition: int
    first: int
    end: int


def plan_blocks(rows: pa.Table, sources: Sequence[Source], partition_count: int) -> tuple[SourceExtent, ...]:
    """Of one topic, which gets so many partitions. A source's blocks tile what is asked of it, if it has rows there."""
    mine = (pc.field("kind") == Kind.DATA) & (pc.field("topic_id") == sources[0].topic_id)
    columns = read_columns(rows.filter(mine).sort_by(SORT_ORDER))
    most = max(min(BLOCKS_MAX, SHARES_MAX // partition_count) // len(sources), 1)
    found: list[tuple[SourceExtent, float | None]] = []
    for source in sources:
        found += _blocks(columns, source, several=len(sources) <= OPEN_SOURCES_MAX, most=most)
    order = interleave((each.partition, each.first, time) for each, time in found)
    return tuple(found[place][0] for place in order)


def interleave(blocks: Iterable[tuple[int, int, float | None]]) -> list[int]:
    """The order in which blocks of several partitions are written, as places in what was given.

    A block is its partition, base offset and highest timestamp, and blocks of a partition come in the order of offsets.
    They are mixed as near to the order of time as keeping each partition's order allows: so consumers meet the records
    about as they did, and a group's position has little behind it that was processed. The same blocks, the same order.
    """
    reached: dict[int, float] = {}
    keys = []
    for place, (partition, base, highest) in enumerate(blocks):
        # A partition's order is never given up for the time.
        time = reached.get(partition, _LONG_AGO) if highest is None else max(reached.get(partition, _LONG_AGO), highest)
        reached[partition] = time
        keys.append((time, partition, base, place))
    return [key[-1] for key in sorted(keys)]


def _blocks(
    columns: RowColumns, source: Source, *, several: bool, most: int
) -> Iterator[tuple[SourceExtent, float | None]]:
    span = columns.spans.get(source.id, slice(0, 0))
    base, end = columns.base[span], columns.end[span]
    rows = np.flatnonzero((end > source.asked_first) & (base < source.asked_end)) + span.start
    edges, times = _split(columns, rows, several=several)
    edges = np.clip(edges, source.asked_first, source.asked_end)
    step = -(-len(edges) // most) or 1
    # From the last on backwards, so that this one stays.
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
    """Where blocks end, and about when: times inside a row are guessed, as if its records were spread evenly."""
    base, end = columns.base[rows], columns.end[rows]
    pieces = np.maximum(-(-columns.raw_bytes[rows] // _SPLIT_BYTES), 1) if several else np.ones(len(rows), np.int64)
    number = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces) + 1
    share = number / np.repeat(pieces, pieces)
    edges = np.repeat(base, pieces) + (np.repeat(end - base, pieces) * share).astype(np.int64)
    low, high = columns.lowest[rows].astype(np.float64), columns.highest[rows].astype(np.float64)
    times = np.repeat(low, pieces) + np.repeat(high - low, pieces) * share
    times[np.repeat(~columns.dated[rows], pieces)] = np.nan
    return edges, times
