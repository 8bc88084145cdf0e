"""Prepares the way back: a topic that was the source becomes the mirror of what was its mirror.

After a promotion the mirror's log is the source's log up to the promotion, one marker, and what was written since. So
the old source can be continued at the same offsets, if it has nothing behind the promotion. What it has there has
diverged: it never arrived at the mirror, and a log cannot be cut. That is named, and nothing is changed. Before a topic
is continued, all that it has is compared with the archive.

A link that appends needs no equal logs: see `fail_back_appended`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import UnavailableError, UsageError
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.replicate.fail_back_appended import appended_ways_back, begin_way_back
from maxbrod.replicate.fail_back_report import FailBackReport, WayBack
from maxbrod.replicate.ingress.topics import NO_LEADER
from maxbrod.replicate.link import Offsets, Order, order_of, promotions_in
from maxbrod.replicate.promote import put_orders
from maxbrod.replicate.status import destination_ends
from maxbrod.replicate.verify import verify
from maxbrod.replicate.view import LinkView, MirroredPartition, places_of
from maxbrod.work.progress import OnProgress, silent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.config import Config
    from maxbrod.model import TopicPartition
    from maxbrod.work.session import Session

_OPERATION: Final = "fail back"


def fail_back(config: Config, *, session: Session | None = None, on_progress: OnProgress = silent) -> FailBackReport:
    """Let ingress continue the selected topics, if none of them has diverged. Changes nothing otherwise."""
    kafka, _ = places_of(config)
    with KafkaClient(kafka) as client:
        view = LinkView(config, client)
        newest, link = view.look(), view.link()
        partitions = view.partitions(newest, view.orders())
        ends = {}
        for where, end in destination_ends(client, partitions, patience_s=config.patience).items():
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
        if view.offsets(view.marks()) is Offsets.APPEND:
            appended = appended_ways_back(client, view, newest, there, ends)
            ready = all(each.why is None for each in appended)
            if ready:
                begin_way_back(client, view, there, appended)
            return FailBackReport(link=link.name, partitions=tuple(appended), equal=None, ready=ready)
        found = ways_back(there, ends, promotions_in(newest.cluster.groups))
        compared = None
        if all(each.why is None for each in found):
            compared = verify(config, session=session, on_progress=on_progress).report
        equal = compared is None or compared.equal
        ready = equal and all(each.why is None for each in found)
        if ready:
            orders = [order_of(each.where, Order.ADOPT, ends[each.where]) for each in there]
            put_orders(client, link, orders, view)
    return FailBackReport(
        link=link.name,
        partitions=tuple(found),
        equal=equal,
        ready=ready,
        differences=() if compared is None else compared.differences,
        notes=() if compared is None else tuple(compared.noted()),
    )


def ways_back(
    partitions: Sequence[MirroredPartition],
    ends: Mapping[TopicPartition, int],
    promotions: Mapping[TopicPartition, int],
) -> list[WayBack]:
    found = []
    for partition in partitions:
        end, promoted_at = ends[partition.where], promotions.get(partition.source_where)
        diverged = None if promoted_at is None or end <= promoted_at else (promoted_at, end)
        why = None
        if promoted_at is None and end:
            why = "the archive does not say where the mirror was promoted"
        elif diverged is not None:
            why = f"the offsets {diverged[0]:,} to {diverged[1] - 1:,} never arrived at the mirror"
        found.append(
            WayBack(
                topic=partition.where.topic,
                partition=partition.where.partition,
                end=end,
                promoted_at=promoted_at,
                new=max(partition.extent.end - max(end, promoted_at or 0), 0),
                diverged=diverged,
                why=why,
            )
        )
    return found
