"""Finds runs and reads their snapshots: the cluster as it was, and how far the archive reached then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError, UsageError, naming
from maxbrod.kafka.cluster_state import decode_state
from maxbrod.planning.run_names import find_run
from maxbrod.planning.snapshot import decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.catalog.rows import PartitionId, Run
    from maxbrod.kafka.cluster_state import ClusterState
    from maxbrod.planning.snapshot import Snapshot
    from maxbrod.storage.interface import Storage

_NEEDED: Final = (
    "put it back from a copy of the archive, or name an earlier run (--as-of); --accept-gaps goes without it, and then "
    "topics get the target's defaults and no groups"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What to look at an archive with: now, or as of a run."""

    as_of: str | None
    """The run that was asked for; None: now."""
    run: Run | None
    """That run, or the last one that recorded a snapshot."""
    snapshot: Snapshot | None
    cluster: ClusterState | None

    @property
    def ends(self) -> Mapping[PartitionId, int] | None:
        """How far to look; None: at everything."""
        return None if self.as_of is None or self.snapshot is None else self.snapshot.ends

    @property
    def present(self) -> frozenset[str]:
        """The ids of the topics that the cluster had then; the archive may know others of the same names."""
        return frozenset(() if self.cluster is None else (topic.topic_id for topic in self.cluster.topics))


def find_moment(storage: Storage, runs: Sequence[Run], as_of: str | None, *, needed: bool = False) -> Moment:
    """Looking at the present goes on without a snapshot that cannot be read: `maxbrod check` is there to complain.

    If it is `needed`, because something is made of it, one that cannot be read is an error in any case.
    """
    if as_of is not None:
        run = find_run(runs, as_of)
        snapshot = read_snapshot(storage, run)
        return Moment(as_of=run.run_id, run=run, snapshot=snapshot, cluster=read_cluster(snapshot))
    last = last_snapshot_run(runs)
    if last is not None:
        try:
            snapshot = read_snapshot(storage, last)
            return Moment(as_of=None, run=last, snapshot=snapshot, cluster=read_cluster(snapshot))
        except (CorruptDataError, ObjectNotFoundError, UnsupportedFormatError) as error:
            if needed:
                error.hint = _NEEDED
                raise
    return Moment(as_of=None, run=last, snapshot=None, cluster=None)


def last_snapshot_run(runs: Sequence[Run]) -> Run | None:
    """The last run that recorded the cluster; others, such as a compaction of segments, do not."""
    return next((run for run in reversed(runs) if run.snapshot is not None), None)


def read_snapshot(storage: Storage, run: Run) -> Snapshot:
    """ObjectNotFoundError, CorruptDataError, UnsupportedFormatError: it cannot be read."""
    if run.snapshot is None:
        raise UsageError(f"the run {run.run_id} recorded no snapshot", hint="name a run of 'maxbrod backup'")
    return decode(bytes(storage.get(run.snapshot)), object_name=storage.name_of(run.snapshot))


def read_cluster(snapshot: Snapshot) -> ClusterState:
    """CorruptDataError, UnsupportedFormatError: it cannot be read."""
    with naming(f"snapshots/{snapshot.run_id}.json.zst"):
        return decode_state(snapshot.cluster)
