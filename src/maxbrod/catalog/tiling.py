"""Proves that rows cover each partition's offsets exactly once: no hole, no overlap. Pure and vectorised.

The proof is one sort and one running maximum. A row that starts above the highest end before it leaves a hole; one that
starts below it overlaps. A million rows take about a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.schema import Kind
from maxbrod.model import PartitionId

if TYPE_CHECKING:
    from numpy.typing import NDArray

TILING_COLUMNS: Final = ("topic_id", "partition", "base_offset", "end_offset", "kind")
"""The columns that tiling reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncoveredRange:
    """Offsets that no row covers. `before` and `after` are the adjacent rows, None at an end of the range."""

    partition: PartitionId
    first_offset: int
    end_offset: int
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Offsets that two rows cover. `rows` are their numbers in the given table."""

    partition: PartitionId
    first_offset: int
    end_offset: int
    rows: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """The faults, by partition and offset; none if the rows tile their partitions."""

    holes: tuple[UncoveredRange, ...]
    overlaps: tuple[Overlap, ...]

    @property
    def complete(self) -> bool:
        return not self.holes and not self.overlaps


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Rows in order of partition and base offset; `group` numbers the partitions in that order."""

    row: NDArray[np.int64]
    group: NDArray[np.int64]
    base: NDArray[np.int64]
    end: NDArray[np.int64]
    ids: list[PartitionId]

    @property
    def starts(self) -> NDArray[np.int64]:
        """The position of each partition's first row."""
        return np.searchsorted(self.group, np.arange(len(self.ids)))


def find_tiling_faults(table: pa.Table, expected: Mapping[PartitionId, tuple[int, int]] | None = None) -> Tiling:
    """Check the rows of any number of partitions, in any order; rows of kind run are ignored.

    `expected` gives the offsets [first, end) of each partition that must be covered. A partition that it does not name
    must be covered from its first row to its last. Offsets beyond the expected ones may be covered, but only once.
    Every row must have base_offset < end_offset, which `Catalog.commit` enforces.
    """
    expected = expected or {}
    rows = _sort(table)
    if not len(rows.row):
        return Tiling(holes=_absent(expected, set()), overlaps=())
    reached, holder = _running_end(rows)
    holes = [*_inner_holes(rows, reached, holder, expected), *_outer_holes(rows, reached, holder, expected)]
    holes += _absent(expected, set(rows.ids))
    holes.sort(key=lambda hole: (hole.partition, hole.first_offset))
    return Tiling(holes=tuple(holes), overlaps=tuple(_overlaps(rows, reached, holder)))


def _sort(table: pa.Table) -> _Sorted:
    table = table.select(list(TILING_COLUMNS))
    row = np.flatnonzero(_numpy(pc.not_equal(table["kind"], Kind.RUN)))
    if len(row) < table.num_rows:
        table = table.take(pa.array(row))
    topic_ids = table["topic_id"].combine_chunks().dictionary_encode()
    names = np.array(topic_ids.dictionary.to_pylist(), object)
    ranks = np.empty(len(names), np.int64)
    ranks[np.argsort(names)] = np.arange(len(names))
    topic = ranks[_numpy(topic_ids.indices)] if len(names) else np.zeros(0, np.int64)
    partition, base, end = (_numpy(table[name]) for name in ("partition", "base_offset", "end_offset"))
    order = np.lexsort((end, base, partition, topic))
    topic, partition = topic[order], partition[order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (topic[1:] != topic[:-1]) | (partition[1:] != partition[:-1])
    names = np.sort(names)
    ids = [
        PartitionId(topic_id=names[topic_rank], partition=number)
        for topic_rank, number in zip(topic[fresh].tolist(), partition[fresh].tolist(), strict=True)
    ]
    return _Sorted(row[order], np.cumsum(fresh) - 1, base[order], end[order], ids)


def _numpy(column: Any) -> NDArray[Any]:  # noqa: ANN401 - an Arrow array
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()
    return array


def _running_end(rows: _Sorted) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row, the highest end in its partition up to and including it, and the position of the row with that end.

    Ends use all 64 bits, so partitions are separated by the rank of the end instead of by adding to it.
    """
    count = len(rows.end)
    by_end = np.argsort(rows.end, kind="stable")
    rank = np.empty(count, np.int64)
    rank[by_end] = np.arange(count)
    highest = np.maximum.accumulate(rows.group * count + rank) - rows.group * count
    holder = by_end[highest]
    return rows.end[holder], holder


def _follows(rows: _Sorted) -> NDArray[np.int64]:
    """The positions of rows that follow a row of the same partition."""
    return np.flatnonzero(rows.group[1:] == rows.group[:-1]) + 1


def _overlaps(rows: _Sorted, reached: NDArray[np.int64], holder: NDArray[np.int64]) -> list[Overlap]:
    places = _follows(rows)
    places = places[rows.base[places] < reached[places - 1]]
    return [
        Overlap(
            partition=rows.ids[rows.group[place]],
            first_offset=int(rows.base[place]),
            end_offset=int(min(rows.end[place], reached[place - 1])),
            rows=(int(rows.row[holder[place - 1]]), int(rows.row[place])),
        )
        for place in places.tolist()
    ]


def _inner_holes(
    rows: _Sorted,
    reached: NDArray[np.int64],
    holder: NDArray[np.int64],
    expected: Mapping[PartitionId, tuple[int, int]],
) -> list[UncoveredRange]:
    places = _follows(rows)
    places = places[rows.base[places] > reached[places - 1]]
    holes = []
    for place in places.tolist():
        partition = rows.ids[rows.group[place]]
        first, end = int(reached[place - 1]), int(rows.base[place])
        if partition in expected:
            first, end = max(first, expected[partition][0]), min(end, expected[partition][1])
        if first < end:
            before, after = int(rows.row[holder[place - 1]]), int(rows.row[place])
            holes.append(
                UncoveredRange(partition=partition, first_offset=first, end_offset=end, before=before, after=after)
            )
    return holes


def _outer_holes(
    rows: _Sorted,
    reached: NDArray[np.int64],
    holder: NDArray[np.int64],
    expected: Mapping[PartitionId, tuple[int, int]],
) -> list[UncoveredRange]:
    """Expected offsets before the first row of a partition, and after all of its rows."""
    if not expected:
        return []
    starts = rows.starts
    ends = np.append(starts[1:], len(rows.row)) - 1
    holes = []
    for partition, start, last in zip(rows.ids, starts.tolist(), ends.tolist(), strict=True):
        if partition not in expected:
            continue
        first, end = expected[partition]
        head, tail = min(end, int(rows.base[start])), max(first, int(reached[last]))
        if first < head:
            after = int(rows.row[start])
            holes.append(
                UncoveredRange(partition=partition, first_offset=first, end_offset=head, before=None, after=after)
            )
        if tail < end:
            before = int(rows.row[holder[last]])
            holes.append(
                UncoveredRange(partition=partition, first_offset=tail, end_offset=end, before=before, after=None)
            )
    return holes


def _absent(expected: Mapping[PartitionId, tuple[int, int]], present: set[PartitionId]) -> tuple[UncoveredRange, ...]:
    """Expected partitions without any row."""
    return tuple(
        UncoveredRange(partition=partition, first_offset=first, end_offset=end, before=None, after=None)
        for partition, (first, end) in sorted(expected.items())
        if partition not in present and first < end
    )
