"""Carries the committed offsets of groups to the destination.

With exact offsets records have the same offsets there. In a topic that a link appends to, the log is read from where a
group is: it moves over the records that the link has brought and that the group has processed at the source, and stops
at the first other one. So it never skips a record, not even one that others have written.

Offsets only move forward at the destination, and only while a group has no members there: consumers that have moved to
the destination keep their own progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.groups.moves import WITHOUT_MEMBERS
from maxbrod.groups.plan import ExactLog, GroupOffset, Move, RestoredTopic, translate_groups
from maxbrod.kafka.admin.group_offsets import commit_offsets
from maxbrod.kafka.admin.share_group_offsets import set_share_offsets
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.state.groups import SHARE, list_groups, read_offsets
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition, topic_id_of
from maxbrod.replicate.ingress.brought import read_brought, stable_extent
from maxbrod.replicate.link import GROUP_PREFIX
from maxbrod.restore.plan.choosing import choose_groups

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from maxbrod.kafka.state.cluster_state import Group
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.replicate.ingress.plan import Mirror
    from maxbrod.replicate.link import Link, Mark
    from maxbrod.restore.plan.targets import LogExtent

    Logs = Mapping[TopicPartition, tuple[Mirror, LogExtent]]

_WALK_BYTES: Final = 256 << 20
"""Read of a shared log at once, to move groups over it."""


def translated(groups: Iterable[Group], patterns: Sequence[str], logs: Logs) -> list[GroupOffset]:
    """The offsets to commit, none of them beyond the end of its log. Groups of links are left out."""
    topics: dict[str, RestoredTopic] = {}
    for where, (mirror, extent) in logs.items():
        topic = topics.setdefault(
            mirror.source.name, RestoredTopic(topic_id=mirror.source.topic_id, target=where.topic, logs={})
        )
        topic.logs[where.partition] = ExactLog(start=extent.start, end=extent.end)  # type: ignore[index] # made above
    chosen, _ = choose_groups(patterns, [each for each in groups if not each.group_id.startswith(GROUP_PREFIX)])
    return [each for each in translate_groups(chosen, topics) if each.offset is not None]


def carry_groups(
    client: KafkaClient, groups: Sequence[Group], patterns: Sequence[str], logs: Logs, *, patience_s: float
) -> int:
    """Commit the offsets that are ahead of the destination's. Returns how many."""
    moves = translated(groups, patterns, logs)
    if not moves:
        return 0
    there = _standing(client, {each.group_id for each in moves}, patience_s=patience_s)
    return _commit(client, moves, there, patience_s=patience_s)


def carry_appended_groups(
    client: KafkaClient,
    link: Link,
    groups: Sequence[Group],
    patterns: Sequence[str],
    marks: Mapping[TopicPartition, tuple[Mirror, Mark]],
    *,
    patience_s: float,
) -> int:
    """Move groups over what the link has brought and they have processed. Returns how many offsets were committed."""
    chosen, _ = choose_groups(patterns, [each for each in groups if not each.group_id.startswith(GROUP_PREFIX)])
    wanted = _processed(chosen, marks)
    if not wanted:
        return 0
    there = _standing(client, {group_id for each in wanted.values() for group_id in each}, patience_s=patience_s)
    types = {each.group_id: each.type for each in chosen}
    moves = []
    for where, processed in wanted.items():
        mirror, mark = marks[where]
        if mark.append is None:
            continue
        start, end = stable_extent(client, where, patience_s=patience_s)
        at = {each: max(there[each].get(where, start), start) for each in processed if each in there}
        restore_id = link.restore_id(mirror.source.topic_id)
        for group_id, offset in _walked(
            client, where, topic_id_of(mark.append.topic_id), restore_id, end, at, processed, patience_s=patience_s
        ).items():
            moves.append(
                GroupOffset(
                    group_id=group_id,
                    type=types[group_id],
                    where=where,
                    offset=offset,
                    metadata="",
                    move=Move.NEXT,
                    source_offset=processed[group_id],
                )
            )
    return _commit(client, moves, there, patience_s=patience_s)


def _processed(
    groups: Iterable[Group], marks: Mapping[TopicPartition, tuple[Mirror, Mark]]
) -> dict[TopicPartition, dict[str, int]]:
    """For each destination partition, the source offset up to which each group has processed."""
    sources = {
        TopicPartition(topic=mirror.source.name, partition=where.partition): (where, mirror)
        for where, (mirror, _) in marks.items()
    }
    found: dict[TopicPartition, dict[str, int]] = {}
    for group in groups:
        for each in group.offsets or ():
            if each.where not in sources:
                continue
            where, mirror = sources[each.where]
            if each.topic_id in {None, mirror.source.topic_id}:
                found.setdefault(where, {})[group.group_id] = each.offset
    return found


def _walked(
    client: KafkaClient,
    where: TopicPartition,
    topic_id: UUID,
    restore_id: str,
    end: int,
    at: Mapping[str, int],
    processed: Mapping[str, int],
    *,
    patience_s: float,
) -> dict[str, int]:
    """Where each group stands after it has moved from `at` over the records that the link brought and it processed.

    One pass for all groups. A long way is divided among intervals: wherever a group stands, all below is processed.
    """
    found, moving = dict(at), set(at)
    first = min(at.values(), default=end)
    read_bytes = 0
    for seen in read_brought(client, where, (first, end), topic_id, restore_id, patience_s=patience_s):
        for group_id in list(moving):
            stops = (seen.offset >= found[group_id]) & ((seen.source < 0) | (seen.source >= processed[group_id]))
            if stops.any():
                found[group_id] = int(seen.offset[int(stops.argmax())])
                moving.discard(group_id)
            else:
                found[group_id] = max(found[group_id], seen.end)
        read_bytes += seen.bytes
        if not moving or read_bytes > _WALK_BYTES:
            break
    return found


def _standing(
    client: KafkaClient, named: Collection[str], *, patience_s: float
) -> dict[str, dict[TopicPartition, int]]:
    """The committed offsets at the destination of these groups, without those that have members there."""
    listed, _ = list_groups(client, deadline=Deadline.after(patience_s))
    active = {each.group_id for each in listed.values() if each.state.lower() not in WITHOUT_MEMBERS}
    present = [each for name, each in listed.items() if name in named and name not in active]
    answers = read_offsets(client, present, {}, deadline=Deadline.after(patience_s))
    return {
        name: {each.where: each.offset for each in answers.found.get(name, ())}
        for name in named
        if name not in active and name not in answers.refused
    }


def _commit(
    client: KafkaClient,
    moves: Sequence[GroupOffset],
    there: Mapping[str, Mapping[TopicPartition, int]],
    *,
    patience_s: float,
) -> int:
    carried = 0
    for group_id in sorted(there):
        mine = [each for each in moves if each.group_id == group_id and ahead(each, there[group_id].get(each.where))]
        offsets = [
            CommittedOffset(
                topic=each.where.topic,
                topic_id=None,
                partition=each.where.partition,
                offset=each.offset or 0,
                leader_epoch=-1,
                metadata=each.metadata,
            )
            for each in mine
        ]
        if not offsets:
            continue
        if mine[0].type == SHARE:
            starts = {each.where: each.offset for each in offsets}
            outcomes = set_share_offsets(client, group_id, starts, deadline=Deadline.after(patience_s))
        else:
            outcomes = commit_offsets(client, group_id, offsets, deadline=Deadline.after(patience_s))
        carried += sum(each.done for each in outcomes.values())
    return carried


def ahead(move: GroupOffset, there: int | None) -> bool:
    return move.offset is not None and (there is None or there < move.offset)
