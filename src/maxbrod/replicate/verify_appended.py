"""Which records of a topic that others write to are those of a link, and which offsets of the source they must be.

A mark and the records that it vouches for are one transaction. So everything between the offset that the link has begun
with and that of its mark must be there, once and in order, unless the topic's own retention has deleted it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.compare.archived import BroughtLog
from maxbrod.compare.plan.pairs import Brought, Extent
from maxbrod.errors import RefusedError, UnavailableError
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, list_offsets
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.model import TopicPartition, topic_id_of, topic_id_text
from maxbrod.replicate.ingress.brought import first_brought
from maxbrod.replicate.link import AppendPlace, Mark, PositionKey, State, been_there
from maxbrod.restore.plan.targets import LogExtent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.kafka.wire.deadline import Deadline
    from maxbrod.replicate.view import LinkView, MirroredPartition
    from maxbrod.restore.plan.request import OffsetRange

_OPERATION: Final = "verify"


def begun_partitions(
    partitions: Sequence[MirroredPartition], marks: Mapping[PositionKey, Mark]
) -> list[tuple[MirroredPartition, LogExtent]]:
    """Each partition with the source offsets that the link has appended.

    Those that the archive has no records of are left out, as ingress has nothing to do with them. UnavailableError: one
    has no mark, so that it is not known how far the link has come. RefusedError: the mark is of another source topic.
    """
    found = []
    for partition in partitions:
        mark = marks.get(partition.key)
        if partition.state is State.OWN or (mark is None and partition.extent.start == partition.extent.end):
            continue
        if mark is None or mark.append is None:
            raise UnavailableError(
                "the link has no mark here: ingress has not begun with it, or brokers have forgotten it",
                operation=_OPERATION,
                object_name=str(partition.where),
                hint="run 'maxbrod replicate ingress', which finds out; or leave the topic out by --exclude",
            )
        if mark.topic_id != partition.id.topic_id:
            raise RefusedError(
                "the source topic was deleted and created again, and the link has appended the records of the old one",
                operation=_OPERATION,
                object_name=str(partition.source_where),
                hint="see 'maxbrod replicate status'",
            )
        found.append((partition, LogExtent(start=mark.append.begin, end=mark.next_offset)))
    return found


def appended_logs(
    client: KafkaClient,
    view: LinkView,
    partitions: Sequence[tuple[MirroredPartition, LogExtent]],
    marks: Mapping[PositionKey, Mark],
    ranges: Sequence[OffsetRange],
) -> dict[TopicPartition, BroughtLog]:
    """What to read at the destination for each range of a source partition, by source partition."""
    wanted = {each.where: (each.first or 0, each.end or 0) for each in ranges}
    chosen = [each for each, _ in partitions if each.source_where in wanted]
    starts = list_offsets(client, dict.fromkeys([each.where for each in chosen], EARLIEST), deadline=view.deadline())
    ends = dict.fromkeys((each.where for each in chosen), 0)
    for each in chosen:
        ends[each.where] = max(ends[each.where], _place(marks, each).end)
    retry(lambda limit: _wait_for(client, ends, limit), deadline=view.deadline(), what="transactions to be decided")
    present = client.metadata(sorted({each.where.topic for each in chosen}), deadline=view.deadline()).topics
    here, found = view.here(), {}
    for each in chosen:
        where, place, (first, end) = each.where, _place(marks, each), wanted[each.source_where]
        if topic_id_text(present[where.topic].topic_id) != place.topic_id:
            raise RefusedError(
                "the destination topic was deleted and created again",
                operation=_OPERATION,
                object_name=where.topic,
                hint="run 'maxbrod replicate ingress', which appends everything to the new one",
            )
        restore_id = view.link().restore_id(each.id.topic_id)
        start, notes = starts[where].offset, list[str]()
        if start:
            kept = first_brought(
                client, where, (start, ends[where]), topic_id_of(place.topic_id), restore_id, patience_s=view.patience_s
            )
            if (kept := end if kept is None else min(kept, end)) > first:
                notes.append(
                    f"the destination has deleted its offsets before {start}, so that the source's before {kept} are "
                    "not compared"
                )
                first = kept
        found[each.source_where] = BroughtLog(
            target=Extent(
                topic=where.topic,
                topic_id=place.topic_id,
                partition=where.partition,
                first=start,
                end=max(start, ends[where]),
            ),
            brought=Brought(restore_id=restore_id, left_out=been_there(here, where.topic), first=first, end=end),
            notes=tuple(notes),
        )
    return found


def _wait_for(client: KafkaClient, ends: Mapping[TopicPartition, int], limit: Deadline) -> None:
    """Brokers decide a transaction in each partition for itself, so a mark may be seen before its records."""
    asked = dict.fromkeys(ends, LATEST)
    for where, found in list_offsets(client, asked, deadline=limit, read_committed=True).items():
        if found.offset < ends[where]:
            raise UnavailableError(
                "a transaction is open before the last record of the link, so consumers do not see it yet",
                operation=_OPERATION,
                object_name=str(where),
                offset=found.offset,
            )


def _place(marks: Mapping[PositionKey, Mark], each: MirroredPartition) -> AppendPlace:
    place = marks[each.key].append
    if place is None:
        raise AssertionError("only partitions that the link appends to")
    return place
