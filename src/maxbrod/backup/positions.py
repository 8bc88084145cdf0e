"""How far an archive is with each partition, as the next run needs to know it.

Read from the catalog when an archive is opened, and moved along by the runs of this process. After an error it may be
ahead of the catalog, or behind a commit that was never heard of: then it is read afresh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.archive.carried import NOTHING, carry
from maxbrod.archive.snapshots import knowledge_at, last_snapshot_run, read_snapshot
from maxbrod.backup.observing import Position
from maxbrod.catalog.rows import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from maxbrod.archive.carried import Carried, RunKnowledge
    from maxbrod.archive.opening import Archive
    from maxbrod.backup.plan.assembly import Assembly
    from maxbrod.backup.plan.states import PartitionState
    from maxbrod.catalog.rows import Run
    from maxbrod.kafka.state.cluster_state import ClusterState
    from maxbrod.model import PartitionId


class Positions:
    """Besides offsets it knows what else earlier runs have left: names, compacted topics, the cluster as it was."""

    def __init__(self) -> None:
        self.held: dict[PartitionId, Position] = {}
        self.compacted: set[str] = set()
        """Ids of topics that are, or once were, compacted: what that has removed stays away."""
        self.cluster: Mapping[str, Any] | None = None
        """At the last run that recorded it."""
        self.newest_run: Run | None = None
        """The last one that was committed."""
        self._knowledge: RunKnowledge | None = None
        self.revisions: dict[PartitionId, int] = {}
        """How often rows of a partition have been replaced."""
        self.unrecorded = False
        """Whether a partition was met that neither rows nor a snapshot tell of."""
        self.recovery_points: dict[PartitionId, int | None] = {}
        """As the archive has recorded them, and as runs of this process have moved them on since."""
        self.behind: Mapping[PartitionId, int | None] = {}
        """As the last snapshot has them."""
        self.looked_at_ms: int | None = None
        """When `cluster` was last found to be so."""
        self._names: dict[str, str] = {}

    def remember(self, archive: Archive) -> None:
        """Read it all afresh: from the rows, and from the last snapshot where a partition has no row yet."""
        self.held.clear()
        self.unrecorded = False
        runs = archive.catalog.runs()
        self.newest_run = runs[-1] if runs else None
        self.revisions = archive.catalog.revisions()
        last = last_snapshot_run(runs)
        self._knowledge = None
        if last is not None:
            # A damaged one is not passed over: an older one may not know of a partition that has no row yet.
            snapshot = read_snapshot(archive.storage, last)
            # The cluster is looked at as JSON below, and may be anyone's: this refuses what is none.
            self._knowledge = knowledge_at(archive.storage, runs, last, snapshot)
            self._names.update(snapshot.topics)
            self.cluster = snapshot.cluster
            self.compacted |= _compacted_topics(snapshot.cluster)
            self.behind = snapshot.behind
            # What this process has found out since is true as well, and newer.
            self.recovery_points = {**snapshot.recovery_points, **self.recovery_points}
            if self.looked_at_ms is None:
                # A DataFrame that was written since has taken a snapshot, too, and looked at no cluster.
                self.looked_at_ms = min(snapshot.taken_at_ms, snapshot.cluster.get("taken_at_ms", 0))
            for partition, end in snapshot.ends.items():
                self.held[partition] = Position(first_offset=end, end_offset=end, last_leader_epoch=None)
        for partition, found in archive.catalog.positions().items():
            self._names.setdefault(partition.topic_id, found.topic)
            self.held[partition] = Position(
                first_offset=found.first_offset,
                end_offset=found.end_offset,
                last_leader_epoch=found.last_leader_epoch,
            )

    def end_of(self, partition: PartitionId) -> int:
        return self.held[partition].end_offset

    def meet(self, partition: PartitionId, topic: str, first: int) -> None:
        """A partition of this run; where it is new, the archive begins at `first`."""
        self._names[partition.topic_id] = topic
        if partition not in self.held:
            self.held[partition] = Position(first_offset=first, end_offset=first, last_leader_epoch=None)
            self.unrecorded = True

    def advance(self, assembly: Assembly) -> None:
        """Its rows are about to be committed."""
        held = self.held[assembly.partition]
        epochs = [row.last_leader_epoch for row in assembly.rows if isinstance(row, Segment)]
        known = [epoch for epoch in (held.last_leader_epoch, *epochs) if epoch is not None]
        self.held[assembly.partition] = Position(
            first_offset=min(held.first_offset, assembly.first),
            end_offset=assembly.reached,
            last_leader_epoch=max(known, default=None),
        )

    def cut(self, archive: Archive, partition: PartitionId, offset: int) -> None:
        """The archive was cut back to `offset`, in a commit of its own."""
        self.revisions = archive.catalog.revisions()
        rows = archive.catalog.rows(
            topic_id=partition.topic_id, partition=partition.partition, columns=["last_leader_epoch"]
        )
        epochs = [epoch for epoch in rows["last_leader_epoch"].to_pylist() if epoch is not None]
        self.held[partition] = Position(
            first_offset=min(self.held[partition].first_offset, offset),
            end_offset=offset,
            last_leader_epoch=max(epochs, default=None),
        )

    def take_back(self, partition: PartitionId, offset: int) -> None:
        """Nothing of what the archive held stays, and it begins again at `offset`."""
        self.held[partition] = Position(first_offset=offset, end_offset=offset, last_leader_epoch=None)

    def appeared(self, states: Iterable[PartitionState]) -> set[PartitionId]:
        """Which of these the cluster did not have yet at the last run."""
        if self.cluster is None:
            return set()
        before = {topic["topic_id"]: len(topic["replicas"]) for topic in self.cluster["topics"]}
        return {state.id for state in states if state.partition >= before.get(state.topic_id, 0)}

    def recovery_points_before(self, chosen: Iterable[PartitionId]) -> dict[PartitionId, int | None]:
        """Before a run that has chosen these: nothing of a partition can be missing from before it existed."""
        known = self.recovery_points
        if self.cluster is None or not self.cluster.get("brokers") or _may_hide_topics(self.cluster):
            return known
        existed = {topic["topic_id"]: len(topic["replicas"]) for topic in self.cluster["topics"]}
        new = [each for each in chosen if each not in known and each.partition >= existed.get(each.topic_id, 0)]
        return {**known, **dict.fromkeys(new, self.looked_at_ms)}

    def recovery_points_of(self, chosen: Callable[[Mapping[str, bool]], Collection[str]]) -> list[int | None]:
        """Of the topics that are chosen from all names that the archive knows, each with whether it is internal."""
        topics = () if self.cluster is None else self.cluster.get("topics", ())
        internal = {topic["topic_id"]: bool(topic.get("internal")) for topic in topics}
        names = {each.topic_id: self._names.get(each.topic_id, "") for each in self.recovery_points}
        meant = chosen({name: internal.get(topic_id, False) for topic_id, name in names.items()})
        return [point for each, point in self.recovery_points.items() if names[each.topic_id] in meant]

    def carried_beside(self, cluster: ClusterState) -> Carried:
        """What the last snapshot knew, and this cluster has lost."""
        return NOTHING if self._knowledge is None else carry(self._knowledge, cluster, self.topics)

    def recorded(
        self, run: Run, cluster: Mapping[str, Any], told: RunKnowledge, behind: Mapping[PartitionId, int | None]
    ) -> None:
        """A snapshot with all of this has been committed."""
        self.newest_run, self._knowledge = run, told
        self.cluster, self.unrecorded, self.behind = cluster, False, behind

    @property
    def ends(self) -> dict[PartitionId, int]:
        return {partition: position.end_offset for partition, position in self.held.items()}

    @property
    def topics(self) -> dict[str, str]:
        """The name of each topic id."""
        return {each.topic_id: self._names.get(each.topic_id, "") for each in self.held}


def _may_hide_topics(cluster: Mapping[str, Any]) -> bool:
    """Whether the cluster may have had topics that this user could not see: `topic X`, or any number of them."""
    return any(gap["what"].startswith("topic") for gap in cluster.get("gaps", ()))


def _compacted_topics(cluster: Mapping[str, Any]) -> set[str]:
    return {
        topic["topic_id"]
        for topic in cluster.get("topics", ())
        if "compact" in ((topic.get("effective") or {}).get("cleanup.policy") or "")
    }
