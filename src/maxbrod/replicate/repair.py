"""Repairs faulted mirrors: what is proven to be the archive's goes on, everything else is mirrored anew.

Brokers cannot cut the end of a log. So a mirror that has anything but what the archive has cannot go back to the last
offset that is proven. Its topic is deleted, if it was agreed to, and ingress mirrors all of it at the same offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Final

from maxbrod.compare.report import CompareReport, PartitionComparison
from maxbrod.config import Config
from maxbrod.errors import EXIT_DONE, EXIT_REFUSED, RefusedError, UsageError
from maxbrod.kafka.admin import delete_topics
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.groups import commit_offsets, list_groups, read_offsets
from maxbrod.model import TopicPartition, now_ms
from maxbrod.replicate.ingress.topics import filler_id
from maxbrod.replicate.link import GROUP_PREFIX, LinkMark, Offsets, Order, PositionKey, State, order_of
from maxbrod.replicate.promote import put_orders
from maxbrod.replicate.status import existing, link_status
from maxbrod.replicate.verify import verify
from maxbrod.replicate.view import LinkView, MirroredPartition, open_link
from maxbrod.restore.plan.targets import LogExtent
from maxbrod.restore.target import log_extents
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.report import Report
from maxbrod.work.session import Session

_OPERATION: Final = "repair"


class Repair(StrEnum):
    """The fate of a faulted partition."""

    GO_ON = "go on"
    """Its log has what the archive has: ingress continues at its end."""
    ANEW = "mirror anew"
    """Its log has something else: the topic must be deleted, and ingress mirrors it again."""
    BY_HAND = "by hand"
    """Neither is safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedPartition:
    """A partition that was faulted."""

    source: str
    topic: str
    partition: int
    fault: str | None
    """Why it was faulted."""
    repair: Repair
    why: str | None
    """Why it cannot simply go on."""
    end: int | None = None
    """Its log end; None: it does not exist."""
    archive_end: int = 0
    proven: int | None = None
    """The offset up to which mirror and archive have the same records; None: they differ, at an offset that was not
    looked for."""
    records: int | None = None
    """The mirror's records among those offsets that both account for; None: they could not be compared."""
    archived_records: int | None = None

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(topic=self.topic, partition=self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRepairReport(Report):
    published: ClassVar = ("to_delete", "exit_code")
    link: str
    partitions: tuple[RepairedPartition, ...]
    """Those that were faulted."""
    deleted: tuple[str, ...] = ()
    """Topics that were deleted, so that ingress mirrors them anew, with all their partitions."""
    groups: tuple[str, ...] = ()
    """Groups that have positions in topics to mirror anew. Brokers forget them with the topic."""

    @property
    def to_delete(self) -> tuple[str, ...]:
        """Topics that are deleted only with `--yes`."""
        anew = {partition.topic for partition in self.partitions if partition.repair is Repair.ANEW}
        return tuple(sorted(anew - {*self.deleted}))

    @property
    def exit_code(self) -> int:
        by_hand = {partition.topic for partition in self.partitions if partition.repair is Repair.BY_HAND}
        return EXIT_REFUSED if by_hand - {*self.deleted} or self.to_delete else EXIT_DONE


def repair(config: Config, *, session: Session | None = None, on_progress: OnProgress = silent) -> MirrorRepairReport:
    """Prove the faulted mirrors of the selected topics. Those with other records are deleted only with `yes`."""
    status = link_status(config)
    faults = {
        TopicPartition(topic=partition.topic, partition=partition.partition): partition.why
        for partition in status.partitions
        if partition.state is State.FAULTED
    }
    if not faults:
        return MirrorRepairReport(link=status.link, partitions=())
    with open_link(config) as view:
        newest, link = view.look(), view.link()
        partitions = view.partitions(newest, view.orders())
        offsets, marks = view.marks_of(partitions)
        if offsets is Offsets.APPEND:
            raise UsageError(
                "only mirrors with exact offsets can be proven and mirrored anew",
                operation=_OPERATION,
                hint="another --link with --offsets append appends everything anew",
            )
        # All partitions of the topics: if one of them is mirrored anew, all are.
        topics = {where.topic for where in faults}
        partitions = [partition for partition in partitions if partition.where.topic in topics]
        logs = log_extents(view.client, list(existing(view.client, partitions)), config.patience)
        view.grow(partitions, {each.key: logs[each.where].end for each in partitions if each.where in logs})
        compared = _compare(config, partitions, logs, session=session, on_progress=on_progress)
        known = faults.keys() & logs.keys()
        foreign = {where.topic for where in known if not _is_own(view, where, logs[where])}
        found = plan_repairs(partitions, faults, logs, compared, foreign=foreign)
        anew = {each.topic for each in found if each.repair is Repair.ANEW}
        proven = {each.where for each in found if each.repair is Repair.GO_ON}
        _let_go_on(view, [partition for partition in partitions if partition.where in proven], logs, marks)
        groups = _groups_in(view, anew) if anew else ()
        deleted = _delete(view, anew) if config.replicate.yes else ()
    return MirrorRepairReport(link=link.name, partitions=tuple(found), deleted=deleted, groups=groups)


def plan_repairs(
    partitions: Sequence[MirroredPartition],
    faults: Mapping[TopicPartition, str | None],
    logs: Mapping[TopicPartition, LogExtent],
    compared: CompareReport | None,
    *,
    foreign: Collection[str],
) -> list[RepairedPartition]:
    """Decide about each faulted partition. `foreign` are topics that begin with records of others. Pure."""
    both, differences = ((), ()) if compared is None else (compared.partitions, compared.differences)
    pairs = {(partition.source_topic, partition.partition): partition for partition in both}
    differ: dict[tuple[str, int], int] = {}
    for difference in differences:
        offset = difference.target_offset if difference.source_offset is None else difference.source_offset
        key = difference.source_topic, difference.partition
        differ[key] = min(differ.get(key, offset or 0), offset or 0)
    found = []
    for partition in partitions:
        if partition.where in faults:
            log, pair = logs.get(partition.where), pairs.get((partition.mirror.source.name, partition.where.partition))
            kind, why = _judge(partition, log, pair)
            if kind is Repair.ANEW and (obstacle := _why_not_anew(partition, partitions, faults, logs, pairs, foreign)):
                kind, why = Repair.BY_HAND, obstacle
            proven = None if log is None or (pair is None and not log.empty) else min(log.end, partition.extent.end)
            if pair is not None and not pair.equal:
                proven = differ.get((pair.source_topic, pair.partition))
            found.append(
                RepairedPartition(
                    source=partition.mirror.source.name,
                    topic=partition.where.topic,
                    partition=partition.where.partition,
                    fault=faults[partition.where],
                    repair=kind,
                    why=why,
                    end=None if log is None else log.end,
                    archive_end=partition.extent.end,
                    proven=proven,
                    records=None if pair is None or pair.failure else pair.target_records,
                    archived_records=None if pair is None or pair.failure else pair.source_records,
                )
            )
    return found


def _judge(
    each: MirroredPartition, log: LogExtent | None, pair: PartitionComparison | None
) -> tuple[Repair, str | None]:
    if log is None:
        return Repair.BY_HAND, "it does not exist here"
    if pair is not None and pair.failure is not None:
        return Repair.BY_HAND, f"it could not be compared: {pair.failure['message']}"
    if log.end > each.extent.end:
        return Repair.ANEW, f"it ends at {log.end:,}, behind the archive's end {each.extent.end:,}"
    if pair is None and not log.empty:
        return Repair.BY_HAND, f"nothing of it can be compared: the archive begins at {each.extent.first:,}"
    if pair is None or pair.equal:
        return Repair.GO_ON, None
    return Repair.ANEW, "its records are not those of the archive"


def _why_not_anew(
    faulted: MirroredPartition,
    partitions: Sequence[MirroredPartition],
    faults: Collection[TopicPartition],
    logs: Mapping[TopicPartition, LogExtent],
    pairs: Mapping[tuple[str, int], PartitionComparison],
    foreign: Collection[str],
) -> str | None:
    """Return why the topic must not be deleted: it is not the link's, or the archive does not give back what it has."""
    if faulted.where.topic in foreign:
        return "the topic begins with records that the link has not written: it may be no mirror at all"
    for partition in partitions:
        if partition.where.topic != faulted.where.topic or partition.where not in logs:
            continue
        log, pair = logs[partition.where], pairs.get((partition.mirror.source.name, partition.where.partition))
        if log.start < min(partition.extent.first, log.end):
            return f"the archive begins at {partition.extent.first:,}, and {partition.where} at {log.start:,}"
        if pair is not None and pair.failure is not None:
            return f"{partition.where} could not be compared: {pair.failure['message']}"
        if pair is not None and not pair.equal and partition.where not in faults:
            return f"{partition.where} is not faulted, and has other records than the archive"
    return None


def _compare(
    config: Config,
    partitions: Iterable[MirroredPartition],
    logs: Mapping[TopicPartition, LogExtent],
    *,
    session: Session | None,
    on_progress: OnProgress,
) -> CompareReport | None:
    """Compare what both sides have, as `verify` does; None: nothing."""
    ranges = []
    for partition in partitions:
        if (log := logs.get(partition.where)) is not None:
            first, end = max(log.start, partition.extent.first), min(log.end, partition.extent.end)
            if first < end:
                ranges.append(f"{partition.mirror.source.name}:{partition.where.partition}:{first}..{end}")
    if not ranges:
        return None
    chosen = config.model_copy(update={"replicate": replace(config.replicate, ranges=tuple(ranges))})
    return verify(chosen, session=session, on_progress=on_progress).report


def _is_own(view: LinkView, where: TopicPartition, log: LogExtent) -> bool:
    """True if the link has written the first records of a log. Markers tell nothing: every transaction leaves some."""
    chunks = read_range(view.client, where, log.start, log.end, floor=0, read_committed=False) if not log.empty else ()
    for chunk in chunks:
        producers = chunk.headers["producer_id"][~chunk.headers.control]
        if len(producers):
            link = view.link()
            return int(producers[0]) in {link.producer_id, filler_id(link)}
    return True


def _let_go_on(
    view: LinkView,
    proven: Collection[MirroredPartition],
    logs: Mapping[TopicPartition, LogExtent],
    marks: Mapping[PositionKey, LinkMark],
) -> None:
    """Order ingress to continue at these ends, and at no others. Its marks say so from now on."""
    put_orders(view, [order_of(each.where, Order.ADOPT, logs[each.where].end) for each in proven])
    offsets = [
        replace(
            marks[each.key], topic_id=each.id.topic_id, state=State.CATCHING_UP, why=None, at_ms=now_ms()
        ).committed(each.where)
        for each in proven
        if each.key in marks
    ]
    commit_offsets(view.client, view.link().group_id, offsets, deadline=view.deadline())


def _groups_in(view: LinkView, topics: Collection[str]) -> tuple[str, ...]:
    listed, _ = list_groups(view.client, deadline=view.deadline())
    others = [each for each in listed.values() if not each.group_id.startswith(GROUP_PREFIX)]
    found = read_offsets(view.client, others, {}, deadline=view.deadline()).found
    return tuple(sorted(group for group, offsets in found.items() if any(offset.topic in topics for offset in offsets)))


def _delete(view: LinkView, topics: Collection[str]) -> tuple[str, ...]:
    present = view.client.metadata(sorted(topics), deadline=view.deadline()).topics
    ids = {each.topic_id: name for name, each in present.items() if name in topics}
    for topic_id, outcome in delete_topics(view.client, ids, deadline=view.deadline()).items():
        if not outcome.done:
            raise RefusedError(
                f"the topic cannot be deleted: {outcome.reason}",
                operation=_OPERATION,
                object_name=ids[topic_id],
                hint="this user needs an ACL that allows it to Delete the topic; or delete it by other means",
            )
    return tuple(sorted(ids.values()))
