"""Translates committed offsets to the target, so that a group skips no record and sees as few as possible twice.

Pure: `movement.py` checks whether a group is active and what it has committed at the target.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from maxbrod.model import TopicPartition
from maxbrod.restore.plan.mapping import RecordShare, find_position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maxbrod.archive.knowledge import Place
    from maxbrod.kafka.state.cluster_state import CommittedOffset, Group
    from maxbrod.restore.plan.mapping import OffsetMap


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
class MovedLog:
    """A target partition to which records were appended at new offsets."""

    map: OffsetMap


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTopic:
    """A source topic as restored: `logs` by partition, or `shares` by target partition if it was repartitioned."""

    topic_id: str
    target: str
    logs: Mapping[int, ExactLog | MovedLog] = field(default_factory=dict)
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
    return tuple(each for group in groups for each in _translate_group(group, topics, runs or {}))


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
        yield from (replace(each, run_id=run_id) for each in _translate_shared(group, topics[name], offsets))


def _is_of(committed: CommittedOffset, topic: RestoredTopic | None) -> bool:
    return topic is not None and committed.topic_id in {None, topic.topic_id}


def _run_of(group: Group, offsets: Iterable[CommittedOffset], runs: Mapping[Place, str]) -> str | None:
    """The run that recorded the offsets; all runs if several offsets become one."""
    known = {runs.get((group.group_id, offset.topic_id or "", offset.partition)) for offset in offsets}
    return ", ".join(sorted(each for each in known if each is not None)) or None


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
) -> Iterator[GroupMove]:
    """Metadata is dropped: it is a note about one source partition, and these offsets combine several."""
    committed = {partition: each.offset for partition, each in offsets.items()}
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
