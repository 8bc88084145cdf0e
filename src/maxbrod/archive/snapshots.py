"""Finds runs and reads their snapshots: the cluster as it was, and how far the archive reached then.

What the cluster had lost by then is in the snapshot too, carried on from the one before. Snapshots of older releases do
not have it: then the runs before are looked at, as far back as something is missing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from maxbrod.archive.carried import carry
from maxbrod.archive.known import know, told_of
from maxbrod.archive.run_names import find_run
from maxbrod.archive.snapshot_document import decode
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.archive.carried import RunKnowledge
    from maxbrod.archive.known import Known
    from maxbrod.archive.opening import AnyCatalog
    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.catalog.replaced import Revisions
    from maxbrod.catalog.rows import Run
    from maxbrod.kafka.state.cluster_state import ClusterState
    from maxbrod.model import PartitionId
    from maxbrod.storage.interface import Storage

_UNREADABLE: Final = (CorruptDataError, ObjectNotFoundError, UnsupportedFormatError)
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
    told: RunKnowledge | None = None
    """What its run says of the cluster, and carries on."""
    known: Known | None = field(init=False)
    """The same as one: the newest word on each topic, group and rule."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", None if self.told is None else know(self.told))

    @property
    def cluster(self) -> ClusterState | None:
        """With what the cluster had lost by then; `known` says which run saw that last."""
        return None if self.known is None else self.known.cluster

    @property
    def ends(self) -> Mapping[PartitionId, int] | None:
        """How far to look; None: at everything."""
        return None if self.as_of is None or self.snapshot is None else self.snapshot.ends

    @property
    def topic_runs(self) -> Mapping[str, str]:
        """Of topic ids, the other run that says what the topic was like: see `Known`."""
        return {} if self.known is None else {**self.known.config_runs, **self.known.topic_runs}

    @property
    def lost(self) -> Mapping[str, str]:
        """Topic ids that the cluster had no more, and the run that last saw each."""
        return {} if self.known is None else self.known.topic_runs

    @property
    def ranks(self) -> Mapping[str, int]:
        """Which of several topics of one name the cluster had last: see `Known`."""
        return {} if self.known is None else self.known.ranks

    @property
    def revisions(self) -> Revisions | None:
        """How often rows had been replaced by then; None: as they are now."""
        return None if self.as_of is None or self.snapshot is None else self.snapshot.revisions

    def revisions_in(self, catalog: AnyCatalog) -> Revisions:
        """How often rows had been replaced, at the run that was asked for or by now."""
        return catalog.revisions() if self.revisions is None else self.revisions


def find_moment(storage: Storage, runs: Sequence[Run], as_of: str | None, *, needed: bool = False) -> Moment:
    """Looking at the present goes on without a snapshot that cannot be read: `maxbrod check` is there to complain.

    If it is `needed`, because something is made of it, one that cannot be read is an error in any case.
    """
    if as_of is not None:
        run = find_run(runs, as_of)
        snapshot = read_snapshot(storage, run)
        return Moment(as_of=run.run_id, run=run, snapshot=snapshot, told=told_by(storage, runs, run, snapshot))
    last = last_snapshot_run(runs)
    if last is not None:
        try:
            snapshot = read_snapshot(storage, last)
            return Moment(as_of=None, run=last, snapshot=snapshot, told=told_by(storage, runs, last, snapshot))
        except ObjectNotFoundError as error:
            if needed:
                message = "the snapshot of the newest run is not there"
                raise CorruptDataError(message, object_name=error.object_name, hint=_NEEDED) from None
        except (CorruptDataError, UnsupportedFormatError) as error:
            if needed:
                error.hint = _NEEDED
                raise
    return Moment(as_of=None, run=last, snapshot=None)


def told_by(storage: Storage, runs: Sequence[Run], run: Run, snapshot: Snapshot) -> RunKnowledge:
    """What a run says of its cluster. CorruptDataError, UnsupportedFormatError: its snapshot cannot be read."""
    told = told_of(snapshot)
    if snapshot.carried is not None:
        return told
    there = {each.topic_id for each in told.cluster.topics}
    for older in reversed(runs[: runs.index(run)]):
        if snapshot.topics.keys() <= there | {each.topic.topic_id for each in told.carried.topics}:
            break
        if older.snapshot is None:
            continue
        with suppress(*_UNREADABLE):
            before = read_snapshot(storage, older)
            told = replace(told, carried=carry(told_of(before), told.cluster, snapshot.topics, told.carried))
            if before.carried is not None:
                break
    return told


def last_snapshot_run(runs: Sequence[Run]) -> Run | None:
    """The last run that recorded the cluster; others, such as a compaction of segments, do not."""
    return next((run for run in reversed(runs) if run.snapshot is not None), None)


def read_snapshot(storage: Storage, run: Run) -> Snapshot:
    """ObjectNotFoundError, CorruptDataError, UnsupportedFormatError: it cannot be read."""
    if run.snapshot is None:
        raise UsageError(f"the run {run.run_id} recorded no snapshot", hint="name a run of 'maxbrod backup'")
    return decode(bytes(storage.get(run.snapshot)), object_name=storage.name_of(run.snapshot))
