"""The archive as the next run needs it: how far each partition reaches, and what earlier runs recorded.

A frozen value, read from the catalog and the last snapshot when an archive is opened. Each step of a run returns
a newer one. After an error it may be ahead of the catalog, or behind a commit whose answer was lost: it is read again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.knowledge import NOTHING, Carried, RunKnowledge, carry
from maxbrod.archive.runs import is_partial
from maxbrod.archive.snapshot_document import Snapshot, document_of, find_changes
from maxbrod.archive.snapshots import describes_rows, knowledge_at, last_snapshot_run, read_snapshot
from maxbrod.catalog.queries import ArchivedRange
from maxbrod.catalog.replaced import after_replacing
from maxbrod.catalog.rows import Gap, Row, Run
from maxbrod.kafka.state.cluster_state import ClusterState
from maxbrod.model import MENDABLE, PartitionId

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.backup.plan.ranges import PartitionBackup, PartitionState


_SHARED_MS: Final = 60_000
_CHANGES_BYTES_MAX: Final = 8192


class SnapshotRanges(Mapping[PartitionId, ArchivedRange]):
    """The end of each partition, by a snapshot. A run makes values of its own partitions, not of all.

    `exact`: the snapshot says all that the rows would say; else where partitions end, and nothing about their rows.
    """

    def __init__(self, snapshot: Snapshot, *, exact: bool) -> None:
        self.ends: Final = snapshot.ends
        self._snapshot, self._exact = snapshot, exact

    def __getitem__(self, partition: PartitionId) -> ArchivedRange:
        snapshot, end = self._snapshot, self.ends[partition]
        return ArchivedRange(
            topic=snapshot.topics.get(partition.topic_id, ""),
            first_offset=snapshot.firsts[partition] if self._exact else end,
            end_offset=end,
            last_leader_epoch=snapshot.leader_epochs[partition] if self._exact else None,
        )

    def __iter__(self) -> Iterator[PartitionId]:
        return iter(self.ends)

    def __len__(self) -> int:
        return len(self.ends)


class StoredDocument:
    """A snapshot as JSON, made when it is first needed: a run that finds nothing new does not compare."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.taken_at_ms: Final = snapshot.taken_at_ms
        self._snapshot: Snapshot | None = snapshot
        self._document: dict[str, Any] = {}

    @property
    def document(self) -> Mapping[str, Any]:
        """As it is after a round trip through JSON, which makes lists of tuples: one that was read may be compared."""
        if self._snapshot is not None:
            # The run's own row has what `run` has.
            document = json.dumps(document_of(replace(self._snapshot, runs=(), run=None)))
            self._document = json.loads(document)  # noqa: TID251 - our own
            self._snapshot = None
        return self._document


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSnapshot:
    """A snapshot, and the runs since that share it because they differ little: each has its changes in its row."""

    path: str
    stored: StoredDocument
    runs: tuple[Run, ...] = ()

    def changes_to(self, document: Mapping[str, Any]) -> list[Any] | None:
        """Return how this document differs. None: it becomes an object of its own: they differ much, or after a time.

        At an interval of a second most objects would be snapshots. A minute is what an archive that loses its catalog
        may lose of their number.
        """
        if not 0 <= document["taken_at_ms"] - self.stored.taken_at_ms < _SHARED_MS:
            return None
        changes = find_changes(self.stored.document, document)
        return changes if len(json.dumps(changes)) <= _CHANGES_BYTES_MAX else None

    def encode_runs(self) -> tuple[dict[str, Any], ...]:
        """The runs as JSON, for the next snapshot."""
        return tuple(asdict(run) for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveState:
    """The archive as a run sees it; `held` includes rows that are proved and not committed yet."""

    held: Mapping[PartitionId, ArchivedRange] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """The name of each topic id."""
    compacted: frozenset[str] = frozenset()
    """Ids of topics that are, or once were, compacted: the records that compaction removed do not come back."""
    cluster: Mapping[str, Any] | None = None
    """The cluster's state at the last run that recorded it."""
    newest_run: Run | None = None
    """The run that was committed last."""
    knowledge: RunKnowledge | None = None
    """The knowledge of the last snapshot: the cluster, and what it carries on."""
    revisions: Mapping[PartitionId, int] = field(default_factory=dict)
    """The number of times that rows of a partition have been replaced."""
    unrecorded: bool = False
    """True if a run has met a partition that neither rows nor a snapshot record."""
    recovery_points: Mapping[PartitionId, int | None] = field(default_factory=dict)
    """As recorded in the archive, and advanced since by runs of this process."""
    behind: Mapping[PartitionId, int | None] = field(default_factory=dict)
    """As recorded in the last snapshot."""
    log_starts: Mapping[PartitionId, int] = field(default_factory=dict)
    """As recorded in the last snapshot."""
    partial: bool = False
    """True if the last backup could not know that it had archived every topic."""
    confirmed_at_ms: int | None = None
    """The time at which `cluster` was last confirmed."""
    mendable: tuple[Gap, ...] = ()
    """Gaps that may be readable by now."""
    shared: SharedSnapshot | None = None
    """The last snapshot that is an object of its own."""
    registry: Mapping[str, Any] | None = None
    """The schema registry that the last snapshot names."""

    @property
    def ends(self) -> Mapping[PartitionId, int]:
        if isinstance(self.held, SnapshotRanges):
            return self.held.ends
        return {partition: held.end_offset for partition, held in self.held.items()}

    @property
    def topics(self) -> dict[str, str]:
        """The name of each topic id that the archive holds."""
        return {partition.topic_id: self.names.get(partition.topic_id, "") for partition in self.held}

    def with_committed(self, rows: Iterable[Row], retired: Iterable[Row]) -> ArchiveState:
        """The archive after a commit."""
        gone = set(retired)
        new = (row for row in rows if isinstance(row, Gap) and row.reason in MENDABLE)
        return replace(
            self,
            revisions=after_replacing(self.revisions, retired),
            mendable=(*(gap for gap in self.mendable if gap not in gone), *new),
        )

    def with_held(self, changes: Mapping[PartitionId, ArchivedRange]) -> ArchiveState:
        """Without changes `held` stays the same object, by which an observation sees that nothing has changed."""
        return replace(self, held={**self.held, **changes}) if changes else self

    def with_partitions(self, plans: Mapping[PartitionId, PartitionBackup]) -> ArchiveState:
        """The partitions of a run. The archive of a new one begins at its plan's first offset."""
        new = {
            partition: ArchivedRange(
                topic=plan.state.topic, first_offset=plan.first, end_offset=plan.first, last_leader_epoch=None
            )
            for partition, plan in plans.items()
            if partition not in self.held
        }
        names = {partition.topic_id: plan.state.topic for partition, plan in plans.items()}
        return replace(
            self,
            held={**self.held, **new} if new else self.held,
            names={**self.names, **names},
            unrecorded=self.unrecorded or bool(new),
        )

    def appeared(self, states: Iterable[PartitionState], *, divided: bool = False) -> set[PartitionId]:
        """The partitions that the cluster did not have at the last run.

        `divided`: several writers divide the partitions. Then the last run may have seen a partition that its own
        writer has not begun with yet: it counts as new, so that nothing of it is left out.
        """
        if self.cluster is None:
            return set()
        if divided:
            return {state.id for state in states if state.held is None}
        before = _partition_counts(self.cluster)
        return {state.id for state in states if state.partition >= before.get(state.topic_id, 0)}

    def recovery_points_before(self, chosen: Iterable[PartitionId]) -> Mapping[PartitionId, int | None]:
        """The recovery points before a run of these partitions.

        Nothing can be missing from a time when a partition did not exist, so a new one starts at the last moment at
        which the cluster was seen without it.
        """
        known = self.recovery_points
        if self.cluster is None or not self.cluster.get("brokers"):
            return known
        # The cluster may have had topics that this user could not see: `topic X`, or any number of them.
        if any(gap["what"].startswith("topic") for gap in self.cluster.get("gaps", ())):
            return known
        existed = _partition_counts(self.cluster)
        new = [place for place in chosen if place not in known and place.partition >= existed.get(place.topic_id, 0)]
        return {**known, **dict.fromkeys(new, self.confirmed_at_ms)}

    def recovery_points_of(self, choose: Callable[[Mapping[str, bool]], Collection[str]]) -> list[int | None]:
        """The recovery points of the topics that `choose` picks from all known names; True marks internal topics."""
        topics = () if self.cluster is None else self.cluster.get("topics", ())
        internal = {topic["topic_id"]: bool(topic.get("internal")) for topic in topics}
        names = {partition.topic_id: self.names.get(partition.topic_id, "") for partition in self.recovery_points}
        chosen = choose({name: internal.get(topic_id, False) for topic_id, name in names.items()})
        return [point for partition, point in self.recovery_points.items() if names[partition.topic_id] in chosen]

    def carried_beside(self, cluster: ClusterState) -> Carried:
        """Return what the last snapshot knew and this cluster has lost."""
        return NOTHING if self.knowledge is None else carry(self.knowledge, cluster, self.topics)


def read_archive_state(archive: Archive, *, before: ArchiveState | None = None) -> ArchiveState:
    """Read the last snapshot, and the rows if they may have changed since.

    A snapshot is committed together with the rows that it describes. While its commit is the last one, it has all that
    is needed of them: reading millions of rows takes seconds in which a backup has nothing else to do. Partitions
    without a row are known from the snapshot alone.
    `before` is an earlier state in this process. Its recovery points are newer than those of the snapshot.
    """
    state = before or ArchiveState()
    runs = archive.catalog.runs()
    last = last_snapshot_run(runs)
    held: Mapping[PartitionId, ArchivedRange] = {}
    names: dict[str, str] = {}
    knowledge = snapshot = None
    exact = False
    if last is not None:
        # A damaged snapshot is not skipped: an older one may not know a partition that has no row yet.
        snapshot = read_snapshot(archive.storage, last)
        # The code below reads the cluster as JSON, and anyone may have written it: this refuses what is invalid.
        knowledge = knowledge_at(archive.storage, runs, last, snapshot)
        names.update(snapshot.topics)
        exact = describes_rows(snapshot, last, version=archive.catalog.version)
        held = SnapshotRanges(snapshot, exact=exact)
        confirmed_at_ms = state.confirmed_at_ms
        if confirmed_at_ms is None:
            # A DataFrame that was written since has recorded a snapshot too, without looking at a cluster.
            confirmed_at_ms = min(snapshot.taken_at_ms, snapshot.cluster.get("taken_at_ms", 0))
        state = replace(
            state,
            cluster=snapshot.cluster,
            compacted=state.compacted | _compacted_topics(snapshot.cluster),
            behind=snapshot.behind,
            log_starts=snapshot.log_starts,
            registry=snapshot.registry,
            recovery_points={**snapshot.recovery_points, **state.recovery_points}
            if state.recovery_points
            else snapshot.recovery_points,
            confirmed_at_ms=confirmed_at_ms,
        )
    found = {} if exact else archive.catalog.positions()
    return replace(
        state,
        held={**held, **found} if found else held,
        names={**state.names, **{partition.topic_id: row.topic for partition, row in found.items()}, **names},
        newest_run=runs[-1] if runs else None,
        partial=is_partial(runs),
        knowledge=knowledge,
        revisions=archive.catalog.revisions(),
        unrecorded=False,
        mendable=tuple(archive.catalog.gaps(MENDABLE)),
        shared=None if last is None else _read_shared(archive, last, snapshot, runs),
    )


def _read_shared(archive: Archive, last: Run, snapshot: Snapshot | None, runs: Sequence[Run]) -> SharedSnapshot:
    """The snapshot that the last run has stored or shares, and the runs that no backup's snapshot has the rows of.

    Another command may have stored a snapshot since they shared one.
    """
    # Of a hundred thousand partitions it takes a second to read: not twice.
    stored = snapshot if snapshot is not None and not last.snapshot_changes else None
    stored = stored or read_snapshot(archive.storage, replace(last, snapshot_changes=()))
    kept = [
        number
        for number, run in enumerate(runs)
        if run.snapshot is not None and not run.snapshot_changes and run.statistics.get("command") == "backup"
    ]
    since = runs[kept[-1] + 1 :] if kept else runs
    return SharedSnapshot(
        path=last.snapshot or "",
        stored=StoredDocument(stored),
        runs=tuple(run for run in since if run.snapshot_changes),
    )


def _partition_counts(cluster: Mapping[str, Any]) -> dict[str, int]:
    return {topic["topic_id"]: len(topic["replicas"]) for topic in cluster.get("topics", ())}


def _compacted_topics(cluster: Mapping[str, Any]) -> set[str]:
    return {
        topic["topic_id"]
        for topic in cluster.get("topics", ())
        if "compact" in ((topic.get("effective") or {}).get("cleanup.policy") or "")
    }
