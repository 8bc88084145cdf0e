"""Finds every obstacle to writing partitions into log directories, before anything is written. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.model import PartitionId, TopicPartition
from maxbrod.restore.cold.plan import LeaderEpochs, SourceLog
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from maxbrod.layouts.logdir.target import Assignments, TargetDirectory, TargetFolder
    from maxbrod.restore.plan.plan import RestorePlan, TopicPlan

_INDEX_SHARE: Final = 256
"""For 4 KiB of log, one index has an entry of 8 bytes and the other one of 12, at most."""
_NAMED_MAX: Final = 5
_NOT_HERE: Final = frozenset({ObstacleKind.CONFIG, ObstacleKind.PARTITION_COUNT, ObstacleKind.OFFSETS})
"""Obstacles of a restore through brokers. Nothing is configured here, and the others have messages of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdTarget:
    """The directories, and the partitions that an interrupted restore has put in place there."""

    directories: Sequence[TargetDirectory]
    assignments: Assignments | None = None
    """The topics in the cluster's metadata; None: unknown."""
    done: Collection[tuple[Path, TopicPartition]] = field(default=frozenset())

    def folders(self, where: TopicPartition) -> list[tuple[TargetDirectory, TargetFolder]]:
        return [(directory, directory.folders[where]) for directory in self.directories if where in directory.folders]

    def leader_epoch(self, where: TopicPartition) -> int:
        """The highest epoch that any of its brokers has stored. After the next start it is this one or higher."""
        return max((folder.leader_epoch for _, folder in self.folders(where)), default=-1)


def find_cold_obstacles(
    plan: RestorePlan, target: ColdTarget, extents: Mapping[PartitionId, SourceLog], epochs: LeaderEpochs
) -> Iterator[Obstacle]:
    """In no particular order."""
    yield from (obstacle for obstacle in plan.obstacles if obstacle.kind not in _NOT_HERE)
    yield from _clusters(target)
    for topic in plan.topics:
        yield from _partitions(topic, target)
        yield from _replicas(topic, target)
        yield from _identity(topic, target)
        for partition in topic.partitions:
            where = TopicPartition(topic=topic.target.name, partition=partition.source.partition)
            yield from _contents(where, target)
            if epochs is LeaderEpochs.KEEP:
                yield from _epochs(where, target, extents[partition.source.id])
    yield from _space(plan, target)


def _clusters(target: ColdTarget) -> Iterator[Obstacle]:
    ids = sorted({directory.cluster_id or "unknown" for directory in target.directories})
    if len(ids) > 1:
        what = f"these directories belong to several clusters: {', '.join(ids)}"
        hint = "restore into one cluster at a time"
        yield Obstacle(kind=ObstacleKind.BROKERS, where=None, what=what, hint=hint, fatal=True)


def _targets(topic: TopicPlan) -> list[TopicPartition]:
    return [
        TopicPartition(topic=topic.target.name, partition=partition.source.partition) for partition in topic.partitions
    ]


def _partitions(topic: TopicPlan, target: ColdTarget) -> Iterator[Obstacle]:
    name, archived = topic.target.name, topic.target.source_partition_count
    there = topic.target.partition_count if topic.target.exists else 0
    if target.assignments is not None:
        there = max(there, target.assignments.partition_counts.get(name, 0))
    if there > archived:
        yield Obstacle(
            kind=ObstacleKind.PARTITION_COUNT,
            where=name,
            what=f"it has {there} partitions, the archived topic {archived}",
            hint="restore under another name, or delete the topic and create it with as many as it had",
            fatal=True,
        )
    missing = [where for where in _targets(topic) if not target.folders(where)]
    if missing:
        yield Obstacle(
            kind=ObstacleKind.PARTITION_COUNT,
            where=name,
            what=f"no directory has {_some(missing)}",
            hint="start the brokers, create the topic with that many partitions, stop them, and name the log "
            "directories of all of them",
            fatal=True,
        )


def _replicas(topic: TopicPlan, target: ColdTarget) -> Iterator[Obstacle]:
    """A replica that stays empty may become the leader, and then followers truncate what was restored."""
    name, held = topic.target.name, {where: target.folders(where) for where in _targets(topic)}
    what: str | None = None
    if target.assignments is None:
        if len({len(each) for each in held.values()} - {0}) > 1:
            what = "some of its partitions are in more of these directories than others"
    else:
        nodes = {where: {directory.node_id for directory, _ in each} for where, each in held.items() if each}
        lacking = {where: set(target.assignments.replicas.get(where, ())) - found for where, found in nodes.items()}
        absent = sorted({node for each in lacking.values() for node in each})
        if absent:
            some = _some([where for where, each in lacking.items() if each])
            what = f"no directory of broker {', '.join(map(str, absent))} is named, which has replicas of {some}"
    if what is not None:
        hint = "name the log directories of every broker: one that stays empty may lead, and truncate the others"
        yield Obstacle(kind=ObstacleKind.BROKERS, where=name, what=what, hint=hint, fatal=True)
    elif target.assignments is None:
        what = "it is unknown which brokers have replicas of it"
        hint = "name the log directories of every broker with a replica: an empty one may truncate the others"
        yield Obstacle(kind=ObstacleKind.BROKERS, where=name, what=what, hint=hint, fatal=False)


def _some(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, partitions[:_NAMED_MAX])) + (", …" if len(partitions) > _NAMED_MAX else "")


def _identity(topic: TopicPlan, target: ColdTarget) -> Iterator[Obstacle]:
    name = topic.target.name
    ids = {folder.topic_id for where in _targets(topic) for _, folder in target.folders(where)}
    known = None if target.assignments is None else target.assignments.ids.get(name)
    if known is not None:
        ids.add(known)
    if len(ids) > 1:
        named = ", ".join(sorted(each or "none" for each in ids))
        what = f"its folders and the cluster's metadata have different topic ids: {named}"
        hint = "start the brokers once: they set aside folders of a deleted topic"
        yield Obstacle(kind=ObstacleKind.NAME, where=name, what=what, hint=hint, fatal=True)


def _contents(where: TopicPartition, target: ColdTarget) -> Iterator[Obstacle]:
    for directory, folder in target.folders(where):
        if folder.held is not None and (directory.path, where) not in target.done:
            yield Obstacle(
                kind=ObstacleKind.TARGET_NOT_EMPTY,
                where=str(where),
                what=f"it is not empty: {directory.path / str(where)} has {folder.held}",
                hint="restore under another name, or delete the topic and create it again",
                fatal=True,
            )


def _epochs(where: TopicPartition, target: ColdTarget, extent: SourceLog) -> Iterator[Obstacle]:
    known = target.leader_epoch(where)
    if extent.last_epoch > max(known, 0):
        yield Obstacle(
            kind=ObstacleKind.LEADER_EPOCHS,
            where=str(where),
            what=f"its batches have leader epochs up to {extent.last_epoch}, the target's is {max(known, 0)}: "
            "followers would never copy them, and consumers would wait for such a leader",
            hint="say --leader-epochs lower, which lowers epochs to the target's and changes nothing else",
            fatal=True,
        )


def _space(plan: RestorePlan, target: ColdTarget) -> Iterator[Obstacle]:
    needed: dict[int, int] = {}
    for topic in plan.topics:
        for partition in topic.partitions:
            where = TopicPartition(topic=topic.target.name, partition=partition.source.partition)
            for directory, _ in target.folders(where):
                if (directory.path, where) not in target.done:
                    size = partition.source.raw_bytes
                    needed[directory.device] = needed.get(directory.device, 0) + size + size // _INDEX_SHARE
    for directory in {each.device: each for each in target.directories}.values():
        size, free = needed.get(directory.device, 0), directory.free_bytes
        if size > free:
            what = f"{size} bytes are needed, and {free} are free"
            hint = "make room, or restore fewer topics at a time"
            yield Obstacle(kind=ObstacleKind.SPACE, where=str(directory.path), what=what, hint=hint, fatal=True)
