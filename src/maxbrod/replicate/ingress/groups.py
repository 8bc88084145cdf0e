"""Carries the committed offsets of groups to the destination, where records have the same offsets.

Offsets only move forward at the destination, and only while a group has no members there: consumers that have moved to
the destination keep their own progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.groups.moves import WITHOUT_MEMBERS
from maxbrod.groups.plan import ExactLog, RestoredTopic, translate_groups
from maxbrod.kafka.admin.group_offsets import commit_offsets
from maxbrod.kafka.admin.share_group_offsets import set_share_offsets
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.state.groups import SHARE, list_groups, read_offsets
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.replicate.link import GROUP_PREFIX
from maxbrod.restore.plan.choosing import choose_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.groups.plan import GroupOffset
    from maxbrod.kafka.state.cluster_state import Group
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.model import TopicPartition
    from maxbrod.replicate.ingress.plan import Mirror
    from maxbrod.restore.plan.targets import LogExtent

    Logs = Mapping[TopicPartition, tuple[Mirror, LogExtent]]


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
    listed, _ = list_groups(client, deadline=Deadline.after(patience_s))
    named = {each.group_id for each in moves}
    active = {each.group_id for each in listed.values() if each.state.lower() not in WITHOUT_MEMBERS}
    present = [each for name, each in listed.items() if name in named - active]
    answers = read_offsets(client, present, {}, deadline=Deadline.after(patience_s))
    carried = 0
    for group_id in sorted(named - active - answers.refused.keys()):
        there = {each.where: each.offset for each in answers.found.get(group_id, ())}
        mine = [each for each in moves if each.group_id == group_id and ahead(each, there.get(each.where))]
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
