"""Ends a link at a definite offset of each partition, so that producers may write to the mirrors.

The order to promote comes first: an ingress that runs stops at its next interval. Then each partition gets a marker of
the link's own producer with a higher epoch. Consumers never see it, and from then on brokers refuse every batch of the
link, whoever sends it and whenever it arrives. What is in the log then is all that the mirror ever gets. A link that
appends to shared topics is ended by its transactional ids instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar, Final

from kafka.protocol.producer import WriteTxnMarkersRequest

from maxbrod.config import Config
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, MaxbrodError, RefusedError, UnavailableError, UsageError
from maxbrod.kafka.admin import alter_configs
from maxbrod.kafka.fetch.offsets import ask_leaders
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.groups import commit_offsets, list_groups
from maxbrod.kafka.state.access import may_write_markers
from maxbrod.kafka.state.cluster_state import CommittedOffset, Group
from maxbrod.kafka.wire.client import KafkaClient, Leader, by_topic
from maxbrod.kafka.wire.connection import Message
from maxbrod.model import TopicPartition, now_ms
from maxbrod.replicate.heartbeat import STALE_MS, Heartbeat, read_heartbeats
from maxbrod.replicate.ingress.groups import carry_appended_groups, carry_groups
from maxbrod.replicate.ingress.plan import plan_mirror_configs
from maxbrod.replicate.ingress.positions import is_over, put_mark, stable_extent, take_position
from maxbrod.replicate.link import Link, LinkMark, Offsets, Order, PositionKey, State, links_in, order_of
from maxbrod.replicate.newest import Newest
from maxbrod.replicate.report import PartitionStatus, status_of, unmatched_line
from maxbrod.replicate.status import existing, fault_of
from maxbrod.replicate.view import LinkView, MirroredPartition, Orders, open_link
from maxbrod.restore.plan.targets import LogExtent
from maxbrod.restore.target import log_extents
from maxbrod.work.report import Report

_OPERATION: Final = "promote"
_FENCING_EPOCH: Final = 1
"""Ingress writes with epoch 0."""
_ATTEMPTS: Final = 10
"""Each interval of an ingress that has not seen the order yet may take a partition back, but only a few times."""
_REPEAT: Final = "the link is not ended yet; run the same command again"
_AGAIN: Final = "an ingress of this link was still appending: stop it, and run the same command again"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteReport(Report):
    published: ClassVar = ("missing", "doubts", "exit_code")
    link: str
    at_ms: int
    heartbeat_ms: int | None
    """The source's state at this time is what `partitions` compare with; what was written later is unknown here."""
    partitions: tuple[PartitionStatus, ...]
    """`end` is where the mirror ended, `lag_records` what had not arrived."""
    fenced: bool
    """True if brokers refuse whatever an ingress may still send."""
    groups: int
    unmatched: tuple[str, ...] = ()
    """Names and patterns that no archived topic matches."""

    @property
    def missing(self) -> int | None:
        """Offsets that the source had at the heartbeat and that did not arrive; None: unknown."""
        lags = [partition.lag_records for partition in self.partitions]
        return None if None in lags else sum(lag or 0 for lag in lags)

    @property
    def doubts(self) -> tuple[str, ...]:
        """The reason why more may be missing than the heartbeat and the logs tell."""
        troubled = [partition for partition in self.partitions if partition.why]
        found = [
            f"{each.topic}-{each.partition}: {'faulted: ' if each.state is State.PROMOTED else ''}{each.why}"
            for each in troubled
        ]
        found += [unmatched_line(word) for word in self.unmatched]
        if self.heartbeat_ms is None:
            found.append("the source has left no heartbeat: what it had is unknown")
        elif (age_ms := self.at_ms - self.heartbeat_ms) > STALE_MS:
            found.append(
                f"the source's last heartbeat is {age_ms // 1000:,} s old: what it has written since, and is not here, "
                "is unknown"
            )
        elif age_ms < -STALE_MS:
            found.append(
                f"the source's last heartbeat is {-age_ms // 1000:,} s ahead of the clock here: how old it is, and "
                "what was written since, is unknown"
            )
        return tuple(found)

    @property
    def exit_code(self) -> int:
        return EXIT_DONE if self.missing == 0 and not self.doubts else EXIT_INCOMPLETE


def give_order(config: Config, order: Order) -> tuple[str, ...]:
    """Order something for the selected topics of a link. Returns the destination topics."""
    with open_link(config) as view:
        partitions = view.partitions(view.look(), view.orders())
        offsets, marks = view.marks_of(partitions)
        appends = offsets is Offsets.APPEND
        present = existing(view.client, partitions)
        topics = sorted({each.topic for each in present})
        if not topics:
            raise UsageError("no mirrored topic is selected", operation=order.value, hint="see 'replicate status'")
        promoted = [partition.where.topic for partition in partitions if partition.state is State.PROMOTED]
        if promoted and order is not Order.PROMOTE:
            raise RefusedError(
                "the topic was promoted: it is no mirror any more",
                operation=order.value,
                object_name=promoted[0],
                hint="to mirror it again, delete the destination topic first",
            )
        # Only a link that appends is told to begin before it has marks.
        begun = {(source, where.topic) for source, where in marks}
        marked = begun or {where.topic for where in view.marks()} & set(topics)
        if not marked and not (appends and order is Order.RUN):
            raise _never_here(view, topics, order)
        put_orders(view, _for_topics(topics, order))
        sources = {(partition.key[0], partition.where.topic) for partition in partitions if partition.where in present}
        unknown = {topic for _, topic in sources - begun}
        if order is Order.RUN and unknown and appends:
            put_orders(view, _for_topics(unknown, Order.BEGIN))
    return tuple(topics)


def _never_here(view: LinkView, topics: Sequence[str], order: Order) -> UsageError:
    listed, _ = list_groups(view.client, deadline=view.deadline())
    links = ", ".join(links_in(listed)) or "none"
    return UsageError(
        f"the link {view.link().name} has no marks of {', '.join(topics)}: no ingress of it has worked here",
        operation=order.value,
        object_name=view.link().group_id,
        hint=f"give the --link, --rename and --prefix of the ingress; links that have marks here: {links}",
    )


def promote(config: Config) -> PromoteReport:
    """RefusedError: this user may not write markers, and nothing says that ingress has stopped. May be repeated."""
    with open_link(config) as view:
        newest, link, orders = view.look(), view.link(), view.orders()
        partitions = view.partitions(newest, orders)
        offsets, known = view.marks_of(partitions)
        if offsets is Offsets.APPEND:
            fenced, (ends, groups) = True, _end_appending(view, newest, partitions, known)
        else:
            fenced = may_write_markers(view.client, deadline=view.deadline())
            ends, groups = _end_mirrors(view, newest, partitions, known, orders, fenced=fenced)
        beats = read_heartbeats(newest.archive.storage)
    return PromoteReport(
        link=link.name,
        at_ms=now_ms(),
        heartbeat_ms=beats[0].at_ms if beats else None,
        partitions=_statuses(partitions, ends, beats),
        fenced=fenced,
        groups=groups,
        unmatched=view.unmatched,
    )


def _end_mirrors(
    view: LinkView,
    newest: Newest,
    partitions: Sequence[MirroredPartition],
    known: Mapping[PositionKey, LinkMark],
    orders: Orders,
    *,
    fenced: bool,
) -> tuple[dict[PositionKey, int], int]:
    """End mirrors. Returns where each ended, and how many offsets of groups were committed."""
    # A topic without marks was never a mirror of this link, whatever its name.
    chosen = [partition for partition in partitions if partition.key in known]
    if not chosen:
        asked = sorted({partition.mirror.name for partition in partitions})
        raise _never_here(view, asked or ["these topics"], Order.PROMOTE)
    if not fenced and not view.config.replicate.force:
        raise RefusedError(
            "this user may not write the markers that keep a running ingress from writing on",
            operation=_OPERATION,
            hint="allow ClusterAction on the cluster; or stop every ingress of this link and give --force",
        )
    given = {where: each for where, each in orders.items() if each.order is Order.PROMOTE}
    ended = {where: each.end for where, each in given.items() if each.end is not None}
    fresh = {each.where: known[each.key] for each in chosen if each.where not in ended}
    put_orders(view, _for_topics({where.topic for where in fresh}, Order.PROMOTE))
    extents = log_extents(view.client, list(fresh), view.patience_s)
    if fenced:
        ends = _fence_once(view, extents, fresh, ordered={where.topic for where in orders})
    else:
        ends = {where: each.end for where, each in extents.items()}
    groups = _carry_groups(view, newest.cluster.groups, chosen)
    _release(view, chosen)
    # Recorded once, and last: it is what a fail-back compares with.
    ends |= ended
    found = {each.key: ends[each.where] for each in chosen}
    view.grow(chosen, found, fully=True)
    for each in chosen:
        # What marks say later may come from the promotion itself.
        why = given[each.where].why if each.where in ended else fault_of(each, ends[each.where], known[each.key])
        each.state, each.why = State.PROMOTED, why
    put_orders(view, [order_of(each.where, Order.PROMOTE, ends[each.where], each.why) for each in chosen])
    return found, groups


def _statuses(
    partitions: Sequence[MirroredPartition], ends: Mapping[PositionKey, int], beats: Sequence[Heartbeat]
) -> tuple[PartitionStatus, ...]:
    """The promoted partitions with their ends, and those with records that ingress has not begun with."""
    found = []
    for partition in partitions:
        if partition.key not in ends and partition.state not in {State.OWN, State.SOURCE_GONE}:
            partition.state, partition.why = State.CATCHING_UP, "ingress has not begun with it: nothing of it is here"
        status = status_of(partition, ends.get(partition.key, partition.extent.start), beats, now_ms())
        if partition.key in ends or (partition.state is State.CATCHING_UP and status.lag_records != 0):
            found.append(status)
    return tuple(found)


def _end_appending(
    view: LinkView, newest: Newest, partitions: Sequence[MirroredPartition], known: Mapping[PositionKey, LinkMark]
) -> tuple[dict[PositionKey, int], int]:
    """End a link that appends. Taking its transactional ids fences every ingress; its marks say that it has ended.

    The topics were never the link's alone: they stay as they are.
    """
    present = existing(view.client, partitions)
    # A topic without marks was never one of this link, whatever its name.
    topics = {where.topic for _, where in known}
    chosen = [partition for partition in partitions if partition.where.topic in topics and partition.where in present]
    if not chosen:
        raise UsageError("no mirrored topic is selected", operation=_OPERATION, hint="see 'replicate status'")
    put_orders(view, _for_topics({each.where.topic for each in chosen}, Order.PROMOTE))
    marks: dict[PositionKey, LinkMark] = {}
    for _, same in groupby(sorted(chosen, key=lambda each: each.where), key=lambda each: each.where):
        marks |= _end_partition_surely(view, list(same), known)
    groups, moved, settled = 0, 1, False
    begun = [(each, marks[each.key]) for each in chosen]
    while moved and not settled:
        # A long way is gone in several steps.
        moved, settled = carry_appended_groups(
            view.client,
            view.link(),
            newest.cluster.groups,
            view.config.replicate.groups,
            begun,
            patience_s=view.patience_s,
            last=True,
        )
        groups = max(groups, moved)
    return {key: mark.next_offset for key, mark in marks.items()}, groups


def _end_partition_surely(
    view: LinkView, sources: Sequence[MirroredPartition], known: Collection[PositionKey]
) -> dict[PositionKey, LinkMark]:
    """End the link in one destination partition, also if an ingress takes its transactional id back meanwhile."""
    for _ in range(_ATTEMPTS):
        try:
            return _end_partition(view, sources, known)
        except MaxbrodError as error:
            if not is_over(error):
                raise
    where = str(sources[0].where)
    message = "the link could not be ended: another instance takes the partition back again and again"
    raise UnavailableError(message, operation=_OPERATION, object_name=where, hint=_AGAIN)


def _end_partition(
    view: LinkView, sources: Sequence[MirroredPartition], known: Collection[PositionKey]
) -> dict[PositionKey, LinkMark]:
    """End the link in one destination partition. Returns the last mark of each source topic there.

    All of them are fenced before any is ended: what the link brings of one is not new since the end of another one.
    """
    client, patience_s = view.client, view.patience_s
    positions = [
        take_position(client, view.link(), source.key, joined=source.mirror.joined, patience_s=patience_s)
        for source in sources
    ]
    # What is undecided now, others will have written after the promotion.
    _, stable = stable_extent(client, sources[0].where, patience_s=patience_s)
    marks = {}
    for each, position in zip(sources, positions, strict=True):
        if position.mark is None and each.key in known:
            message = "the mark of the link is gone"
            raise UnavailableError(message, operation=_OPERATION, object_name=str(each.where), hint=_REPEAT)
        if (mark := position.mark) is None:  # the link has not begun with it: it may have no records
            topic_id = view.topic_ids([each])[each.where.topic]
            mark = each.first_mark(each.extent.start, topic_id=topic_id, version=view.version)
        place = mark.append
        if place is not None and place.promoted is None:
            place = replace(place, promoted=stable)
        view.grow([each], {each.key: mark.next_offset}, fully=True)
        why = mark.why if mark.state is State.PROMOTED else fault_of(each, None, mark)
        each.state, each.why = State.PROMOTED, why
        marks[each.key] = replace(mark, state=each.state, why=each.why, at_ms=now_ms(), append=place)
        put_mark(client, position, marks[each.key], patience_s=patience_s)
    return marks


def _fence_once(
    view: LinkView,
    extents: Mapping[TopicPartition, LogExtent],
    marks: Mapping[TopicPartition, LinkMark],
    *,
    ordered: Collection[str],
) -> dict[TopicPartition, int]:
    """The offset of the marker that ends each log. A promotion that died may have written it before.

    Others may have written behind it since. It is looked for behind what ingress has marked; and in the whole log, if a
    promotion was ordered before: an ingress that ran meanwhile may have marked the end with the marker.
    """
    client, link, found = view.client, view.link(), {}
    for where, extent in extents.items():
        marked = min(max(marks[where].next_offset, extent.start), extent.end)
        at = _find_fence(client, link, where, marked, extent.end)
        if at is None and where.topic in ordered:
            at = _find_fence(client, link, where, extent.start, marked)
        if at is not None:
            found[where] = at
    unfenced = [where for where in extents if where not in found]
    _fence(view, unfenced)
    for where, extent in log_extents(client, unfenced, view.patience_s).items():
        at = _find_fence(client, link, where, extents[where].end, extent.end)
        if at is None:
            message = "the marker that ends the mirror is not there yet"
            raise UnavailableError(message, operation=_OPERATION, object_name=str(where), hint=_REPEAT)
        found[where] = at
    return found


def _find_fence(client: KafkaClient, link: Link, where: TopicPartition, start: int, end: int) -> int | None:
    """The offset of the first marker of a promotion in this range."""
    for chunk in read_range(client, where, start, end, floor=0, read_committed=False) if start < end else ():
        headers = chunk.headers
        fences = headers.control & (headers["producer_id"] == link.producer_id)
        fences &= headers["producer_epoch"] == _FENCING_EPOCH
        if fences.any():
            return int(headers["base_offset"][int(fences.argmax())])
    return None


def _fence(view: LinkView, partitions: Collection[TopicPartition]) -> None:
    """Append one marker of the link's producer with a higher epoch to each log."""

    def request(asked: Mapping[TopicPartition, tuple[None, Leader]]) -> Message:
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        topic = marker.WritableTxnMarkerTopic
        topics = [topic(name=name, partition_indexes=list(each)) for name, each in by_topic(asked).items()]
        return WriteTxnMarkersRequest(
            markers=[
                marker(
                    producer_id=view.link().producer_id,
                    producer_epoch=_FENCING_EPOCH,
                    transaction_result=True,
                    topics=topics,
                    coordinator_epoch=0,
                    transaction_version=0,
                )
            ]
        )

    def read(answer: Message) -> Iterator[tuple[TopicPartition, int, None]]:
        for marker in answer.markers:
            for topic in marker.topics:
                for each in topic.partitions:
                    yield TopicPartition(topic=topic.name, partition=each.partition_index), each.error_code, None

    wanted: dict[TopicPartition, None] = dict.fromkeys(partitions)
    if wanted:
        ask_leaders(view.client, wanted, request, read, operation=_OPERATION, deadline=view.deadline())


def put_orders(view: LinkView, orders: Iterable[CommittedOffset]) -> None:
    for where, outcome in commit_offsets(view.client, view.link().control_id, orders, deadline=view.deadline()).items():
        if not outcome.done:
            raise RefusedError(f"the order cannot be given: {outcome.reason}", object_name=str(where))


def _for_topics(topics: Iterable[str], order: Order) -> list[CommittedOffset]:
    return [order_of(TopicPartition(topic=topic, partition=0), order) for topic in topics]


def _carry_groups(view: LinkView, groups: Sequence[Group], chosen: Sequence[MirroredPartition]) -> int:
    patterns, patience_s = view.config.replicate.groups, view.patience_s
    if not patterns:
        return 0
    extents = log_extents(view.client, [each.where for each in chosen], patience_s)
    logs = {each.where: (each.mirror, extents[each.where]) for each in chosen}
    return carry_groups(view.client, groups, patterns, logs, patience_s=patience_s, last=True)


def _release(view: LinkView, chosen: Sequence[MirroredPartition]) -> None:
    """Give the topics the source's own configuration: retention runs again."""
    changes = {}
    for mirror in {each.mirror.name: each.mirror for each in chosen}.values():
        planned = plan_mirror_configs(
            mirror.source, view.config.replicate.configs, replication_factor=mirror.source.replication_factor
        )
        changes[mirror.name] = {**dict(planned.release.set), **dict.fromkeys(planned.release.delete)}
    for name, outcome in alter_configs(view.client, changes, deadline=view.deadline()).items():
        if not outcome.done:
            raise RefusedError(
                f"the topic cannot be configured: {outcome.reason}",
                operation=_OPERATION,
                object_name=name,
                hint="the link has ended; correct that and run the same command again",
            )
