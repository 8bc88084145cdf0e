"""Translates committed offsets to the target, so that a group skips no record and sees as few as possible twice.

Also its obstacles. Pure: `movement.py` checks whether a group is active and what it has committed at the target.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from maxbrod.archive.selection import matches_nothing
from maxbrod.kafka.groups import CLASSIC
from maxbrod.kafka.state.cluster_state import ClusterState, CommittedOffset, Group
from maxbrod.model import TopicPartition
from maxbrod.restore.plan.mapping import OffsetMap, RecordShare, find_position
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.request import choose_groups

if TYPE_CHECKING:
    from maxbrod.archive.knowledge import Place
    from maxbrod.restore.plan.plan import RestorePlan

WITHOUT_MEMBERS: Final = frozenset({"empty", "dead"})
"""The states, in lower case, of groups whose offsets can be set from outside."""

_STOP: Final = "stop them before the restore ends"

_FORCE: Final = "give --force-groups to remove them for a moment"

_HINT: Final = "see the groups of a run with 'maxbrod show'"


class Move(StrEnum):
    """The way in which a group's offset was translated."""

    SAME = "same"
    """The same record, or the end."""
    NEXT = "next"
    """Its record was not restored: the next one."""
    END = "end"
    """Beyond everything restored: the next record that is written to the target."""
    EARLIER = "earlier"
    """Records changed their partition: no record is skipped, some may be seen twice."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactLog:
    """A target partition whose records keep their offsets, from `start` to `end` as restored."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTopic:
    """A source topic as restored: `logs` by partition, or `shares` by target partition if it was repartitioned."""

    topic_id: str
    target: str
    logs: Mapping[int, ExactLog | OffsetMap] = field(default_factory=dict)
    shares: Mapping[int, tuple[int, Sequence[RecordShare]]] = field(default_factory=dict)
    """For each target partition, the end of its log before the restore, and the shares that were added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMove:
    """An offset to commit. If `offset` is None nothing is committed, and `why` is the reason.

    A leader epoch of the source has no meaning at the target, so none is committed.
    """

    group_id: str
    type: str
    """The type of the group: a share group's offsets are set by another request."""
    where: TopicPartition
    """The partition at the target."""
    offset: int | None
    metadata: str
    move: Move
    source_offset: int | None = None
    seen_twice_max: int = 0
    why: str | None = None
    run_id: str | None = None
    """The run that last recorded the offset, if it is not the run that the restore was planned from."""


def translate_groups(
    groups: Iterable[Group], topics: Mapping[str, RestoredTopic], runs: Mapping[Place, str] | None = None
) -> tuple[GroupMove, ...]:
    """The offsets to commit. `topics` is keyed by the source's name; `runs` is `Known.offset_runs`.

    An offset of a topic that is not restored, or of another incarnation, is skipped with the reason. A group whose
    offsets could not be read when it was backed up has none here.
    """
    return tuple(move for group in groups for move in _translate_group(group, topics, runs or {}))


def _translate_group(
    group: Group, topics: Mapping[str, RestoredTopic], runs: Mapping[Place, str]
) -> Iterator[GroupMove]:
    shared: dict[str, dict[int, CommittedOffset]] = {}
    restored = {offset.where for offset in group.offsets or () if _is_of(offset, topics.get(offset.topic))}
    for committed in group.offsets or ():
        topic = topics.get(committed.topic)
        if topic is None:
            yield _skipped(group, committed, committed.where, "its topic is not restored")
        elif not _is_of(committed, topic):
            where = TopicPartition(topic=topic.target, partition=committed.partition)
            if committed.where not in restored:
                yield _skipped(group, committed, where, "it was committed for another topic of the same name")
        elif topic.shares:
            shared.setdefault(committed.topic, {})[committed.partition] = committed
        else:
            yield replace(_translate(group, committed, topic), run_id=_run_of(group, [committed], runs))
    for name, offsets in shared.items():
        run_id = _run_of(group, offsets.values(), runs)
        yield from (replace(move, run_id=run_id) for move in _translate_shared(group, topics[name], offsets))


def _is_of(committed: CommittedOffset, topic: RestoredTopic | None) -> bool:
    return topic is not None and committed.topic_id in {None, topic.topic_id}


def _run_of(group: Group, offsets: Iterable[CommittedOffset], runs: Mapping[Place, str]) -> str | None:
    """The run that recorded the offsets; all runs if several offsets become one."""
    known = {runs.get((group.group_id, offset.topic_id or "", offset.partition)) for offset in offsets}
    return ", ".join(sorted(name for name in known if name is not None)) or None


def _translate(group: Group, committed: CommittedOffset, topic: RestoredTopic) -> GroupMove:
    where = TopicPartition(topic=topic.target, partition=committed.partition)
    log = topic.logs.get(committed.partition)
    if log is None:
        return _skipped(group, committed, where, "its partition is not restored")
    offset, move = _position(committed.offset, log)
    return _group_offset(group, committed, where, offset, move)


def _skipped(group: Group, committed: CommittedOffset, where: TopicPartition, why: str) -> GroupMove:
    return replace(_group_offset(group, committed, where, None, Move.SKIPPED), why=why)


def _group_offset(
    group: Group, committed: CommittedOffset, where: TopicPartition, offset: int | None, move: Move
) -> GroupMove:
    return GroupMove(
        group_id=group.group_id,
        type=group.type,
        where=where,
        offset=offset,
        metadata=committed.metadata or "",
        move=move,
        source_offset=committed.offset,
    )


def _position(offset: int, log: ExactLog | OffsetMap) -> tuple[int, Move]:
    if isinstance(log, ExactLog):
        if offset > log.end:
            return log.end, Move.END
        return (log.start, Move.NEXT) if offset < log.start else (offset, Move.SAME)
    found = log.translate(offset)
    beyond = offset > log.source_end or not len(log)
    return found.offset, Move.SAME if found.exact else Move.END if beyond else Move.NEXT


def _translate_shared(
    group: Group, topic: RestoredTopic, offsets: Mapping[int, CommittedOffset]
) -> Iterator[GroupMove]:
    """Metadata is dropped: it is a note about one source partition, and these offsets combine several."""
    committed = {partition: committed.offset for partition, committed in offsets.items()}
    for partition, (base, shares) in sorted(topic.shares.items()):
        found = find_position(shares, committed, base=base)
        yield GroupMove(
            group_id=group.group_id,
            type=group.type,
            where=TopicPartition(topic=topic.target, partition=partition),
            offset=found.offset,
            metadata="",
            move=Move.EARLIER if found.seen_twice_max else Move.SAME,
            seen_twice_max=found.seen_twice_max,
        )


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
    """The run that last recorded the offset; None if no archive was read, or if it was committed on a mount."""
    behind: int | None = None
    """With --from-mount, how far the end of the target's log is ahead of the offset."""

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(topic=self.topic, partition=self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingGroup:
    """A requested group for which no offset can be committed."""

    group: str
    why: str


def missing_groups(patterns: Sequence[str], snapshot: ClusterState | None) -> Iterator[Obstacle]:
    """Requested names and patterns that match no group of the archive."""
    known = () if snapshot is None else snapshot.groups or ()
    for name in choose_groups(patterns, known)[1]:
        error = matches_nothing(name, [group.group_id for group in known], what="group")
        hint = _HINT if error.hint is None or "maxbrod ls" in error.hint else error.hint
        yield Obstacle(ObstacleKind.GROUP_MISSING, None, error.message, hint)


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
        yield Obstacle(ObstacleKind.GROUPS, name, what, None if removable else hint, fatal=False)


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
    for missing in lacking_groups(patterns, chosen, placed):
        yield Obstacle(ObstacleKind.GROUPS, missing.group, missing.why, _HINT, fatal=strict)


def lacking_groups(patterns: Sequence[str], chosen: Iterable[Group], placed: Container[str]) -> Iterator[MissingGroup]:
    """A group that is named must be found; a pattern is about all groups whose offsets can be read."""
    for group in chosen:
        if group.group_id in placed:
            continue
        if group.offsets is None:
            yield MissingGroup(group=group.group_id, why="its offsets could not be read when it was backed up")
        elif group.group_id in patterns:
            yield MissingGroup(group=group.group_id, why="the archive has no offset of it in the restored topics")
