"""The rows of an archive that a stream follows, as arrays of a few numbers each. Reads no records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.selection import select_topics
from maxbrod.batch.columns import number_column
from maxbrod.catalog.rows import newest_times
from maxbrod.catalog.schema import Kind
from maxbrod.model import MENDABLE, GapReason, PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from maxbrod.archive.archive import Archive
    from maxbrod.table.read.options import TableOptions

TIMELESS: Final = -(2**63)
_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "end_offset", "kind", "reason", "bytes"),
    *("min_timestamp", "max_timestamp"),
    *("first_leader_epoch", "last_leader_epoch"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
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


def view_of(archive: Archive, options: TableOptions) -> View:
    """The topics and partitions that the options select. A pattern may match nothing yet."""
    rows = archive.catalog.rows(columns=_COLUMNS)
    named = rows.group_by("topic_id").aggregate([("topic", "max")]).to_pylist()
    names = {each["topic_id"]: each["topic_max"] for each in named}
    chosen = {*select_topics(dict.fromkeys(names.values(), False), options.topics, internal=True).chosen}
    topics = {topic_id: name for topic_id, name in names.items() if name in chosen}
    followed = pc.field("topic_id").isin(pa.array(sorted(topics), pa.string()))
    if options.scope.partitions is not None:
        followed &= pc.field("partition").isin(pa.array(sorted(options.scope.partitions), pa.int32()))
    rows = rows.filter(followed).combine_chunks()
    native = archive.survey is None
    return _arrays(rows, topics, frozenset(names), native=native)


def _arrays(rows: pa.Table, topics: Mapping[str, str], known: frozenset[str], *, native: bool) -> View:
    # Without threads, so that groups keep the order of the rows.
    groups = rows.group_by(["topic_id", "partition"], use_threads=False).aggregate([("kind", "count")]).to_pylist()
    counts = [group["kind_count"] for group in groups]
    open_reasons = sorted(MENDABLE if native else {*MENDABLE, GapReason.UNRECORDED})
    gap = pc.equal(rows["kind"], Kind.GAP)

    def because(reasons: list[GapReason]) -> NDArray[np.bool_]:
        wanted = pc.is_in(rows["reason"], pa.array(list(map(str, reasons)), pa.string()))
        return _truths(pc.and_(gap, wanted))

    return View(
        partitions=tuple(PartitionId(topic_id=group["topic_id"], partition=group["partition"]) for group in groups),
        topics=topics,
        known=known,
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
        native=native,
    )


def _numbers(column: pa.ChunkedArray, missing: int) -> NDArray[np.int64]:
    filled = pc.fill_null(column, missing).cast(pa.int64()).combine_chunks()
    numbers: NDArray[np.int64] = number_column(filled) if len(filled) else np.empty(0, np.int64)
    return numbers


def _truths(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    filled = column.combine_chunks()
    truths: NDArray[np.bool_] = number_column(filled) if len(filled) else np.empty(0, np.bool_)
    return truths
