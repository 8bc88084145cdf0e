"""The logs that are served: for each partition its slices in the order of offsets, and what is known of each.

Holds rows as columns, because an archive may have millions, and makes a value of a row only when its slice is read.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.erasures import NO_ERASURES, Erasures
from maxbrod.batch.cuts import Cut
from maxbrod.catalog.rows import SLICE_FIELDS, newest_times
from maxbrod.catalog.schema import SORT_ORDER, Kind
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import AbortedTransaction, PartitionId, TopicPartition
from maxbrod.mount.chunks import ChunkPlace, Loaded, SliceSource, last_end, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from maxbrod.errors import MaxbrodError
    from maxbrod.mount.cache import ChunkKey
    from maxbrod.storage.interface import Storage

LOG_COLUMNS: Final = tuple(
    dict.fromkeys(["topic_id", "partition", "kind", "base_offset", "end_offset", "run_id", *SLICE_FIELDS])
)
"""The columns of the catalog that a log is made of."""


class ExploredSlice:
    """A slice, and the chunks of it that were found so far."""

    def __init__(self, where: TopicPartition, archive: int, stored: Slice, source: SliceSource) -> None:
        self.where, self.archive, self.stored, self.source = where, archive, stored, source
        self.ends: list[int] = []
        """The first offset after each known chunk."""
        self.places: list[ChunkPlace] = []
        self.frontier: ChunkPlace | None = ChunkPlace()
        """Where the next chunk begins; None if all are known."""
        self.reached = stored.base_offset
        self.failures: dict[ChunkPlace, tuple[MaxbrodError, float]] = {}
        """What is wrong at a place, and when that was seen."""

    def key(self, place: ChunkPlace) -> ChunkKey:
        # What was read before an erasure is another chunk.
        left_out = "" if self.stored.erased is None else f" without {hash(self.stored.erased):x}"
        return self.archive, f"{self.stored.path}{left_out}", self.stored.position, place

    def number_of(self, offset: int) -> int:
        """The number of the chunk that may contain the offset, or of the first after it."""
        return bisect_right(self.ends, offset)

    def place_at(self, number: int) -> ChunkPlace | None:
        """Where a chunk begins; the one after those that are known, at the frontier. None: there is none."""
        return self.places[number] if number < len(self.places) else self.frontier

    def add(self, place: ChunkPlace, loaded: Loaded) -> None:
        """Remember what was found from the frontier on."""
        if place != self.frontier:
            return
        for chunk in loaded.chunks:
            self.places.append(chunk.place)
            self.ends.append(chunk.reach)
            self.reached = chunk.reach
        self.frontier = loaded.following

    def reached_before(self, place: ChunkPlace) -> int:
        """The offset that every batch from this place on ends after."""
        if place == self.frontier:
            return self.reached
        number = self.places.index(place)
        return self.ends[number - 1] if number else self.stored.base_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPartition:
    """Where the rows of a partition are, and how far they go."""

    archive: int
    storage: Storage
    rows: pa.Table
    """Data only, in the order of offsets, with `LOG_COLUMNS`."""
    start: int
    """The first offset that the archive accounts for, by data or by a gap."""
    end: int
    """The first offset that the archive does not account for."""
    cut: Cut = field(default_factory=Cut)
    erasures: Erasures = NO_ERASURES

    def slice_at(self, number: int) -> Slice:
        """The slice of a row, without what was erased."""
        row: dict[str, Any] = self.rows.slice(number, 1).to_pylist()[0]
        values = {name: row[name] for name in SLICE_FIELDS}
        values["aborted"] = tuple(AbortedTransaction(**transaction) for transaction in values["aborted"] or ())
        place = PartitionId(topic_id=row["topic_id"], partition=row["partition"])
        erased = self.erasures.records_in(place, row["base_offset"], row["end_offset"], run_id=row["run_id"])
        return Slice(**values, erased=erased)


class PartitionLog:
    """One partition as clients see it. Offsets in [start, end) have batches or nothing; none lies beyond."""

    def __init__(self, where: TopicPartition, archived: ArchivedPartition) -> None:
        self.where = where
        self._archived = archived
        rows = archived.rows
        self._base: NDArray[np.int64] = rows["base_offset"].to_numpy()
        self._end: NDArray[np.int64] = rows["end_offset"].to_numpy()
        self._slices: dict[int, ExploredSlice] = {}
        # A group may stand in a hole before the first batch: out of range, it would be reset, perhaps to the end.
        self.start = min(archived.start, int(self._base[0])) if len(self._base) else archived.end
        self.end = self._find_end()
        """The end of the last batch: some clients wait for ever for records between it and a later end."""
        self.archived_end = self.end if archived.cut.until_ms is not None else max(archived.end, self.end)
        """A group may have read up to here, although nothing follows the last batch."""

    def take_over(self, older: PartitionLog) -> None:
        """Keep what an older version of the log has found out about slices that both have."""
        known = {(each.stored.path, each.stored.position): each for each in older.explored if not each.failures}
        paths, positions = (self._archived.rows[name].to_pylist() for name in ("path", "position"))
        for number, place in enumerate(zip(paths, positions, strict=True)):
            if place not in known or number in self._slices:
                continue
            older_slice = known[place]
            if not self._archived.erasures or older_slice.stored.erased == self._archived.slice_at(number).erased:
                self._slices[number] = older_slice

    @property
    def explored(self) -> list[ExploredSlice]:
        return list(self._slices.values())

    def _find_end(self) -> int:
        cut, count = self._archived.cut, len(self._base)
        if not count:
            return self._archived.end
        newest = newest_times(self._archived.rows).to_pylist() if cut.until_ms is not None else None
        for number in reversed(range(count)):
            end = int(self._end[number])
            beyond = cut.end_offset is not None and end > cut.end_offset
            late = newest is not None and (newest[number] is None or newest[number] >= (cut.until_ms or 0))
            if not beyond and not late:
                return end
            explored = self.slice_at(number)
            found = last_end(explored.source, explored.stored.base_offset, end)
            if found is not None:
                return found
        return self.start

    @property
    def raw_bytes(self) -> int:
        """The size of the log before compression by the archive."""
        return int(pc.sum(self._archived.rows["raw_bytes"]).as_py() or 0)

    @property
    def distant(self) -> bool:
        """True if a read waits for a network."""
        return self._archived.storage.distant

    def __len__(self) -> int:
        return len(self._base)

    def slice_from(self, offset: int) -> ExploredSlice | None:
        """The slice that contains the offset, or the first after it; None at the end."""
        number = int(np.searchsorted(self._end, offset, side="right"))
        return self.slice_at(number) if number < len(self._base) and int(self._base[number]) < self.end else None

    def slice_at(self, number: int) -> ExploredSlice:
        found = self._slices.get(number)
        if found is None:
            stored = self._archived.slice_at(number)
            source = source_of(self._archived.storage, stored, self._archived.cut)
            found = self._slices[number] = ExploredSlice(self.where, self._archived.archive, stored, source)
        return found

    def may_have_since(self, timestamp: int) -> Iterator[tuple[int, int]]:
        """The offsets of slices that may hold a record of this time or later, in order."""
        newest = newest_times(self._archived.rows)
        may = pc.fill_null(pc.greater_equal(newest, timestamp), True).to_numpy()
        for number in np.flatnonzero(may).tolist():
            yield max(int(self._base[number]), self.start), int(self._end[number])

    def newest_slices(self) -> Iterator[tuple[int, int]]:
        """The offsets of slices that may hold the record with the highest timestamp, in order."""
        highest = pc.max(newest_times(self._archived.rows)).as_py()
        return self.may_have_since(-1 if highest is None else highest)

    def aborted_in(self, explored: ExploredSlice, first: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions with records or a marker in [first, end)."""
        return [
            transaction
            for transaction in explored.stored.aborted
            if transaction.last_offset >= first and transaction.first_offset < end
        ]


def topics_in(rows: pa.Table) -> dict[str, pa.Table]:
    """The data rows of each topic id in these rows of a catalog, by partition and offset."""
    rows = rows.filter(pc.field("kind") == Kind.DATA).sort_by(SORT_ORDER).combine_chunks()
    if not rows.num_rows:
        return {}
    topics = pc.dictionary_encode(rows["topic_id"]).combine_chunks()
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.chunk(0)
    numbers = topics.indices.to_numpy()
    names = topics.dictionary.to_pylist()
    return {names[numbers[start]]: part for start, part in _parts(rows, numbers)}


def partitions_in(rows: pa.Table) -> dict[int, pa.Table]:
    """The rows of each partition of a topic, from those of `topics_in`."""
    numbers = rows["partition"].to_numpy()
    return {int(numbers[start]): part for start, part in _parts(rows, numbers)}


def _parts(rows: pa.Table, numbers: NDArray[np.int32]) -> Iterator[tuple[int, pa.Table]]:
    """The runs of rows with the same number, and where each begins."""
    starts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()]
    for start, stop in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        yield start, rows.slice(start, stop - start)
