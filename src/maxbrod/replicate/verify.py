"""Verifies links: the digests of the archive's records and of the destination's, over what both have.

Both may go on meanwhile: the ranges end where the destination ended when the verification began. Mirrors have the
source's offsets. In a topic that a link appends to, the link's records name theirs in headers. A mark and the
records that it vouches for are one transaction: everything between the offset that the link has begun with and that of
its mark must be there, once and in order, unless the topic's own retention has deleted it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from maxbrod.archive.renames import parse_rename
from maxbrod.compare.archived import BroughtLog
from maxbrod.compare.plan import BroughtRecords, ComparedRange, CompareRequest, Match
from maxbrod.compare.report import CompareReport
from maxbrod.compare.run import Comparison
from maxbrod.config import Config
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, RefusedError, UnavailableError, UsageError
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, list_offsets
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition, topic_id_of
from maxbrod.replicate.ingress.positions import first_brought
from maxbrod.replicate.link import AppendPlace, LinkMark, Offsets, PositionKey, State, been_there
from maxbrod.replicate.status import existing
from maxbrod.replicate.view import LinkView, MirroredPartition, open_link
from maxbrod.restore.plan.request import OffsetRange, RestoreRequest, parse_range
from maxbrod.restore.plan.targets import LogExtent
from maxbrod.restore.target import log_extents
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.report import Report
from maxbrod.work.session import Session
from maxbrod.work.work import Work

_OPERATION: Final = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(Report):
    """`report` is None if the selected mirrors have no records yet."""

    report: CompareReport | None
    ranges: tuple[OffsetRange, ...]
    """Offsets of the source."""
    uncompared: tuple[OffsetRange, ...] = ()
    """Ranges that were asked for, and that the mirror or the archive does not have."""
    unmatched: tuple[str, ...] = ()
    """Names and patterns of topics that the archive does not have."""

    @property
    def exit_code(self) -> int:
        code = EXIT_DONE if self.report is None else self.report.exit_code
        return code or (EXIT_INCOMPLETE if self.uncompared or self.unmatched else EXIT_DONE)

    def as_dict(self) -> dict[str, Any]:
        compared = {"partitions": []} if self.report is None else self.report.as_dict()
        uncompared = [{**asdict(each.where), "first": each.first, "end": each.end} for each in self.uncompared]
        lacking = {"uncompared": uncompared, "unmatched": list(self.unmatched)}
        return {**compared, **lacking, "exit_code": self.exit_code}


def verify(config: Config, *, session: Session | None = None, on_progress: OnProgress = silent) -> Verification:
    options = config.replicate
    with open_link(config) as view:
        asked = [parse_range(each) for each in options.ranges]
        partitions = view.partitions(view.look(), view.orders())
        present = existing(view.client, partitions)
        there = [partition for partition in partitions if partition.where in present]
        offsets, marks = view.marks_of(there)
        logs = None
        if offsets is Offsets.APPEND:
            begun = begun_partitions(there, marks)
            ranges = ranges_to_verify(begun, asked)
            logs = appended_logs(view, begun, marks, ranges)
        else:
            extents = log_extents(view.client, [each.where for each in there], config.patience)
            ranges = ranges_to_verify([(each, mirrored_extent(each, extents[each.where])) for each in there], asked)
        unmatched = tuple(view.unmatched)
    uncompared = tuple(find_uncompared(asked, ranges))
    if not ranges:
        return Verification(report=None, ranges=(), uncompared=uncompared, unmatched=unmatched)
    request = CompareRequest(
        selection=RestoreRequest(
            topics=tuple(sorted({each.where.topic for each in ranges})),
            ranges=() if logs is not None else tuple(ranges),
            rename=parse_rename(options.rename, prefix=options.prefix),
        ),
        match=Match.EXACT if logs is None else Match.AUTO,
        shared=True,
    )
    with (
        Work(config, session=session, on_progress=on_progress) as work,
        Comparison(work, request, brought=logs) as comparison,
    ):
        report = comparison.run()
    return Verification(report=report, ranges=tuple(ranges), uncompared=uncompared, unmatched=unmatched)


def mirrored_extent(each: MirroredPartition, log: LogExtent) -> LogExtent:
    """The part of a log that the link has written: what follows in a promoted mirror is its producers' own."""
    return log if each.promoted_end is None else replace(log, end=min(log.end, each.promoted_end))


def ranges_to_verify(
    partitions: Sequence[tuple[MirroredPartition, LogExtent]], asked: Sequence[OffsetRange]
) -> list[OffsetRange]:
    """The offsets of source partitions that archive and destination both have; of those only the ones `asked` for.

    `partitions` come with the source offsets that the destination has. UsageError: a partition that is asked for is not
    mirrored.
    """
    found = {
        each.source_where: (max(extent.start, each.extent.first), min(extent.end, each.extent.end))
        for each, extent in partitions
    }
    seen = set()
    for wanted in asked:
        if wanted.where not in found:
            raise UsageError(f"{wanted.where} is not mirrored", operation=_OPERATION, hint="see 'replicate status'")
        if wanted.where in seen:
            message, hint = f"two ranges are given for {wanted.where}", "verify them one after the other"
            raise UsageError(message, operation=_OPERATION, hint=hint)
        seen.add(wanted.where)
        first, end = found[wanted.where]
        first = first if wanted.first is None else max(first, wanted.first)
        found[wanted.where] = (first, end if wanted.end is None else min(end, wanted.end))
    named = {each.where for each in asked} or found.keys()
    return [
        OffsetRange(where=where, first=first, end=end)
        for where, (first, end) in sorted(found.items())
        if where in named and first < end
    ]


def find_uncompared(asked: Sequence[OffsetRange], compared: Sequence[OffsetRange]) -> Iterator[OffsetRange]:
    """The parts of the given ranges that are not among the compared ones."""
    done = {each.where: (each.first or 0, each.end or 0) for each in compared}
    for each in asked:
        first, end = done.get(each.where, (each.first or 0, each.first or 0))
        if each.first is not None and each.first < first:
            yield OffsetRange(where=each.where, first=each.first, end=first)
        if each.end is not None and max(end, each.first or 0) < each.end:
            yield OffsetRange(where=each.where, first=max(end, each.first or 0), end=each.end)


def begun_partitions(
    partitions: Sequence[MirroredPartition], marks: Mapping[PositionKey, LinkMark]
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
    view: LinkView,
    partitions: Sequence[tuple[MirroredPartition, LogExtent]],
    marks: Mapping[PositionKey, LinkMark],
    ranges: Sequence[OffsetRange],
) -> dict[TopicPartition, BroughtLog]:
    """Return the ranges to read at the destination for each range of a source partition, by source partition."""
    wanted = {each.where: (each.first or 0, each.end or 0) for each in ranges}
    client, chosen = view.client, [each for each, _ in partitions if each.source_where in wanted]
    starts = list_offsets(client, dict.fromkeys([each.where for each in chosen], EARLIEST), deadline=view.deadline())
    ends = dict.fromkeys((each.where for each in chosen), 0)
    for each in chosen:
        ends[each.where] = max(ends[each.where], _place(marks, each).end)
    retry(lambda limit: _wait_for(client, ends, limit), deadline=view.deadline(), what="transactions to be decided")
    ids, here, found = view.topic_ids(chosen), view.here(), {}
    for each in chosen:
        where, place, (first, end) = each.where, _place(marks, each), wanted[each.source_where]
        if ids[where.topic] != place.topic_id:
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
            target=ComparedRange(
                topic=where.topic,
                topic_id=place.topic_id,
                partition=where.partition,
                first=start,
                end=max(start, ends[where]),
            ),
            brought=BroughtRecords(restore_id=restore_id, left_out=been_there(here, where.topic), first=first, end=end),
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


def _place(marks: Mapping[PositionKey, LinkMark], each: MirroredPartition) -> AppendPlace:
    place = marks[each.key].append
    if place is None:
        raise AssertionError("only partitions that the link appends to")
    return place
