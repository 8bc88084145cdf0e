"""Committed offsets at the target: where each group goes on, so that it skips nothing, and sees twice as little.

Pure: whether a group is active, and what it has committed at the target already, is asked by whoever applies this.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from maxbrod.model import TopicPartition
from maxbrod.restore.repartition.shares import Share, find_position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maxbrod.archive.carried import Place
    from maxbrod.kafka.state.cluster_state import CommittedOffset, Group
    from maxbrod.restore.plan.mapping import OffsetMap


class Move(StrEnum):
    """How a group's position was found."""

    SAME = "same"
    """The very record, or the end."""
    NEXT = "next"
    """Its record was not restored, so the next one."""
    END = "end"
    """Beyond all that was restored: what comes next at the target."""
    EARLIER = "earlier"
    """Records changed their partition: nothing is skipped, some may be seen twice."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactLog:
    """A target partition whose records stand at their own offsets, from `start` to `end` as it was restored."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedLog:
    """A target partition that was appended to."""

    map: OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTopic:
    """What became of a source topic: `logs` by partition, or `shares` by target partition if that was repartitioned."""

    topic_id: str
    target: str
    logs: Mapping[int, ExactLog | MovedLog] = field(default_factory=dict)
    shares: Mapping[int, tuple[int, Sequence[Share]]] = field(default_factory=dict)
    """Of each target partition where its log stood before, and what was added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """What to commit; `offset` is None where nothing is, and `why` says why.

    A leader epoch of the source means nothing at the target, so none is committed.
    """

    group_id: str
    type: str
    """Of the group: a share group's position is not set as the others' are."""
    where: TopicPartition
    """At the target."""
    offset: int | None
    metadata: str
    move: Move
    source_offset: int | None = None
    seen_twice_max: int = 0
    why: str | None = None
    run_id: str | None = None
    """The run that last knew where it stood, if that is not the one that the restore was planned from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMoves:
    offsets: tuple[GroupOffset, ...]
    unreadable: tuple[str, ...]
    """Groups whose offsets nobody could read when they were backed up."""


def translate_groups(
    groups: Iterable[Group], topics: Mapping[str, RestoredTopic], runs: Mapping[Place, str] | None = None
) -> GroupMoves:
    """`topics` by the source's name. What is not restored, or belongs to another incarnation, is skipped and told.

    `runs` says of positions which run knew them last, as `Known.offset_runs` has it.
    """
    offsets: list[GroupOffset] = []
    unreadable: list[str] = []
    for group in groups:
        if group.offsets is None:
            unreadable.append(group.group_id)
        offsets += _translate_group(group, topics, runs or {})
    return GroupMoves(offsets=tuple(offsets), unreadable=tuple(unreadable))


def _translate_group(
    group: Group, topics: Mapping[str, RestoredTopic], runs: Mapping[Place, str]
) -> Iterator[GroupOffset]:
    shared: dict[str, dict[int, CommittedOffset]] = {}
    restored = {each.where for each in group.offsets or () if _is_of(each, topics.get(each.topic))}
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
        yield from (replace(each, run_id=run_id) for each in _translate_shared(group, topics[name], offsets))


def _is_of(committed: CommittedOffset, topic: RestoredTopic | None) -> bool:
    return topic is not None and committed.topic_id in {None, topic.topic_id}


def _run_of(group: Group, offsets: Iterable[CommittedOffset], runs: Mapping[Place, str]) -> str | None:
    """Where several positions become one, all their runs."""
    known = {runs.get((group.group_id, each.topic_id or "", each.partition)) for each in offsets}
    return ", ".join(sorted(each for each in known if each is not None)) or None


def _translate(group: Group, committed: CommittedOffset, topic: RestoredTopic) -> GroupOffset:
    where = TopicPartition(topic=topic.target, partition=committed.partition)
    log = topic.logs.get(committed.partition)
    if log is None:
        return _skipped(group, committed, where, "its partition is not restored")
    offset, move = _position(committed.offset, log)
    return GroupOffset(
        group_id=group.group_id,
        type=group.type,
        where=where,
        offset=offset,
        metadata=committed.metadata or "",
        move=move,
        source_offset=committed.offset,
    )


def _position(offset: int, log: ExactLog | MovedLog) -> tuple[int, Move]:
    match log:
        case ExactLog():
            if offset > log.end:
                return log.end, Move.END
            return (log.start, Move.NEXT) if offset < log.start else (offset, Move.SAME)
        case MovedLog():
            found = log.map.translate(offset)
            beyond = offset > log.map.source_end or not len(log.map)
            return found.offset, Move.SAME if found.exact else Move.END if beyond else Move.NEXT


def _translate_shared(
    group: Group, topic: RestoredTopic, offsets: Mapping[int, CommittedOffset]
) -> Iterator[GroupOffset]:
    """Metadata is somebody's note about one partition, of which nothing is left."""
    committed = {partition: each.offset for partition, each in offsets.items()}
    for partition, (base, shares) in sorted(topic.shares.items()):
        found = find_position(shares, committed, base=base)
        yield GroupOffset(
            group_id=group.group_id,
            type=group.type,
            where=TopicPartition(topic=topic.target, partition=partition),
            offset=found.offset,
            metadata="",
            move=Move.EARLIER if found.seen_twice_max else Move.SAME,
            seen_twice_max=found.seen_twice_max,
        )


def _skipped(group: Group, committed: CommittedOffset, where: TopicPartition, why: str) -> GroupOffset:
    return GroupOffset(
        group_id=group.group_id,
        type=group.type,
        where=where,
        offset=None,
        metadata=committed.metadata or "",
        move=Move.SKIPPED,
        source_offset=committed.offset,
        why=why,
    )
