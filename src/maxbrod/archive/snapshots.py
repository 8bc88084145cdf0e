"""Finds runs and reads their snapshots: the cluster at that time, and how far the archive reached.

A snapshot also holds what the cluster had lost by then, carried on from the snapshot before. Snapshots of older
releases do not: for those, earlier runs are read as far back as something is missing.

Only this module defines the recovery point: the newest moment up to which everything is archived. Each partition has
its own: the start of the last run that read the end of its log and has committed everything below. The recovery point
of several partitions is the oldest of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from maxbrod.archive.knowledge import Known, RunKnowledge, carry, know, knowledge_of
from maxbrod.archive.selection import Incarnation, incarnations_in, nearest, newest_ids
from maxbrod.archive.snapshot_document import PartitionNumbers, Snapshot, decode
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError, UsageError
from maxbrod.kafka.state.cluster_state import ClusterState
from maxbrod.model import PartitionId
from maxbrod.storage.interface import Storage

if TYPE_CHECKING:
    import pyarrow as pa

    from maxbrod.archive.archive import AnyCatalog
    from maxbrod.catalog.replaced import Revisions
    from maxbrod.catalog.rows import Run

UNREADABLE: Final = (CorruptDataError, ObjectNotFoundError, UnsupportedFormatError)
"""The errors of a snapshot that cannot be read."""
_NEEDED: Final = (
    "restore it from a copy of the archive, or name an earlier run (--as-of); with --accept-gaps the command continues "
    "without it: topics then get the target's defaults, and no groups are restored"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state of an archive that a command sees: now, or as of a run."""

    as_of: str | None
    """The requested run; None: now."""
    run: Run | None
    """The requested run, or else the last one that recorded a snapshot."""
    snapshot: Snapshot | None
    knowledge: RunKnowledge | None = None
    """The cluster as that run recorded it, and what it carries on."""
    known: Known | None = field(init=False)
    """The same merged: the newest state of each topic, group and rule."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", None if self.knowledge is None else know(self.knowledge))

    @property
    def cluster(self) -> ClusterState | None:
        """Includes what the cluster had lost by then; `known` has the run that last saw it."""
        return None if self.known is None else self.known.cluster

    @property
    def ends(self) -> Mapping[PartitionId, int] | None:
        """The ends of the archive; None: no limit."""
        return None if self.as_of is None or self.snapshot is None else self.snapshot.ends

    @property
    def topic_runs(self) -> Mapping[str, str]:
        """For topic ids that the run itself did not describe, the run that did: see `Known`."""
        return {} if self.known is None else {**self.known.config_runs, **self.known.topic_runs}

    @property
    def lost(self) -> Mapping[str, str]:
        """Topic ids that the cluster had lost, and the run that last saw each."""
        return {} if self.known is None else self.known.topic_runs

    @property
    def ranks(self) -> Mapping[str, int]:
        """The order in which the cluster had several topics of one name: see `Known`."""
        return {} if self.known is None else self.known.ranks

    @property
    def revisions(self) -> Revisions | None:
        """The number of replacements by then; None: as they are now."""
        return None if self.as_of is None or self.snapshot is None else self.snapshot.revisions

    def revisions_in(self, catalog: AnyCatalog) -> Revisions:
        """The number of replacements at the requested run or by now."""
        return catalog.revisions() if self.revisions is None else self.revisions


def find_moment(storage: Storage, runs: Sequence[Run], as_of: str | None, *, needed: bool = False) -> Moment:
    """The state as of a run, or now. UsageError: there is no such run.

    If the newest snapshot cannot be read, the present is shown without it: `maxbrod check` reports the damage. If it is
    `needed`, because a command depends on it, this is an error.
    """
    run = last_snapshot_run(runs) if as_of is None else find_run(runs, as_of)
    if run is None:
        return Moment(as_of=None, run=None, snapshot=None)
    try:
        snapshot = read_snapshot(storage, run)
        knowledge = knowledge_at(storage, runs, run, snapshot)
    except UNREADABLE as error:
        if as_of is not None:
            raise
        if not needed:
            return Moment(as_of=None, run=run, snapshot=None)
        if isinstance(error, ObjectNotFoundError):
            message = "the snapshot of the newest run is missing"
            raise CorruptDataError(message, object_name=error.object_name, hint=_NEEDED) from None
        error.hint = _NEEDED
        raise
    as_of = None if as_of is None else run.run_id
    return Moment(as_of=as_of, run=run, snapshot=snapshot, knowledge=knowledge)


def known_topics(
    catalog: AnyCatalog, moment: Moment, revisions: Revisions | None, *, rows: pa.Table | None = None
) -> tuple[dict[str, str], set[str]]:
    """The name of every topic id in rows or in the snapshot, and the ids that names without an id stand for.

    `rows`: what `Queries.topics` would return, if it is known.
    """
    found = incarnations_in(catalog.topics(revisions=revisions) if rows is None else rows)
    named = {} if moment.snapshot is None else dict(moment.snapshot.topics)
    with_rows = {incarnation.topic_id for incarnation in found}
    # A topic without rows is older than one of the same name with rows.
    empty = [
        Incarnation(topic=name, topic_id=topic_id, first_written_at=0)
        for topic_id, name in named.items()
        if topic_id not in with_rows
    ]
    topics = {**named, **{incarnation.topic_id: incarnation.topic for incarnation in found}}
    return topics, newest_ids([*found, *empty], moment.ranks)


def topics_in_snapshot(moment: Moment) -> tuple[dict[str, str], set[str]] | None:
    """As `known_topics`, by a snapshot that describes all rows: no row is read.

    None: only rows can tell which of several topics of one name is the newest.
    """
    named = {} if moment.snapshot is None else dict(moment.snapshot.topics)
    ranked: set[tuple[str, int]] = set()
    for topic_id, name in named.items():
        rank = moment.ranks.get(topic_id, -1)
        if (name, rank) in ranked:
            return None
        ranked.add((name, rank))
    found = (Incarnation(topic=name, topic_id=topic_id, first_written_at=0) for topic_id, name in named.items())
    return named, newest_ids(found, moment.ranks)


def describes_rows(snapshot: Snapshot, run: Run, *, version: int) -> bool:
    """True if the snapshot says of every partition what the rows of this version of the catalog would say."""
    ends = snapshot.ends
    if run.commit != version or not isinstance(ends, PartitionNumbers):
        return False
    return ends.has_same_partitions(snapshot.firsts) and ends.has_same_partitions(snapshot.leader_epochs)


def knowledge_at(storage: Storage, runs: Sequence[Run], run: Run, snapshot: Snapshot) -> RunKnowledge:
    """A run's knowledge of its cluster. CorruptDataError, UnsupportedFormatError: its snapshot cannot be read."""
    knowledge = knowledge_of(snapshot)
    if snapshot.carried is not None:
        return knowledge
    there = {topic.topic_id for topic in knowledge.cluster.topics}
    for older in reversed(runs[: runs.index(run)]):
        if snapshot.topics.keys() <= there | {topic.topic.topic_id for topic in knowledge.carried.topics}:
            break
        if older.snapshot is None:
            continue
        with suppress(*UNREADABLE):
            before = read_snapshot(storage, older)
            knowledge = replace(
                knowledge, carried=carry(knowledge_of(before), knowledge.cluster, snapshot.topics, knowledge.carried)
            )
            if before.carried is not None:
                break
    return knowledge


def find_run(runs: Sequence[Run], run_id: str) -> Run:
    """The run with this id, or with an id that begins so if only one does.

    `latest` is the last run that recorded a snapshot: prune, hold and the like leave runs without one.
    """
    matching = [run for run in runs if run.run_id == run_id] or [run for run in runs if run.run_id.startswith(run_id)]
    if run_id == "latest":
        last = last_snapshot_run(runs)
        matching = list(runs[-1:]) if last is None else [last]
    if len(matching) != 1:
        raise UsageError(
            f"{len(matching) or 'no'} runs of this archive match {run_id!r}",
            hint=nearest(run_id, [run.run_id for run in runs], see="see 'maxbrod ls --runs'"),
        )
    return matching[0]


def last_snapshot_run(runs: Sequence[Run]) -> Run | None:
    """The last run that recorded the cluster. Some runs, such as a compaction of segments, do not."""
    return next((run for run in reversed(runs) if run.snapshot is not None), None)


def read_snapshot(storage: Storage, run: Run) -> Snapshot:
    """ObjectNotFoundError, CorruptDataError, UnsupportedFormatError: it cannot be read."""
    if run.snapshot is None:
        raise UsageError(f"the run {run.run_id} recorded no snapshot", hint="name a run of 'maxbrod backup'")
    data = bytes(storage.get(run.snapshot))
    return decode(data, changes=run.snapshot_changes, object_name=storage.name_of(run.snapshot))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The state in which a run has left one of its partitions."""

    end: int | None
    """The last stable offset at planning; None if no leader answered."""
    archived: int
    """The first offset that the catalog does not account for. Only committed rows count."""
    sound: bool = True
    """False if the run reports offsets as damaged, unexplained or not read."""
    put_off: bool = False
    """Left in the log on purpose, until there is more."""
    held_back: bool = False
    """An open transaction keeps the rest of the log from being read."""
    held_since_ms: int | None = None
    """The time at which the oldest such transaction began; None if unknown."""

    @property
    def complete(self) -> bool:
        """True if everything up to the end of the log is archived or explained."""
        return self.end is not None and self.sound and self.archived >= self.end

    @property
    def behind(self) -> bool:
        """True if the run should have archived more than it has."""
        return not self.complete and not self.put_off


def oldest(points: Iterable[int | None]) -> int | None:
    """The recovery point of several partitions: None if there are none, or if one of them has none."""
    found = list(points)
    known = [point for point in found if point is not None]
    return min(known) if known and len(known) == len(found) else None


def move_on(before: int | None, reach: Reach, *, began_at_ms: int) -> int | None:
    """The recovery point of a partition after a run that began at `began_at_ms`, given the one `before`."""
    if not reach.complete:
        return before
    if not reach.held_back:
        return began_at_ms
    # Everything before the first record of the transaction is archived. Later records of others wait with it.
    if reach.held_since_ms is None:
        return before
    held_since_ms = min(reach.held_since_ms, began_at_ms)
    return held_since_ms if before is None else max(before, held_since_ms)


def behind(reaches: Mapping[PartitionId, Reach]) -> dict[PartitionId, int | None]:
    """Partitions that the run should have archived further, with the end of each log, None if unknown."""
    return {partition: reach.end for partition, reach in reaches.items() if reach.behind}
