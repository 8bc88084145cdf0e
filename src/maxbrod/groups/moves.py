"""Plans the offsets of groups at the target of a restore, and the obstacles. `movement.py` commits the offsets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from maxbrod.archive.selection import matches_nothing
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.groups.plan import ExactLog, GroupMove, MovedLog, RestoredTopic, translate_groups
from maxbrod.kafka.state.groups import CLASSIC
from maxbrod.restore.plan.mapping import decode_map, decode_shares
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.request import OffsetsMode, choose_groups

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.kafka.state.cluster_state import ClusterState, Group
    from maxbrod.restore.plan.plan import RestorePlan
    from maxbrod.restore.report import PartitionReport

WITHOUT_MEMBERS: Final = frozenset({"empty", "dead"})
"""The states, in lower case, of groups whose offsets can be set from outside."""
_STOP: Final = "stop them before the restore ends"
_FORCE: Final = "give --force-groups to remove them for a moment"
_HINT: Final = "see the groups of a run with 'maxbrod show'"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """The offset of one group in one partition of the target. `refused` is the reason if it was not committed."""

    group: str
    topic: str
    partition: int
    source_offset: int | None
    offset: int | None
    move: str
    why: str | None = None
    refused: str | None = None
    seen_twice_max: int = 0
    """Records from there on that the group has processed before: they have changed their partition."""
    forced: bool = False
    """Its members were removed. They rejoin by themselves, and continue from here."""
    run_id: str | None = None
    """The run that last recorded the offset; None if no archive was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingGroup:
    """A requested group for which no offset can be committed."""

    group: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMoves:
    offsets: tuple[GroupMove, ...]
    missing: tuple[MissingGroup, ...]


def missing_groups(patterns: Sequence[str], snapshot: ClusterState | None) -> Iterator[Obstacle]:
    """Requested names and patterns that match no group of the archive."""
    known = () if snapshot is None else snapshot.groups or ()
    for name in choose_groups(patterns, known)[1]:
        error = matches_nothing(name, [group.group_id for group in known], what="group")
        hint = _HINT if error.hint is None or "maxbrod ls" in error.hint else error.hint
        yield Obstacle(kind=ObstacleKind.GROUP_MISSING, where=None, what=error.message, hint=hint, fatal=True)


def active_groups(
    patterns: Sequence[str], snapshot: ClusterState | None, target: ClusterState, *, forced: bool
) -> Iterator[Obstacle]:
    """Requested groups that have members at the target."""
    known = () if snapshot is None else snapshot.groups or ()
    for name in (group.group_id for group in choose_groups(patterns, known)[0]):
        group = target.group(name)
        if group is None or group.state.lower() in WITHOUT_MEMBERS:
            continue
        removable = forced and group.type == CLASSIC
        what = "it has members, which are removed for a moment" if removable else "it has members: its offsets stay"
        hint = _STOP if forced or group.type != CLASSIC else f"{_STOP}, or {_FORCE}"
        yield Obstacle(kind=ObstacleKind.GROUPS, where=name, what=what, hint=None if removable else hint, fatal=False)


def unplaced_groups(
    patterns: Sequence[str], snapshot: ClusterState | None, plan: RestorePlan, *, strict: bool
) -> Iterator[Obstacle]:
    """Requested groups for which the plan already shows that no offset will be committed."""
    chosen = choose_groups(patterns, () if snapshot is None else snapshot.groups)[0]
    restored = {
        (partition.source.topic, partition.source.topic_id, partition.source.partition)
        for topic in plan.topics
        for partition in topic.partitions
    }
    names = {topic: topic_id for topic, topic_id, _ in restored}
    placed = {
        group.group_id
        for group in chosen
        for offset in group.offsets or ()
        if (offset.topic, offset.topic_id or names.get(offset.topic), offset.partition) in restored
    }
    for missing in _missing(patterns, chosen, placed):
        yield Obstacle(kind=ObstacleKind.GROUPS, where=missing.group, what=missing.why, hint=_HINT, fatal=strict)


def _missing(patterns: Sequence[str], chosen: Iterable[Group], placed: Container[str]) -> Iterator[MissingGroup]:
    """A group that is named must be found; a pattern is about all groups whose offsets can be read."""
    for group in chosen:
        if group.group_id in placed:
            continue
        if group.offsets is None:
            yield MissingGroup(group=group.group_id, why="its offsets could not be read when it was backed up")
        elif group.group_id in patterns:
            yield MissingGroup(group=group.group_id, why="the archive has no offset of it in the restored topics")


def plan_moves(
    archive: Archive, plan: RestorePlan, partitions: Iterable[PartitionReport], patterns: Sequence[str]
) -> PlannedMoves:
    """The offsets of groups, as recorded by the run that the restore was made from."""
    moment = _moment_of(archive, plan)
    known = () if moment.cluster is None else moment.cluster.groups
    chosen, missing = choose_groups(patterns, known)
    for name in missing:
        raise matches_nothing(name, [group.group_id for group in known], what="group")
    runs = {} if moment.known is None else moment.known.offset_runs
    found = translate_groups(chosen, restored_topics(plan, partitions), runs)
    offsets = tuple(each if each.run_id else replace(each, run_id=plan.archive.run_id) for each in found)
    placed = {offset.group_id for offset in offsets if offset.offset is not None}
    return PlannedMoves(offsets=offsets, missing=tuple(_missing(patterns, chosen, placed)))


def archived_groups(archive: Archive, plan: RestorePlan) -> Sequence[Group]:
    """The groups as recorded by the run that the restore was made from."""
    cluster = _moment_of(archive, plan).cluster
    return () if cluster is None else cluster.groups


def _moment_of(archive: Archive, plan: RestorePlan) -> Moment:
    return find_moment(archive.storage, archive.catalog.runs(), plan.archive.run_id)


def restored_topics(plan: RestorePlan, partitions: Iterable[PartitionReport]) -> dict[str, RestoredTopic]:
    """Each topic as restored, by the source's name."""
    reports = {(partition.target, partition.partition): partition for partition in partitions}
    found = {}
    for topic in plan.topics:
        target = topic.target
        if target.repartitioned:
            shares = {each: decode_shares(reports[target.name, each].map) for each in range(target.partition_count)}
            found[target.source_topic] = RestoredTopic(topic_id=target.topic_id, target=target.name, shares=shares)
            continue
        logs: dict[int, ExactLog | MovedLog] = {}
        for partition in topic.partitions:
            report = reports[target.name, partition.source.partition]
            exact = partition.offsets.mode is OffsetsMode.EXACT
            logs[partition.source.partition] = (
                ExactLog(start=partition.source.first_offset, end=report.end)
                if exact
                else MovedLog(map=decode_map(dict(report.map)))
            )
        found[target.source_topic] = RestoredTopic(topic_id=target.topic_id, target=target.name, logs=logs)
    return found
