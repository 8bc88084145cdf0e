"""The newest version of an archive, for one who follows it: read as a whole once, and from then on commit by commit.

What an archive has gained by a commit is a few rows, however many it has. Whatever else a commit may have done, the
archive is read as a whole again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.archive import Archive
from maxbrod.archive.knowledge import knowledge_of
from maxbrod.archive.snapshot_document import Snapshot, decode
from maxbrod.archive.snapshots import UNREADABLE, Moment
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.queries import ArchivedRange, is_present, last_run, run_commits
from maxbrod.catalog.rows import Gap, Run, decode_rows
from maxbrod.catalog.schema import SCHEMA, SORT_ORDER, Kind
from maxbrod.kafka.state.cluster_state import ClusterState
from maxbrod.model import PartitionId
from maxbrod.replicate.report import NEVER_ARCHIVED, Lacking
from maxbrod.restore.plan.sources import spans_of
from maxbrod.work.intervals import wait_unless

_LOCAL_LOOK_S: Final = 0.02
_LOOK_S: Final = 0.1
_LOOK_S_MAX: Final = 1.0
"""The pauses between looks for the next commit: in a folder; in a store, at first and at last."""
_ROWS_MAX: Final = 1 << 17
"""Rows that are kept for partitions that nobody asks for: paused ones, for example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRows:
    """The last rows of some partitions: all that end at their floors, or behind them."""

    rows: pa.Table = field(default_factory=SCHEMA.empty_table)
    floors: Mapping[PartitionId, int] = field(default_factory=dict)

    def of(self, wanted: Mapping[PartitionId, tuple[int, int]]) -> pa.Table | None:
        """The rows that a portion of each of these partitions may need; None if some of them are not here."""
        known = all(begin >= self.floors.get(partition, begin + 1) for partition, (begin, _) in wanted.items())
        return self.rows if known else None

    def since(self, rows: pa.Table, wanted: Mapping[PartitionId, tuple[int, int]]) -> RecentRows:
        """What is left of these rows, and of those of other partitions, once portions of these begin where they do."""
        ids = {partition.topic_id for partition in wanted}
        others = self.rows
        if rows is not self.rows:
            # They are all rows of their topics.
            others = others.filter(pc.invert(pc.is_in(others["topic_id"], pa.array(sorted(ids), pa.string()))))
            others = pa.concat_tables([others, rows.select(SCHEMA.names)])
        ordered = others.sort_by(SORT_ORDER)
        ends, kept = ordered["end_offset"].to_numpy(), np.ones(ordered.num_rows, np.bool_)
        floors = {**self.floors, **{partition: begin for partition, (begin, _) in wanted.items()}}
        for partition, span in spans_of(ordered).items():
            if rows is not self.rows and partition.topic_id in ids and partition not in wanted:
                floors[partition] = int(ends[span].max())  # whoever has all of it needs the last row only
            if partition in floors:
                kept[span] = ends[span] >= floors[partition]
        return RecentRows(rows=ordered.take(np.flatnonzero(kept)), floors=floors)

    def plus(self, rows: pa.Table, new: Iterable[PartitionId]) -> RecentRows:
        """After a commit of these rows; of the new partitions there was none before."""
        if self.rows.num_rows + rows.num_rows > _ROWS_MAX:
            return RecentRows()
        return RecentRows(
            rows=pa.concat_tables([self.rows, rows]).sort_by(SORT_ORDER),
            floors={**self.floors, **dict.fromkeys(new, 0)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The archive at one version, with the newest snapshot: one look, which a whole interval works with."""

    archive: Archive
    moment: Moment
    snapshot: Snapshot
    cluster: ClusterState
    run_id: str
    gaps: Mapping[PartitionId, tuple[Lacking, ...]]
    """Offsets that the source had, and that were never archived."""
    positions: Mapping[PartitionId, ArchivedRange]

    @property
    def version(self) -> int:
        return self.archive.catalog.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """One step from a version of the archive to a newer one."""

    newest: Newest
    rows: pa.Table
    """The rows of data and gaps that it has gained."""
    new: Collection[PartitionId]
    """The partitions that it had no rows of."""


class StoredSnapshot:
    """The last snapshot that was read as an object: the runs of a minute share it."""

    def __init__(self) -> None:
        self._path, self._data = "", b""

    def read(self, archive: Archive, run: Run) -> Snapshot:
        path = run.snapshot or ""
        if path != self._path:
            self._data, self._path = bytes(archive.storage.get(path)), path
        return decode(self._data, changes=run.snapshot_changes, object_name=archive.storage.name_of(path))


class CommitWatch:
    """Waits for the next commit to an archive. Each look costs one small request.

    In a folder a look costs next to nothing. In a store, looks become rarer while there is nothing, up to one a second.
    """

    def __init__(self) -> None:
        self._pause_s, self._looked_at = 0.0, -math.inf

    def wait(self, known: Newest | None, seconds: float, stop: threading.Event) -> bool:
        """True as soon as there is a newer version than this; False after this time, or a stop."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            due_in_s = self._looked_at + self._pause_s - now
            if not wait_unless(min(due_in_s, until - now), stop) or due_in_s > until - now:
                return False
            self._looked_at = time.monotonic()
            if known is not None and isinstance(known.archive.catalog, Catalog) and known.archive.catalog.has_next():
                self._pause_s = 0.0
                return True
            distant = known is None or known.archive.storage.distant
            first_s, last_s = (_LOOK_S, _LOOK_S_MAX) if distant else (_LOCAL_LOOK_S, _LOCAL_LOOK_S)
            self._pause_s = min(max(2 * self._pause_s, first_s), last_s)


def follow_newest(known: Newest, stored: StoredSnapshot) -> Advance | None:
    """The newest version after this one, which may be the same; None: it must be read as a whole."""
    catalog = known.archive.catalog
    found = catalog.follow() if isinstance(catalog, Catalog) else None
    if found is None:
        return None
    rows = found.rows
    if found.catalog is catalog:
        return Advance(newest=known, rows=rows, new=())
    gained = _gained(rows.filter(is_present()).sort_by(SORT_ORDER), known.positions)
    runs = rows.filter(pc.field("kind") == str(Kind.RUN))
    runs = runs.filter(pc.greater(run_commits(runs), catalog.version))
    if gained.num_rows + runs.num_rows != found.count:
        return None  # there are rows of another kind, or some that lie before the end that was known
    archive = replace(known.archive, catalog=found.catalog)
    run = last_run(runs.filter(pc.field("path").is_valid()))
    moment, snapshot, cluster = known.moment, known.snapshot, known.cluster
    if run is not None:
        try:
            snapshot = stored.read(archive, run)
            moment = Moment(as_of=None, run=run, snapshot=snapshot, knowledge=knowledge_of(snapshot))
        except UNREADABLE:
            return None  # it may arrive later, or be damaged: whoever reads everything says which
        if snapshot.carried is None or moment.cluster is None:
            return None
        cluster = moment.cluster
    positions = _positions(gained, known.positions)
    newest = Newest(
        archive=archive,
        moment=moment,
        snapshot=snapshot,
        cluster=cluster,
        run_id=known.run_id if moment.run is None else moment.run.run_id,
        gaps=_with_gaps(known.gaps, gained),
        positions=positions,
    )
    return Advance(newest=newest, rows=gained, new=positions.keys() - known.positions.keys())


def _gained(rows: pa.Table, positions: Mapping[PartitionId, ArchivedRange]) -> pa.Table:
    """The rows that lie behind what was known."""
    base, kept = rows["base_offset"].to_numpy(), np.ones(rows.num_rows, np.bool_)
    for partition, span in spans_of(rows).items():
        if (known := positions.get(partition)) is not None:
            kept[span] = base[span] >= known.end_offset
    return rows.take(np.flatnonzero(kept))


def _positions(rows: pa.Table, known: Mapping[PartitionId, ArchivedRange]) -> dict[PartitionId, ArchivedRange]:
    found = dict(known)
    ends, epochs = rows["end_offset"], rows["last_leader_epoch"]
    for partition, span in spans_of(rows).items():
        before = found.get(partition)
        epoch = pc.max(epochs.slice(span.start, span.stop - span.start)).as_py()
        if before is not None and before.last_leader_epoch is not None:
            epoch = before.last_leader_epoch if epoch is None else max(epoch, before.last_leader_epoch)
        found[partition] = ArchivedRange(
            topic=rows["topic"][span.stop - 1].as_py(),
            first_offset=rows["base_offset"][span.start].as_py() if before is None else before.first_offset,
            end_offset=ends[span.stop - 1].as_py(),
            last_leader_epoch=epoch,
        )
    return found


def gaps_of(archive: Archive) -> dict[PartitionId, tuple[Lacking, ...]]:
    """By partition, in the order of offsets; what several runs have found side by side is one range."""
    return _joined({}, archive.catalog.gaps(NEVER_ARCHIVED))


def _with_gaps(
    known: Mapping[PartitionId, tuple[Lacking, ...]], rows: pa.Table
) -> Mapping[PartitionId, tuple[Lacking, ...]]:
    reasons = pa.array(sorted(map(str, NEVER_ARCHIVED)), pa.string())
    gaps = rows.filter((pc.field("kind") == str(Kind.GAP)) & pc.field("reason").isin(reasons))
    return _joined(known, [row for row in decode_rows(gaps) if isinstance(row, Gap)]) if gaps.num_rows else known


def _joined(
    known: Mapping[PartitionId, tuple[Lacking, ...]], gaps: Iterable[Gap]
) -> dict[PartitionId, tuple[Lacking, ...]]:
    found = {partition: list(ranges) for partition, ranges in known.items()}
    for gap in gaps:
        ranges = found.setdefault(gap.id, [])
        first = gap.base_offset
        if ranges and (ranges[-1].end_offset, ranges[-1].reason) == (first, gap.reason):
            first = ranges.pop().first_offset
        ranges.append(Lacking(first_offset=first, end_offset=gap.end_offset, reason=gap.reason))
    return {partition: tuple(ranges) for partition, ranges in found.items()}
