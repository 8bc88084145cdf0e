"""One link as seen from its destination: the archive at its newest, the mirrored partitions, marks and orders.

Changes nothing. `ingress`, `status`, `promote` and `verify` share it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import pyarrow as pa

from maxbrod.archive.archive import open_archive
from maxbrod.archive.renames import parse_rename
from maxbrod.archive.selection import nearest
from maxbrod.archive.snapshots import find_moment
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.config import Config
from maxbrod.errors import MaxbrodError, RefusedError, UnavailableError, UsageError
from maxbrod.kafka.groups import CLASSIC, ListedGroup, read_offsets
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import GapReason, PartitionId, TopicPartition, now_ms, topic_id_text
from maxbrod.replicate.ingress.plan import Extent, Mirror, MirrorPortion, choose_mirrors, find_unmatched, plan_portions
from maxbrod.replicate.link import (
    AppendPlace,
    Link,
    LinkMark,
    Offsets,
    Order,
    Ordered,
    PositionKey,
    State,
    is_position_of,
    origins_of,
    parse_offsets,
    read_marks,
    read_orders,
)
from maxbrod.replicate.newest import CommitWatch, Newest, RecentRows, StoredSnapshot, follow_newest, gaps_of
from maxbrod.replicate.report import Lacking

_LOG: Final = logging.getLogger(__name__)
_OPERATION: Final = "replicate"
_SECOND_LOOK_S: Final = 2.0
"""Between two looks that must agree before offsets which no row covers become holes."""
Orders: TypeAlias = "Mapping[TopicPartition, Ordered]"


@dataclass(slots=True, kw_only=True)
class MirroredPartition:
    """One mirrored partition, and what is found out about it in one interval."""

    id: PartitionId
    where: TopicPartition
    mirror: Mirror
    extent: Extent
    origins: tuple[str, ...] = ()
    """The ids of the clusters that the records come from, the nearest first."""
    adopted_end: int | None = None
    """The end of a log that others have written and that is known to have the source's records."""
    promoted_end: int | None = None
    """The end of a mirror with exact offsets when it was promoted: since then its log grows by what others write."""
    state: State = State.IN_STEP
    why: str | None = None
    bytes: int = 0
    lacking: tuple[Lacking, ...] = ()

    @property
    def key(self) -> PositionKey:
        return self.mirror.source.name, self.where

    def lacks(self, portion: MirrorPortion) -> None:
        """Take over what is known about the portion of the archive that the destination lacks."""
        self.bytes, self.state = portion.bytes, State.CATCHING_UP
        if portion.lost is not None:
            self.state, self.why = State.LOST_RANGE, portion.why_lost
        # Only the interval that makes holes of pruned offsets knows that the destination did not have them before.
        pruned = (Lacking(first_offset=first, end_offset=end, reason=GapReason.PRUNED) for first, end in portion.pruned)
        self.lacking = tuple(sorted((*self.lacking, *pruned), key=lambda each: each.first_offset))

    def first_mark(self, begin: int, *, topic_id: str, version: int) -> LinkMark:
        """The mark of a link that appends from `begin` on to the topic of this id, before it has appended anything."""
        return LinkMark(
            source=self.mirror.source.name,
            topic_id=self.id.topic_id,
            next_offset=begin,
            version=version,
            at_ms=now_ms(),
            state=State.CATCHING_UP,
            origins=self.origins,
            append=AppendPlace(topic_id=topic_id, begin=begin),
        )

    @property
    def source_where(self) -> TopicPartition:
        return TopicPartition(topic=self.mirror.source.name, partition=self.where.partition)


class LinkView:
    """One archive and one destination."""

    def __init__(self, config: Config, client: KafkaClient) -> None:
        self.kafka, self._url = config.cluster, config.archive_url
        self.config, self.client, self._options = config, client, config.replicate
        self._rename = parse_rename(self._options.rename, prefix=self._options.prefix)
        self.patience_s = config.patience
        self._newest: Newest | None = None
        self._recent = RecentRows()
        """Rows of `_newest`."""
        self._stored = StoredSnapshot()
        self._watch = CommitWatch()
        self._link: Link | None = None
        self.version = -1
        """The highest version of the catalog that is known to exist."""
        self.unmatched: tuple[str, ...] = ()
        self._asked_about: set[str] = set()
        """Names and patterns of topics that `partitions` has found nothing for."""

    def look(self) -> Newest:
        """The newest version of the archive that is here. Look once, and give what was seen to the other methods.

        UnavailableError: the archive is copied here object by object, and something that is needed is not here yet, or
        an older catalog has been copied over a newer one.
        """
        try:
            step = None if self._newest is None else follow_newest(self._newest, self._stored)
            if step is not None:
                self._newest, self._recent = step.newest, self._recent.plus(step.rows, step.new)
                self.version = max(self.version, step.newest.version)
                return self._newest
            archive = open_archive(self._url, self.config.storage, layout="kafka")
            self.refuse_stale(archive.catalog.version)
            moment = find_moment(archive.storage, archive.catalog.runs(), None)
            gaps, positions = gaps_of(archive), archive.catalog.positions()
        except (MaxbrodError, OSError) as error:
            if isinstance(error, MaxbrodError) and (error.retryable or isinstance(error, UsageError)):
                raise
            raise UnavailableError(
                f"the catalog cannot be read yet: {error}", operation=_OPERATION, object_name=self._url
            ) from error
        if moment.run is None:
            raise UnavailableError(
                "the archive has no finished run yet",
                operation=_OPERATION,
                object_name=self._url,
                hint="the first run of 'replicate egress' must end, and its objects must arrive here",
            )
        if moment.snapshot is None or moment.cluster is None:
            raise UnavailableError(
                "the snapshot of the newest run is not here yet", operation=_OPERATION, object_name=moment.run.snapshot
            )
        self._newest = Newest(
            archive=archive,
            moment=moment,
            snapshot=moment.snapshot,
            cluster=moment.cluster,
            run_id=moment.run.run_id,
            gaps=gaps,
            positions=positions,
        )
        self.version, self._recent = archive.catalog.version, RecentRows()
        return self._newest

    def wait_for_commit(self, seconds: float, stop: threading.Event) -> bool:
        """True as soon as the archive has a newer version than the last look; False after this time, or a stop."""
        return self._watch.wait(self._newest, seconds, stop)

    def refuse_stale(self, found: int) -> None:
        if found < self.version:
            self._newest = None
            raise UnavailableError(
                f"stale catalog: its newest version here is {found}, and version {self.version} was followed before",
                operation=_OPERATION,
                object_name=self._url,
                hint="it waits until the copy of the archive has caught up, and never goes back",
            )

    def _refuse_older_than(self, marks: Iterable[LinkMark]) -> None:
        found = self.look().version
        self.version = max([self.version, *(mark.version for mark in marks)])
        self.refuse_stale(found)

    def link(self) -> Link:
        """RefusedError: the destination is the source, and would mirror to itself."""
        if self._link is None:
            cluster_id = self.look().cluster.cluster_id or ""
            if not self._options.link and not cluster_id:
                raise UsageError("the archive does not know its cluster's id", hint="name the link with --link")
            here = self.client.metadata([], deadline=self.deadline()).cluster_id
            if here == cluster_id and not (self._options.rename or self._options.prefix):
                raise RefusedError(
                    "the destination is the cluster that the archive was made from",
                    operation=_OPERATION,
                    object_name=cluster_id,
                    hint="give the destination's --bootstrap, or other names with --rename or --prefix",
                )
            self._link = Link(name=self._options.link or cluster_id)
        return self._link

    def marks(self) -> dict[TopicPartition, LinkMark]:
        """UnavailableError: they know a newer catalog than the one that is here."""
        marks = read_marks(self._committed(self.link().group_id))
        self._refuse_older_than(marks.values())
        return marks

    def marks_of(self, partitions: Sequence[MirroredPartition]) -> tuple[Offsets, dict[PositionKey, LinkMark]]:
        """Return the offsets that the link uses, as its marks tell, or without marks the options; and its marks."""
        known = self.marks()
        used = {mark.offsets for mark in known.values()}
        if (used.pop() if len(used) == 1 else parse_offsets(self._options.offsets)) is Offsets.APPEND:
            return Offsets.APPEND, self.positions(partitions, known)
        return Offsets.EXACT, {each.key: known[each.where] for each in partitions if each.where in known}

    def positions(
        self, partitions: Iterable[MirroredPartition], known: Mapping[TopicPartition, LinkMark] | None = None
    ) -> dict[PositionKey, LinkMark]:
        """Return the marks of a link that appends, and those of mirrors that are in its way. `known` are all marks of
        the link's own group.
        """
        known, link = self.marks() if known is None else known, self.link()
        found = {
            partition.key: known[partition.where]
            for partition in partitions
            if is_position_of(known.get(partition.where), partition.key[0])
        }
        others = {
            link.group_of(partition.key[0]): partition.key[0] for partition in partitions if partition.key not in found
        }
        if others:
            listed = [ListedGroup(group_id=other, type=CLASSIC, state="", protocol_type="") for other in others]
            answers = read_offsets(self.client, listed, {}, deadline=self.deadline())
            for group_id, why in answers.refused.items():
                raise _unreadable(group_id, why)
            for group_id, offsets in answers.found.items():
                for where, mark in read_marks(offsets).items():
                    found[others[group_id], where] = mark
            self._refuse_older_than(found.values())
        return found

    def orders(self) -> Orders:
        return read_orders(self._committed(self.link().control_id))

    def _suggest(self, known: Iterable[str]) -> None:
        """Log, once for each unmatched word, which topic may have been meant."""
        names = list(known)
        for word in self.unmatched:
            question = None if word in self._asked_about else nearest(word, names, see="")
            self._asked_about.add(word)
            if question:
                _LOG.warning("the archive has no topic %s: %s", word, question)

    def partitions(self, newest: Newest, orders: Orders) -> list[MirroredPartition]:
        """All partitions of the selected topics, with the states that follow from orders and the source alone."""
        positions, ends = newest.positions, newest.snapshot.ends
        archived = {each.topic_id for each in positions} | {end.topic_id for end in ends}
        include, exclude = self._options.topics, self._options.exclude
        self.unmatched = find_unmatched(newest.cluster.topics, archived, include=include, exclude=exclude)
        self._suggest(topic.name for topic in newest.cluster.topics if topic.topic_id in archived)
        mirrors = choose_mirrors(
            newest.cluster.topics,
            newest.moment.lost.keys(),
            archived,
            include=include,
            exclude=exclude,
            rename=self._rename,
            join=parse_offsets(self._options.offsets) is Offsets.APPEND,
        )
        here = self.here()
        mirrored_there = origins_of(newest.cluster.groups)
        found = []
        for mirror in mirrors:
            origins = (newest.cluster.cluster_id or "", *mirrored_there.get(mirror.source.name, ()))
            for number in range(mirror.source.partition_count):
                partition = PartitionId(topic_id=mirror.source.topic_id, partition=number)
                position, known_end = positions.get(partition), ends.get(partition)
                if position is None and known_end is None:
                    continue  # the source has just added it, and no run has read it yet
                first = position.first_offset if position is not None else known_end or 0
                last = position.end_offset if position is not None else known_end or 0
                start = min(max(first, newest.snapshot.log_starts.get(partition, 0)), last)
                each = MirroredPartition(
                    id=partition,
                    where=TopicPartition(topic=mirror.name, partition=number),
                    mirror=mirror,
                    extent=Extent(first=first, end=last, start=start),
                    origins=origins,
                    lacking=newest.gaps.get(partition, ()),
                )
                order = orders.get(TopicPartition(topic=mirror.name, partition=0), Ordered(Order.RUN)).order
                if order is Order.PROMOTE:
                    each.state = State.PROMOTED
                elif mirror.gone:
                    each.state, each.why = State.SOURCE_GONE, "the source topic was deleted; its mirror stays"
                elif order is Order.PAUSE:
                    each.state = State.PAUSED
                own = orders.get(each.where, Ordered(order))
                if own.order is Order.ADOPT:
                    each.adopted_end = own.end
                elif own.order is Order.PROMOTE:
                    each.promoted_end, each.why = own.end, own.why
                if here in origins[1:]:
                    each.state, each.why = State.OWN, f"its records come from this cluster, through {origins[0]}"
                found.append(each)
        return found

    def portions(
        self, newest: Newest, wanted: Mapping[PartitionId, tuple[int, int]], *, accept_gaps: bool
    ) -> dict[PartitionId, MirrorPortion]:
        """See `plan_portions`. Ends that are `wanted` must be of the same look as the rows.

        UnavailableError: gaps are accepted, and a second look covers offsets that the first one did not.
        """
        rows = self._recent.of(wanted) if newest is self._newest else None
        if rows is None:
            rows = newest.archive.catalog.rows(topic_ids={each.topic_id for each in wanted})
        if newest is self._newest:
            self._recent = self._recent.since(rows, wanted)
        if accept_gaps and (holes := _uncovered(rows, wanted)):
            # A gap has a row that says so. That there is no row must be seen twice: a hole in a mirror is for ever.
            time.sleep(_SECOND_LOOK_S)
            catalog = open_archive(self._url, self.config.storage, layout="kafka").catalog
            self.refuse_stale(catalog.version)
            if _uncovered(catalog.rows(topic_ids={each.topic_id for each in wanted}), wanted) != holes:
                raise UnavailableError(
                    "offsets that no row of the catalog covered are covered now: nothing was made a hole",
                    operation=_OPERATION,
                    object_name=self._url,
                )
        return plan_portions(rows, wanted, accept_gaps=accept_gaps, read=newest.archive.erasures().slice_of)

    def grow(
        self, partitions: Iterable[MirroredPartition], ends: Mapping[PositionKey, int], *, fully: bool = False
    ) -> None:
        """Raise the archive's end to the destination's, where the archive has got as much since the look.

        The destination is asked after the look, and may have more by then, from an instance that has looked later.
        `fully`: raise it to all that the archive has by now, because no rows of the look are used any more.
        """
        longer = [partition for partition in partitions if ends.get(partition.key, 0) > partition.extent.end]
        positions = self.look().positions if longer else {}
        for each in longer:
            if (position := positions.get(each.id)) is not None:
                end = position.end_offset if fully else min(ends[each.key], position.end_offset)
                end = max(each.extent.end, end)
                each.extent = replace(each.extent, end=end)

    def topic_ids(self, partitions: Iterable[MirroredPartition]) -> dict[str, str]:
        """The ids of these partitions' topics at the destination, by name."""
        names = sorted({partition.where.topic for partition in partitions})
        present = self.client.metadata(names, deadline=self.deadline()).topics
        return {name: topic_id_text(present[name].topic_id) for name in names}

    def here(self) -> str:
        """The id of the destination's cluster."""
        return self.client.metadata([], deadline=self.deadline()).cluster_id or ""

    def deadline(self) -> Deadline:
        return Deadline.after(self.config.patience)

    def _committed(self, group_id: str) -> tuple[CommittedOffset, ...]:
        listed = ListedGroup(group_id=group_id, type=CLASSIC, state="", protocol_type="")
        answers = read_offsets(self.client, [listed], {}, deadline=self.deadline())
        for why in answers.refused.values():
            raise _unreadable(group_id, why)
        return answers.found.get(group_id, ())


def forgotten_orders(
    partitions: Iterable[MirroredPartition], orders: Orders, marks: Mapping[PositionKey, LinkMark]
) -> list[MirroredPartition]:
    """Partitions that were paused or promoted by an order that brokers have forgotten, as their marks still tell."""
    ordered = {where.topic for where in orders}
    return [
        partition
        for partition in partitions
        if partition.where.topic not in ordered
        and (mark := marks.get(partition.key)) is not None
        and mark.state in {State.PROMOTED, State.PAUSED}
    ]


def keep_order(each: MirroredPartition, mark: LinkMark) -> None:
    each.state = mark.state
    if mark.state is State.PROMOTED:
        each.promoted_end, each.why = mark.next_offset, mark.why


@contextmanager
def open_link(config: Config) -> Iterator[LinkView]:
    """The link of a command that looks at it, or orders something, once."""
    with KafkaClient(config.cluster) as client:
        yield LinkView(config, client)


def _unreadable(group_id: str, why: str) -> MaxbrodError:
    message = f"the marks of the link cannot be read: {why}"
    if "AUTHORIZATION" not in why:
        return UnavailableError(message, operation=_OPERATION, object_name=group_id)
    hint = f"this user needs an ACL that allows it to Describe the groups that begin with {group_id}"
    return UsageError(message, operation=_OPERATION, object_name=group_id, hint=hint)


def _uncovered(rows: pa.Table, wanted: Mapping[PartitionId, tuple[int, int]]) -> set[tuple[PartitionId, int, int]]:
    """The ranges of `wanted` that no row covers."""
    faults = find_tiling_faults(rows, {each: extent for each, extent in wanted.items() if extent[0] < extent[1]})
    return {(hole.partition, hole.first_offset, hole.end_offset) for hole in faults.holes if hole.partition in wanted}
