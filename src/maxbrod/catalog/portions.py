"""Bounded memory for large catalogs: portions of rows, sums of pieces, and sets of paths. Pure.

A catalog may have millions of rows, and a command that looks at all of them must not hold all of them. A portion is a
range of partitions in the order of rows, with all rows of each. Files are sorted in that order too, so reading a
portion reads only the row groups that may contain it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow.dataset as ds
    from numpy.typing import NDArray


PORTION_ROWS: Final = 1 << 19
"""About 200 MB with all columns. Smaller portions read more row groups twice, at the edges of portions."""
_PARTIAL_ROWS: Final = 1 << 17

Place: TypeAlias = tuple[str, int]
"""A topic id and a partition. Python orders texts as Arrow does: both as their UTF-8 bytes."""


@dataclass(frozen=True, slots=True)
class Portion:
    """The partitions from `first` to `last`, both included."""

    first: Place
    last: Place

    @property
    def condition(self) -> ds.Expression:
        topic_id, partition = pc.field("topic_id"), pc.field("partition")
        (first_id, first), (last_id, last) = self.first, self.last
        # The first two compare with statistics; the others cut the topics at both ends.
        return (
            (topic_id >= first_id)
            & (topic_id <= last_id)
            & ((topic_id > first_id) | (partition >= first))
            & ((topic_id < last_id) | (partition <= last))
        )


def divide(counts: Iterable[tuple[Place, int]], rows_max: int) -> Iterator[Portion]:
    """Portions of at most `rows_max` rows, or of one partition. `counts` are the rows of each partition, sorted."""
    first: Place | None = None
    last: Place | None = None
    size = 0
    for place, count in counts:
        if first is not None and last is not None and size + count > rows_max:
            yield Portion(first, last)
            first, size = None, 0
        first, last, size = first or place, place, size + count
    if first is not None and last is not None:
        yield Portion(first, last)


_AGAIN: Final = {"min": "min", "max": "max", "sum": "sum", "count": "sum"}
"""The function that combines results of each function."""


def add_up(pieces: Iterable[pa.Table], keys: Sequence[str], measures: Sequence[tuple[str, str]]) -> pa.Table | None:
    """`group_by(keys).aggregate(measures)` over all pieces, holding only the groups; None without any piece."""
    names = [f"{name}_{function}" for name, function in measures]
    again = [(name, _AGAIN[function]) for name, (_, function) in zip(names, measures, strict=True)]
    found: pa.Table | None = None
    waiting: list[pa.Table] = []

    def fold() -> pa.Table:
        groups = pa.concat_tables(waiting).group_by(list(keys)).aggregate(again)
        return groups.select([*keys, *(f"{name}_{function}" for name, function in again)]).rename_columns(
            [*keys, *names]
        )

    for piece in pieces:
        waiting.append(piece.group_by(list(keys)).aggregate(list(measures)).select([*keys, *names]))
        if sum(table.num_rows for table in waiting) > _PARTIAL_ROWS + 2 * (0 if found is None else found.num_rows):
            found = fold()
            waiting = [found]
    return fold() if waiting else None


def hash_paths(paths: Iterable[str]) -> NDArray[np.int64]:
    """64 bits for each name: Python's own keyed hash (SipHash), which differs from process to process.

    Two of five million names have the same hash with a probability of less than one in a million.
    """
    return np.fromiter(map(hash, paths), np.int64)


class PathSet:
    """A set of names, in 8 bytes for each. It may contain a name that was not added, but never lacks one that was.

    So whoever deletes what is not in it deletes nothing that is named.
    """

    def __init__(self) -> None:
        self._new: list[NDArray[np.int64]] = []
        self._sorted: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, paths: Iterable[str]) -> None:
        self._new.append(np.unique(hash_paths(paths)))

    def __contains__(self, path: object) -> bool:
        hashed = hash(path)
        known = self._all()
        place = int(np.searchsorted(known, hashed))
        return place < len(known) and int(known[place]) == hashed

    def _all(self) -> NDArray[np.int64]:
        if self._new:
            self._sorted = np.unique(np.concatenate([self._sorted, *self._new]))
            self._new = []
        return self._sorted
