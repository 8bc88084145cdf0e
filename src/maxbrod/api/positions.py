"""How far an archive is with each partition, as the next run needs to know it.

Read from the catalog when an archive is opened, and moved along by the runs of this process. After an error it may be
ahead of the catalog, or behind a commit that was never heard of: then it is read afresh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.api.observing import Position
from maxbrod.api.snapshots import last_snapshot_run, read_cluster, read_snapshot
from maxbrod.catalog.rows import PartitionId, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maxbrod.api.archives import Archive
    from maxbrod.planning.assembly import Assembly
    from maxbrod.planning.states import PartitionState


class Positions:
    """Besides offsets it knows what else earlier runs have left: names, compacted topics, the cluster as it was."""

    def __init__(self) -> None:
        self.held: dict[PartitionId, Position] = {}
        self.compacted: set[str] = set()
        """Ids of topics that are, or once were, compacted: what that has removed stays away."""
        self.cluster: Mapping[str, Any] | None = None
        """At the last run that recorded it."""
        self.unrecorded = False
        """Whether a partition was met that neither rows nor a snapshot tell of."""
        self._names: dict[str, str] = {}

    def remember(self, archive: Archive) -> None:
        """Read it all afresh: from the rows, and from the last snapshot where a partition has no row yet."""
        self.held.clear()
        self.unrecorded = False
        last = last_snapshot_run(archive.catalog.runs())
        if last is not None:
            # A damaged one is not passed over: an older one may not know of a partition that has no row yet.
            snapshot = read_snapshot(archive.storage, last)
            read_cluster(snapshot)  # which is looked at as JSON below, and may be anyone's
            self._names.update(snapshot.topics)
            self.cluster = snapshot.cluster
            self.compacted |= _compacted_topics(snapshot.cluster)
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
        """The archive was cut back to `offset`."""
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

    def recorded(self, cluster: Mapping[str, Any]) -> None:
        """A snapshot with all of this has been committed."""
        self.cluster, self.unrecorded = cluster, False

    @property
    def ends(self) -> dict[PartitionId, int]:
        return {partition: position.end_offset for partition, position in self.held.items()}

    @property
    def topics(self) -> dict[str, str]:
        """The name of each topic id."""
        return {each.topic_id: self._names.get(each.topic_id, "") for each in self.held}


def _compacted_topics(cluster: Mapping[str, Any]) -> set[str]:
    return {
        topic["topic_id"]
        for topic in cluster.get("topics", ())
        if "compact" in ((topic.get("effective") or {}).get("cleanup.policy") or "")
    }
