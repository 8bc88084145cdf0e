"""Carries the committed offsets of groups to the destination.

With exact offsets records have the same offsets there. In a topic that a link appends to, the log is read from where a
group is: it moves over the records that the link has brought and that the group has processed at the source, and stops
at the first other one. So it never skips a record, not even one that others have written. A group without an offset
there waits for the records that it has processed: it does not start at the beginning of a log that lacks them.

Offsets only move forward at the destination, and only while a group has no members there: consumers that have moved to
the destination keep their own progress.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.errors import UnavailableError
from maxbrod.groups.plan import WITHOUT_MEMBERS, ExactLog, GroupMove, Move, RestoredTopic, translate_groups
from maxbrod.kafka.groups import SHARE, commit_offsets, list_groups, read_offsets, set_share_offsets
from maxbrod.kafka.produce.transactions import open_transactions
from maxbrod.kafka.state.cluster_state import CommittedOffset, Group
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition, topic_id_of
from maxbrod.replicate.ingress.positions import read_brought, stable_extent
from maxbrod.replicate.link import GROUP_PREFIX, Link, LinkMark, plain_offset
from maxbrod.restore.plan.request import choose_groups

if TYPE_CHECKING:
    from maxbrod.replicate.ingress.plan import Mirror
    from maxbrod.replicate.view import MirroredPartition
    from maxbrod.restore.plan.targets import LogExtent

    Logs = Mapping[TopicPartition, tuple[Mirror, LogExtent]]

_WALK_BYTES: Final = 256 << 20
"""Read of a shared log at once, to move groups over it."""
_MARKERS_S: Final = 30.0
"""Markers follow a commit within milliseconds. If those of all partitions take longer, the next interval goes on."""


def translated(groups: Iterable[Group], patterns: Sequence[str], logs: Logs) -> list[GroupMove]:
    """The offsets to commit, none of them beyond the end of its log. Groups of links are left out."""
    topics: dict[str, RestoredTopic] = {}
    for where, (mirror, extent) in logs.items():
        topic = topics.setdefault(
            mirror.source.name, RestoredTopic(topic_id=mirror.source.topic_id, target=where.topic, logs={})
        )
        topic.logs[where.partition] = ExactLog(start=extent.start, end=extent.end)  # type: ignore[index] # made above
    chosen, _ = choose_groups(patterns, [group for group in groups if not group.group_id.startswith(GROUP_PREFIX)])
    return [group for group in translate_groups(chosen, topics) if group.offset is not None]


def carry_groups(
    client: KafkaClient,
    groups: Sequence[Group],
    patterns: Sequence[str],
    logs: Logs,
    *,
    patience_s: float,
    last: bool = False,
) -> int:
    """Commit the offsets that are ahead of the destination's. Returns how many.

    `last`: nothing more will arrive, so no group waits for that.
    """
    moves = translated(groups, patterns, logs)
    if not moves:
        return 0
    there = _standing(client, {move.group_id for move in moves}, patience_s)
    # A log that is still empty has nothing to start behind.
    empty = set() if last else {where for where, (_, extent) in logs.items() if extent.start == extent.end}
    arrived = [move for move in moves if move.move is not Move.END or move.where not in empty]
    return _commit(client, arrived, there, patience_s=patience_s)


def carry_appended_groups(
    client: KafkaClient,
    link: Link,
    groups: Sequence[Group],
    patterns: Sequence[str],
    begun: Sequence[tuple[MirroredPartition, LinkMark]],
    *,
    patience_s: float,
    last: bool = False,
) -> tuple[int, bool]:
    """Move groups over what the link has brought and they have processed.

    Returns how many offsets were committed, and False if a group must wait or has more to move over: then call it
    again. `last`: nothing more will arrive, so no group waits for that.
    """
    chosen, _ = choose_groups(patterns, [group for group in groups if not group.group_id.startswith(GROUP_PREFIX)])
    wanted = _processed(link, chosen, begun)
    if not wanted:
        return 0, True
    there = _standing(
        client, {group_id for sources in wanted.values() for source in sources for group_id in source.up_to}, patience_s
    )
    types = {each.group_id: each.type for each in chosen}
    moves, settled = [], True
    limit = Deadline.after(min(patience_s, _MARKERS_S))
    for where, sources in wanted.items():
        brought_to = max(source.end for source in sources)
        start, end = _decided_extent(client, link, where, brought_to, limit, patience_s=patience_s)
        moving = {group_id for source in sources for group_id in source.up_to if group_id in there}
        at = {each: max(there[each].get(where, start), start) for each in moving}
        walked, unstopped = _walked(client, where, end, at, sources, patience_s=patience_s)
        for group_id, offset in walked.items():
            if group_id in unstopped:
                more = offset < end or any(end < source.end for source in sources)
                lacking = more or any(source.next_offset < source.up_to.get(group_id, 0) for source in sources)
                settled = settled and not more
                if lacking and not last and offset == at[group_id] and where not in there[group_id]:
                    continue
            moves.append(
                GroupMove(
                    group_id=group_id,
                    type=types[group_id],
                    where=where,
                    offset=offset,
                    metadata="",
                    move=Move.NEXT,
                    source_offset=max(source.up_to.get(group_id, -1) for source in sources),
                )
            )
    return _commit(client, moves, there, patience_s=patience_s), settled


@dataclass(frozen=True, slots=True, kw_only=True)
class _Processed:
    """The offsets of one source topic that groups have processed."""

    restore_id: str
    """Its records name it."""
    topic_id: str
    """The id of the destination topic."""
    end: int
    """The destination's offset behind the last record of it."""
    next_offset: int
    """The first source offset that the destination lacks."""
    up_to: dict[str, int]
    """For each group, the first source offset that it has not processed."""


def _processed(
    link: Link, groups: Iterable[Group], begun: Iterable[tuple[MirroredPartition, LinkMark]]
) -> dict[TopicPartition, list[_Processed]]:
    """For each destination partition, what groups have processed of each source topic that the link appends to it."""
    found: dict[TopicPartition, list[_Processed]] = {}
    by_source: dict[TopicPartition, list[tuple[str, CommittedOffset]]] = {}
    for group in groups:
        for offset in group.offsets or ():
            by_source.setdefault(offset.where, []).append((group.group_id, offset))
    for partition, mark in begun:
        if mark.append is None:
            continue
        topic_id = partition.id.topic_id
        up_to = {
            group_id: each.offset
            for group_id, each in by_source.get(partition.source_where, ())
            if each.topic_id in {None, topic_id}
        }
        if up_to:
            source = _Processed(
                restore_id=link.restore_id(topic_id),
                topic_id=mark.append.topic_id,
                end=mark.append.end,
                next_offset=mark.next_offset,
                up_to=up_to,
            )
            found.setdefault(partition.where, []).append(source)
    return found


def _decided_extent(
    client: KafkaClient, link: Link, where: TopicPartition, brought_to: int, limit: Deadline, *, patience_s: float
) -> tuple[int, int]:
    """The log start and the last stable offset, once the link's own transactions are decided.

    A coordinator answers that a transaction is committed before its markers are in the logs. Transactions of others may
    stay open for long: nobody waits for those.
    """

    def once(_: Deadline) -> tuple[int, int]:
        start, end = stable_extent(client, where, patience_s=patience_s)
        if end < brought_to:
            found = open_transactions(client, [where]).get(where)
            # None: nobody tells whose it is.
            if found == () or (found and (found[0].transactional_id or "").startswith(link.group_id)):
                raise UnavailableError("the last transaction has no marker yet", object_name=str(where))
        return start, end

    try:
        return retry(once, deadline=limit, what="the link's own records", stop=client.stop)
    except UnavailableError:
        return stable_extent(client, where, patience_s=patience_s)


def _walked(
    client: KafkaClient,
    where: TopicPartition,
    end: int,
    at: Mapping[str, int],
    sources: Sequence[_Processed],
    *,
    patience_s: float,
) -> tuple[dict[str, int], set[str]]:
    """Return the offset of each group behind the records from `at` on that the link brought and the group processed.

    With the groups that have met no other record. One pass for all groups. A long way is divided among calls: wherever
    a group stands, all below is processed.
    """
    found, moving = dict(at), set(at)
    extent = (min(at.values(), default=end), end)
    read_bytes = 0
    restore_ids = [each.restore_id for each in sources]
    for seen in read_brought(
        client, where, extent, topic_id_of(sources[0].topic_id), *restore_ids, patience_s=patience_s
    ):
        for group_id in list(moving):
            stops = seen.offset >= found[group_id]
            for each, source in zip(sources, seen.sources, strict=True):
                stops &= (source < 0) | (source >= each.up_to.get(group_id, 0))
            if stops.any():
                found[group_id] = int(seen.offset[int(stops.argmax())])
                moving.discard(group_id)
            else:
                found[group_id] = max(found[group_id], seen.end)
        read_bytes += seen.bytes
        if not moving or read_bytes > _WALK_BYTES:
            break
    return found, moving


def _standing(client: KafkaClient, named: Collection[str], patience_s: float) -> dict[str, dict[TopicPartition, int]]:
    """The committed offsets at the destination of these groups, without those that have members there.

    UnavailableError: not every broker has listed its groups. One that seems to have no offset would be set back.
    """
    listed, incomplete = list_groups(client, deadline=Deadline.after(patience_s))
    if incomplete:
        raise UnavailableError(f"groups stay where they are: {incomplete}", operation="carry groups")
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
    moves: Sequence[GroupMove],
    there: Mapping[str, Mapping[TopicPartition, int]],
    *,
    patience_s: float,
) -> int:
    carried = 0
    for group_id in sorted(there):
        mine = [
            move
            for move in moves
            if move.group_id == group_id and (move.offset or 0) > there[group_id].get(move.where, -1)
        ]
        if not mine:
            continue
        if mine[0].type == SHARE:
            starts = {each.where: each.offset or 0 for each in mine}
            outcomes = set_share_offsets(client, group_id, starts, deadline=Deadline.after(patience_s))
        else:
            offsets = [plain_offset(each.where, each.offset or 0, each.metadata) for each in mine]
            outcomes = commit_offsets(client, group_id, offsets, deadline=Deadline.after(patience_s))
        carried += sum(outcome.done for outcome in outcomes.values())
    return carried
