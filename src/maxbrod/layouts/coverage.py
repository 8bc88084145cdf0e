"""The offsets that a tree must hold if its tool keeps no list of its segments: what we publish, and the verdict.

A lost segment leaves no trace in such a tree. Every publishing therefore records the offsets that segments hold, and
those between two segments that never had a record. Without such a document, or for offsets before it, only the
neighbouring segments give evidence. Pure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from maxbrod.layouts.documents import INT32_MAX, INT64_MAX, by_topic, is_plain_name
from maxbrod.layouts.foreign import Doubt, Fault, ForeignGap, ForeignSegment, Survey
from maxbrod.model import MENDABLE, GapReason, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


Range: TypeAlias = tuple[int, int]
"""Offsets [first, second)."""

EMPTY: Final = "empty"
"""The reason of a gap that never had a record."""
_RANGES_MAX: Final = 1_000_000
_NO_LIST: Final = Doubt(
    what="nothing lists the segments of this archive: if the first or the last segment of a partition is lost, "
    "this cannot be detected",
    hint="compare it with its topics, or with another copy",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The offsets of one partition, whose segments are in `folder`. Ranges rise and do not touch."""

    folder: str
    held: tuple[Range, ...] = ()
    """Offsets that segments held when they were published."""
    empty: tuple[Range, ...] = ()
    """Offsets between segments that never had a record: markers, aborted records, compaction."""
    deleted: tuple[Range, ...] = ()
    """Offsets that the source had deleted before they were read: their records are lost."""

    @property
    def end_offset(self) -> int:
        return self.held[-1][1] if self.held else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The faults of the segments of a tree as a whole."""

    faults: tuple[Fault, ...]
    gaps: tuple[ForeignGap, ...]
    """Offsets that are lost (`corrupt`, `retention`), and offsets that may be (`unexplained`)."""
    doubts: tuple[Doubt, ...]


def extended(
    known: Coverage,
    present: Iterable[ForeignSegment],
    written: Iterable[ForeignSegment],
    position: int | None,
    lacking: Iterable[Range],
    deleted: Iterable[Range] = (),
) -> Coverage:
    """The coverage after a publishing. `position`: where the writer continued; None: the partition is new.

    A hole counts as empty only if the writer itself read what is in between, and nothing of it was `lacking` or
    `deleted`.
    """
    gone = _merged([*known.deleted, *deleted])
    added = sorted(map(_range, written))
    reached = [] if position is None else [(position, position)]
    holes = _without([(end, base) for (_, end), (base, _) in pairwise([*reached, *added])], [*lacking, *gone])
    held = _merged([*known.held, *map(_range, present), *added])
    return replace(known, held=held, empty=_merged([*known.empty, *holes]), deleted=gone)


def extended_by(
    known: Mapping[TopicPartition, Coverage],
    survey: Survey,
    written: Sequence[ForeignSegment],
    gaps: Iterable[ForeignGap],
    *,
    levels: int = 0,
) -> dict[TopicPartition, Coverage]:
    """The coverage of every partition after a publishing. The writers have used `survey`.

    `gaps`: offsets that the source lacks without a good reason, or has deleted, do not count as empty.
    `levels`: the folders between that of a partition and its segments.
    """
    lacking: dict[TopicPartition, list[Range]] = {}
    deleted: dict[TopicPartition, list[Range]] = {}
    for gap in gaps:
        if gap.reason in MENDABLE:
            lacking.setdefault(gap.where, []).append((gap.base_offset, gap.end_offset))
        elif gap.reason == GapReason.RETENTION:
            deleted.setdefault(gap.where, []).append((gap.base_offset, gap.end_offset))
    present, added = by_partition(survey.segments), by_partition(written)
    folders = {segment.where: segment.path.rsplit("/", 1 + levels)[0] for segment in (*survey.segments, *written)}
    return dict(known) | {
        where: extended(
            known.get(where, Coverage(folder=folder)),
            present.get(where, ()),
            added.get(where, ()),
            survey.positions.get(where),
            lacking.get(where, ()),
            deleted.get(where, ()),
        )
        for where, folder in folders.items()
    }


def with_holes(known: Mapping[TopicPartition, Coverage], holes: Iterable[ForeignGap]) -> dict[TopicPartition, Coverage]:
    """The coverage if these offsets, too, never had a record (`EMPTY`), or were deleted by the source."""
    added: dict[TopicPartition, list[ForeignGap]] = {}
    for hole in holes:
        added.setdefault(hole.where, []).append(hole)
    return dict(known) | {
        where: _with_holes(known.get(where, Coverage(folder="")), found) for where, found in added.items()
    }


def _with_holes(known: Coverage, holes: Sequence[ForeignGap]) -> Coverage:
    gone = [(hole.base_offset, hole.end_offset) for hole in holes if hole.reason != EMPTY]
    never = [(hole.base_offset, hole.end_offset) for hole in holes if hole.reason == EMPTY]
    deleted = _merged([*known.deleted, *gone])
    # A document of an earlier version counts deleted offsets as empty.
    empty = _merged(_without([*known.empty, *never], deleted))
    return replace(known, empty=empty, deleted=deleted)


def without_segments(known: Coverage, going: Iterable[ForeignSegment]) -> Coverage:
    """The coverage once these segments, the oldest of the partition, were deleted on purpose."""
    gone = [_range(segment) for segment in going]
    return replace(known, held=tuple(_without(known.held, gone)), empty=_merged([*known.empty, *gone]))


def by_partition(segments: Iterable[ForeignSegment]) -> dict[TopicPartition, list[ForeignSegment]]:
    grouped: dict[TopicPartition, list[ForeignSegment]] = {}
    for segment in segments:
        grouped.setdefault(segment.where, []).append(segment)
    return grouped


def judge(
    found: Iterable[ForeignSegment],
    known: Mapping[TopicPartition, Coverage],
) -> Verdict:
    """`found` has the segments of each partition by offset, without overlaps."""
    segments = by_partition(found)
    faults: list[Fault] = []
    gaps: list[ForeignGap] = []
    doubts: list[Doubt] = []
    for where in sorted({*segments, *known}):
        held, coverage = segments.get(where, ()), known.get(where, Coverage(folder=""))
        present = [_range(segment) for segment in held]
        lost = _without(coverage.held, present)
        for base, end in lost:
            message = f"no sound segment has the offsets {base} to {end - 1} any more, which were archived"
            faults.append(Fault(path=coverage.folder, message=message, offset=base))
            gaps.append(ForeignGap(where=where, base_offset=base, end_offset=end, reason="corrupt"))
        holes = [(before[1], after[0]) for before, after in pairwise(present) if before[1] < after[0]]
        holes = _without(holes, lost)
        explained = _without(holes, coverage.deleted)
        gaps += [
            ForeignGap(where=where, base_offset=base, end_offset=end, reason=GapReason.RETENTION)
            for base, end in _without(holes, explained)
        ]
        doubtful = _without(explained, coverage.empty)
        likely = max((_lacking(segment) for segment in held), default=0)
        explicable = [hole for hole in doubtful if hole[1] - hole[0] <= likely]
        gaps += [
            ForeignGap(where=where, base_offset=base, end_offset=end, reason="unexplained")
            for base, end in doubtful
            if end - base > likely
        ]
        if explicable:
            doubts.append(_explicable(where, explicable))
    if any(not _listed(held, known.get(where)) for where, held in segments.items()):
        doubts.append(_NO_LIST)
    return Verdict(faults=tuple(faults), gaps=tuple(gaps), doubts=tuple(doubts))


def _range(segment: ForeignSegment) -> Range:
    return segment.base_offset, segment.end_offset


def _lacking(segment: ForeignSegment) -> int:
    """The number of its own offsets without a record. A topic that has holes has them between segments, too."""
    return 0 if segment.records is None else segment.end_offset - segment.base_offset - segment.records


def _listed(held: Sequence[ForeignSegment], coverage: Coverage | None) -> bool:
    return not held or (coverage is not None and not _without([_range(held[0])], coverage.held))


def _explicable(where: TopicPartition, holes: Sequence[Range]) -> Doubt:
    base, end = holes[0]
    more = f", and at {len(holes) - 1} more places" if len(holes) > 1 else ""
    return Doubt(
        what=f"no segment has the offsets {base} to {end - 1}{more}: segments beside them lack as many, so that the "
        "topic may never have had them; whether a segment is lost cannot be detected",
        topic=where.topic,
        partition=where.partition,
    )


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    merged: list[Range] = []
    for base, end in sorted(ranges):
        if base >= end:
            continue
        if merged and base <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((base, end))
    return tuple(merged)


def _without(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """The parts of `ranges` that none of the others covers."""
    left: list[Range] = []
    covered, at = _merged(others), 0
    for base, end in _merged(ranges):
        reached = base
        while at < len(covered) and covered[at][1] <= reached:
            at += 1
        here = at
        while here < len(covered) and covered[here][0] < end:
            if covered[here][0] > reached:
                left.append((reached, covered[here][0]))
            reached = max(reached, covered[here][1])
            here += 1
        if reached < end:
            left.append((reached, end))
    return left


def encode_coverage(coverage: Mapping[TopicPartition, Coverage]) -> dict[str, dict[str, dict[str, Any]]]:
    """As JSON: by topic, then by partition as text."""
    return by_topic({where: asdict(ranges) for where, ranges in coverage.items()})


def decode_coverage(topics: Any) -> dict[TopicPartition, Coverage]:  # noqa: ANN401 - JSON
    """KeyError, ValueError, TypeError, AttributeError: `encode_coverage` has not written this."""
    return {
        _decode_partition(topic, partition): Coverage(
            folder=str(stored["folder"]),
            held=_decode_ranges(stored["held"]),
            empty=_decode_ranges(stored["empty"]),
            deleted=_decode_ranges(stored.get("deleted", ())),
        )
        for topic, partitions in (topics or {}).items()
        for partition, stored in partitions.items()
    }


def _decode_partition(topic: str, partition: str) -> TopicPartition:
    if not is_plain_name(topic) or not 0 <= int(partition) <= INT32_MAX:
        raise ValueError(f"{topic[:80]!r} has no partition {partition[:20]!r}")
    return TopicPartition(topic=topic, partition=int(partition))


def _decode_ranges(listed: Any) -> tuple[Range, ...]:  # noqa: ANN401 - JSON
    if len(listed) > _RANGES_MAX:
        raise ValueError(f"{len(listed)} ranges of one partition are too many")
    for base, end in listed:
        if type(base) is not int or type(end) is not int or not 0 <= base < end <= INT64_MAX:
            raise ValueError(f"{base!r} to {end!r} are not offsets")
    return _merged((base, end) for base, end in listed)
