"""Prepares the way back: a topic that was the source becomes the mirror of what was its mirror.

After a promotion the mirror's log is the source's log up to the promotion, one marker, and what was written since. So
the old source can be continued at the same offsets, if it has nothing behind the promotion. What it has there has
diverged: it never arrived at the mirror, and a log cannot be cut. That is named, and nothing is changed. Before a topic
is continued, all that it has is compared with the archive.

A link that appends needs no equal logs. The last mark of the promoted link, which the snapshots of the way back
contain, says how far the old source had been carried, and where the promoted topic ended then: the way back begins
there. What has come from the old source names it in its headers, and is left out. Ingress does the rest, exactly once:
the first mark of its link is all that it needs. What the old source has behind the offset that was carried exists only
there; it is named, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from maxbrod.config import Config
from maxbrod.errors import RefusedError, UnavailableError, UsageError
from maxbrod.model import TopicPartition, topic_id_of
from maxbrod.replicate.ingress.positions import put_mark, read_brought, stable_extent, take_position
from maxbrod.replicate.ingress.topics import NO_LEADER
from maxbrod.replicate.link import LinkMark, Offsets, Order, State, order_of, promotions_in, promotions_of
from maxbrod.replicate.promote import put_orders
from maxbrod.replicate.report import FailBackReport, WayBack
from maxbrod.replicate.status import destination_ends
from maxbrod.replicate.verify import verify
from maxbrod.replicate.view import LinkView, MirroredPartition, open_link
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.session import Session

_OPERATION: Final = "fail back"


def fail_back(config: Config, *, session: Session | None = None, on_progress: OnProgress = silent) -> FailBackReport:
    """Let ingress continue the selected topics, if none of them has diverged. Changes nothing otherwise."""
    with open_link(config) as view:
        newest, link = view.look(), view.link()
        partitions = view.partitions(newest, view.orders())
        ends = {}
        for where, end in destination_ends(view.client, partitions, patience_s=config.patience).items():
            if end is None:
                raise UnavailableError(NO_LEADER, operation=_OPERATION, object_name=str(where))
            ends[where] = end
        there = [partition for partition in partitions if partition.where in ends]
        if not there:
            raise UsageError(
                "none of the selected topics exists here, so there is nothing to continue",
                operation=_OPERATION,
                hint="start 'maxbrod replicate ingress', which creates them",
            )
        offsets, _ = view.marks_of(there)
        if offsets is Offsets.APPEND:
            ids, promoted = view.topic_ids(there), promotions_of(newest.cluster.groups, view.here())
            found = [_appended(view, each, ends[each.where], ids[each.where.topic], promoted) for each in there]
        else:
            promotions = promotions_in(newest.cluster.groups)
            found = [_mirrored(each, ends[each.where], promotions.get(each.source_where)) for each in there]
        ready, compared = all(each.why is None for each in found), None
        if ready and offsets is Offsets.APPEND:
            _begin(view, there, found, ids)
        elif ready:
            compared = verify(config, session=session, on_progress=on_progress).report
            ready = compared is None or compared.equal
            if ready:
                put_orders(view, [order_of(each.where, Order.ADOPT, ends[each.where]) for each in there])
    return FailBackReport(
        link=link.name,
        partitions=tuple(found),
        equal=None if offsets is Offsets.APPEND else compared is None or compared.equal,
        ready=ready,
        differences=() if compared is None else compared.differences,
        notes=() if compared is None else tuple(compared.noted()),
    )


def _mirrored(each: MirroredPartition, end: int, promoted_at: int | None) -> WayBack:
    """The way back of a topic whose mirror was promoted at an offset. `end` is that of the log here."""
    diverged = None if promoted_at is None or end <= promoted_at else (promoted_at, end)
    why = None
    if promoted_at is None and end:
        why = "the archive does not say where the mirror was promoted"
    elif diverged is not None:
        why = f"the offsets {diverged[0]:,} to {diverged[1] - 1:,} never arrived at the mirror"
    return WayBack(
        topic=each.where.topic,
        partition=each.where.partition,
        end=end,
        promoted_at=promoted_at,
        new=max(each.extent.end - max(end, promoted_at or 0), 0),
        diverged=diverged,
        why=why,
    )


def _appended(
    view: LinkView,
    each: MirroredPartition,
    end: int,
    topic_id: str,
    promoted: Mapping[tuple[TopicPartition, str], LinkMark],
) -> WayBack:
    """The way back of a topic of this id, from which a promoted link has appended records."""
    mark = promoted.get((each.source_where, topic_id))
    why = _why_not(each, mark, end)
    diverged, count = None, None
    if mark is not None and why is None:
        diverged, count = _diverged(view, each, topic_id, mark.next_offset)
    begin = None if mark is None or mark.append is None else mark.append.promoted
    return WayBack(
        topic=each.where.topic,
        partition=each.where.partition,
        end=end,
        promoted_at=None if mark is None else mark.next_offset,
        new=0 if begin is None else max(each.extent.end - begin, 0),
        diverged=diverged,
        why=why,
        begin=begin,
        diverged_records=count,
    )


def _begin(
    view: LinkView, partitions: Sequence[MirroredPartition], ways: Sequence[WayBack], ids: Mapping[str, str]
) -> None:
    """Give the link its first marks. A link that has begun keeps those it has: this may be repeated."""
    client, patience_s = view.client, view.patience_s
    for each, way in zip(partitions, ways, strict=True):
        position = take_position(client, view.link(), each.key, joined=each.mirror.joined, patience_s=patience_s)
        topic_id, mark = ids[each.where.topic], position.mark
        if mark is not None and mark.append is not None and mark.append.topic_id == topic_id:
            if mark.topic_id == each.id.topic_id and mark.state is not State.PROMOTED:
                continue
            raise RefusedError(
                "this link has brought records of another topic, or was promoted",
                operation=_OPERATION,
                object_name=str(each.where),
                hint="name another --link for the way back",
            )
        if way.begin is None:
            raise AssertionError("only what is known to have been promoted")
        first = each.first_mark(way.begin, topic_id=topic_id, version=view.version)
        put_mark(client, position, first, patience_s=patience_s)


def _why_not(each: MirroredPartition, mark: LinkMark | None, end: int) -> str | None:
    if mark is None or mark.append is None or mark.append.promoted is None:
        return "the archive does not say that a link from this very topic was promoted there"
    if mark.append.topic_id != each.id.topic_id:
        return "the promoted topic was deleted and created again"
    if end < mark.next_offset:
        return (
            f"the log here ends at {end}, and the link had carried it up to {mark.next_offset}: records were lost "
            "here, and those that come from here are left out on the way back"
        )
    if each.extent.end < mark.append.promoted:
        return (
            f"the archive ends at {each.extent.end}, before the promotion at {mark.append.promoted}: egress must go on"
        )
    return None


def _diverged(
    view: LinkView, each: MirroredPartition, topic_id: str, carried: int
) -> tuple[tuple[int, int] | None, int]:
    """The committed records behind what was carried, without those that have come back already."""
    start, stable = stable_extent(view.client, each.where, patience_s=view.patience_s)
    first, last, count = None, -1, 0
    for seen in read_brought(
        view.client,
        each.where,
        (max(start, carried), stable),
        topic_id_of(topic_id),
        view.link().restore_id(each.id.topic_id),
        patience_s=view.patience_s,
    ):
        own = seen.offset[seen.source < 0]
        if len(own):
            first, last = int(own[0]) if first is None else first, int(own[-1])
            count += len(own)
    return (None if first is None else (first, last + 1)), count
