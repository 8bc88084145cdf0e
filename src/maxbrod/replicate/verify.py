"""Verifies links: the digests of the archive's records and of the destination's, over what both have.

Both may go on meanwhile: the ranges end where the destination ended when the verification began. Mirrors have the
source's offsets. In a topic that a link appends to, the link's records name theirs in headers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from maxbrod.compare.plan.pairs import CompareRequest, Match
from maxbrod.compare.run import Comparison
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, UsageError
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.replicate.link import Offsets
from maxbrod.replicate.verify_appended import appended_logs, begun_partitions
from maxbrod.replicate.view import LinkView, MirroredPartition, places_of
from maxbrod.restore.plan.rename import parse_rename
from maxbrod.restore.plan.request import OffsetRange, RestoreRequest, parse_range
from maxbrod.restore.target import log_extents
from maxbrod.work.progress import OnProgress, silent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maxbrod.compare.report import CompareReport
    from maxbrod.config import Config
    from maxbrod.restore.plan.targets import LogExtent
    from maxbrod.work.session import Session

_OPERATION: Final = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """`report` is None if the selected mirrors have no records yet."""

    report: CompareReport | None
    ranges: tuple[OffsetRange, ...]
    """Offsets of the source."""
    uncompared: tuple[OffsetRange, ...] = ()
    """What was asked for, and the mirror or the archive does not have."""

    @property
    def exit_code(self) -> int:
        code = EXIT_DONE if self.report is None else self.report.exit_code
        return code or (EXIT_INCOMPLETE if self.uncompared else EXIT_DONE)


def verify(config: Config, *, session: Session | None = None, on_progress: OnProgress = silent) -> Verification:
    kafka, _ = places_of(config)
    options = config.replicate
    with KafkaClient(kafka) as client:
        view = LinkView(config, client)
        marks, asked = view.marks(), [parse_range(each) for each in options.ranges]
        partitions = view.partitions(view.look(), view.orders())
        present = client.metadata(sorted({partition.where.topic for partition in partitions})).topics
        there = [partition for partition in partitions if partition.where.topic in present]
        there = [each for each in there if each.where.partition in present[each.where.topic].partitions]
        logs = None
        if view.offsets(marks) is Offsets.APPEND:
            known = view.positions(there)
            begun = begun_partitions(there, known)
            ranges = ranges_to_verify(begun, asked)
            logs = appended_logs(client, view, begun, known, ranges)
        else:
            extents = log_extents(client, [each.where for each in there], config.patience)
            ranges = ranges_to_verify([(each, mirrored_extent(each, extents[each.where])) for each in there], asked)
    uncompared = tuple(find_uncompared(asked, ranges))
    if not ranges:
        return Verification(report=None, ranges=(), uncompared=uncompared)
    request = CompareRequest(
        selection=RestoreRequest(
            topics=tuple(sorted({each.where.topic for each in ranges})),
            ranges=() if logs is not None else tuple(ranges),
            rename=parse_rename(options.rename, prefix=options.prefix),
        ),
        match=Match.EXACT if logs is None else Match.AUTO,
        shared=True,
    )
    with Comparison(config, request, brought=logs, session=session, on_progress=on_progress) as work:
        return Verification(report=work.run(), ranges=tuple(ranges), uncompared=uncompared)


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
