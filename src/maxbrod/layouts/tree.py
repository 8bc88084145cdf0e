"""Trees of segments beside which the tool keeps little, or nothing: what the layouts avro, parquet and binlog share.

What such a layout cannot hold is in one object of ours beside the segments, `maxbrod.json`, which no other tool opens.
A JSON object, every field optional but the first: `version` 1, `layout`, `cluster_id`, `taken_at_ms`, `topics` by name
(`partition_count`, `replication_factor`, `configs`), `groups` by id (topic, partition as text, next offset), `log_ends`
of the source at that time by topic, partition, `offsets` by topic, partition: what segments must hold (`Coverage`).

A lost segment leaves no trace in a tree whose tool keeps no list of its segments. Every publishing therefore records
the offsets that segments hold, and those between two segments that never had a record. Without such a document, or for
offsets before it, only the neighbouring segments give evidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from maxbrod import strict_json
from maxbrod.batch.columns import number_column
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, RefusedError, UnsupportedFormatError, naming
from maxbrod.layouts.foreign import (
    ClusterFacts,
    Doubt,
    Fault,
    ForeignGap,
    ForeignGroup,
    ForeignSegment,
    ForeignTopic,
    Publish,
    Survey,
    WriteOptions,
    by_partition,
    by_topic,
)
from maxbrod.model import INT32_MAX, INT64_MAX, MENDABLE, GapReason, TopicPartition, is_topic_name
from maxbrod.storage.interface import Storage

PATH: Final = "maxbrod.json"
_VERSION: Final = 1

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


class TreeVerdict(NamedTuple):
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
    changed = {}
    for where, found in added.items():
        before = known.get(where, Coverage(folder=""))
        gone = [(hole.base_offset, hole.end_offset) for hole in found if hole.reason != EMPTY]
        never = [(hole.base_offset, hole.end_offset) for hole in found if hole.reason == EMPTY]
        deleted = _merged([*before.deleted, *gone])
        # A document of an earlier version counts deleted offsets as empty.
        empty = _merged(_without([*before.empty, *never], deleted))
        changed[where] = replace(before, empty=empty, deleted=deleted)
    return {**known, **changed}


def without_segments(known: Coverage, going: Iterable[ForeignSegment]) -> Coverage:
    """The coverage once these segments, the oldest of the partition, were deleted on purpose."""
    gone = [_range(segment) for segment in going]
    return replace(known, held=tuple(_without(known.held, gone)), empty=_merged([*known.empty, *gone]))


def judge(found: Iterable[ForeignSegment], known: Mapping[TopicPartition, Coverage]) -> TreeVerdict:
    """Compare the segments of each partition, by offset and without overlaps, with what it must hold."""
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
        # A topic that has offsets without a record within segments has them between segments, too.
        counted = ((segment, segment.records) for segment in held if segment.records is not None)
        likely = max((segment.end_offset - segment.base_offset - records for segment, records in counted), default=0)
        explicable = [hole for hole in doubtful if hole[1] - hole[0] <= likely]
        gaps += [
            ForeignGap(where=where, base_offset=base, end_offset=end, reason="unexplained")
            for base, end in doubtful
            if end - base > likely
        ]
        if explicable:
            doubts.append(_explicable(where, explicable))
    if any(where not in known or _without([_range(held[0])], known[where].held) for where, held in segments.items()):
        doubts.append(_NO_LIST)
    return TreeVerdict(tuple(faults), tuple(gaps), tuple(doubts))


def _range(segment: ForeignSegment) -> Range:
    return segment.base_offset, segment.end_offset


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
        where: Coverage(
            folder=str(stored["folder"]),
            held=_decode_ranges(stored["held"]),
            empty=_decode_ranges(stored["empty"]),
            deleted=_decode_ranges(stored.get("deleted", ())),
        )
        for where, stored in _decode_partitions(topics or {})
    }


def _decode_partitions(topics: Any) -> Iterator[tuple[TopicPartition, Any]]:  # noqa: ANN401 - JSON
    """Yield the values of partitions: the inverse of `by_topic`."""
    for topic, partitions in topics.items():
        for partition, value in partitions.items():
            if not is_topic_name(topic) or not 0 <= int(partition) <= INT32_MAX:
                raise ValueError(f"{topic[:80]!r} has no partition {partition[:20]!r}")
            yield TopicPartition(topic=topic, partition=int(partition)), value


def _decode_ranges(listed: Any) -> tuple[Range, ...]:  # noqa: ANN401 - JSON
    if len(listed) > _RANGES_MAX:
        raise ValueError(f"{len(listed)} ranges of one partition are too many")
    for base, end in listed:
        if type(base) is not int or type(end) is not int or not 0 <= base < end <= INT64_MAX:
            raise ValueError(f"{base!r} to {end!r} are not offsets")
    return _merged((base, end) for base, end in listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    cluster_id: str | None = None
    taken_at_ms: int | None = None
    topics: Mapping[str, ForeignTopic] = field(default_factory=dict)
    groups: tuple[ForeignGroup, ...] = ()
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    coverage: Mapping[TopicPartition, Coverage] = field(default_factory=dict)


def is_published(storage: Storage, layout: str) -> bool:
    """True if the object exists and is of this layout: an archive of empty topics has nothing else."""
    try:
        return bool(strict_json.parse(storage.get(PATH))["layout"] == layout)
    except (ObjectNotFoundError, ValueError, KeyError, TypeError, CorruptDataError):
        return False


def surveyed_facts(storage: Storage, faults: list[Fault]) -> Facts:
    """The facts; if the object is damaged, no facts and a fault."""
    try:
        return read_facts(storage)
    except (CorruptDataError, UnsupportedFormatError) as error:
        faults.append(Fault(path=PATH, message=error.message))
        return Facts()


def read_facts(storage: Storage) -> Facts:
    """CorruptDataError, UnsupportedFormatError: the object is damaged, or of a later version."""
    try:
        text = bytes(storage.get(PATH))
    except ObjectNotFoundError:
        return Facts()
    with naming(storage.name_of(PATH)):
        try:
            return decode_facts(strict_json.parse(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(f"the facts about topics and groups cannot be read: {error}") from error


def decode_facts(document: dict[str, Any]) -> Facts:
    """ValueError, KeyError, TypeError, AttributeError: `encode_facts` has not written this."""
    version = document["version"]
    if version != _VERSION:
        raise UnsupportedFormatError(f"the facts have version {version!r}; version 1 is known")
    topics = {
        name: ForeignTopic(
            name=name,
            partition_count=_number(topic.get("partition_count")),
            replication_factor=_number(topic.get("replication_factor")),
            configs={str(key): str(value) for key, value in topic.get("configs", {}).items()},
        )
        for name, topic in document.get("topics", {}).items()
    }
    cluster_id = document.get("cluster_id")
    return Facts(
        cluster_id=None if cluster_id is None else str(cluster_id),
        taken_at_ms=_number(document.get("taken_at_ms")),
        topics=topics,
        groups=tuple(
            ForeignGroup(group_id=group_id, offsets=_decode_offsets(offsets))
            for group_id, offsets in document.get("groups", {}).items()
        ),
        log_ends=_decode_offsets(document.get("log_ends", {})),
        coverage=decode_coverage(document.get("offsets")),
    )


def _decode_offsets(topics: Any) -> dict[TopicPartition, int]:  # noqa: ANN401 - JSON
    offsets = {}
    for where, value in _decode_partitions(topics):
        offset = _number(value)
        if offset is None:
            raise ValueError("an offset is missing")
        offsets[where] = offset
    return offsets


def _number(value: Any) -> int | None:  # noqa: ANN401 - JSON
    if value is not None and (type(value) is not int or not 0 <= value <= INT64_MAX):
        raise ValueError(f"{value!r} is not a possible number")
    return value


def write_facts(
    storage: Storage, survey: Survey, facts: ClusterFacts, coverage: Mapping[TopicPartition, Coverage]
) -> None:
    """Writes the new facts over the old ones. If the source has no groups at all, the old ones are kept."""
    document = encode_facts(survey, facts, coverage)
    storage.replace(PATH, json.dumps(document, indent=2, ensure_ascii=False).encode())


def encode_facts(survey: Survey, facts: ClusterFacts, coverage: Mapping[TopicPartition, Coverage]) -> dict[str, Any]:
    groups = {group.group_id: by_topic(group.offsets) for group in facts.groups or survey.groups if group.offsets}
    topics = {
        name: {
            "partition_count": topic.partition_count,
            "replication_factor": topic.replication_factor,
            "configs": dict(topic.configs),
        }
        for name, topic in sorted({**survey.topics, **facts.topics}.items())
    }
    return {
        "version": _VERSION,
        "layout": survey.layout,
        "cluster_id": facts.cluster_id or survey.cluster_id,
        "taken_at_ms": facts.taken_at_ms or survey.taken_at_ms,
        "topics": topics,
        "groups": groups,
        "log_ends": by_topic(facts.log_ends),
        "offsets": encode_coverage(coverage),
    }


def publisher(check_options: Callable[[WriteOptions], object], *, levels: int = 0) -> Publish:
    """Return the function that publishes a tree: what is known besides the records, and which offsets segments hold.

    Only this shows that a segment is lost. The segments themselves count as soon as they exist.
    `levels`: the folders between a partition's and its segments.
    """

    def publish(
        storage: Storage, survey: Survey, written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
    ) -> None:
        check_options(options)
        coverage = extended_by(read_facts(storage).coverage, survey, written, facts.gaps, levels=levels)
        write_facts(storage, survey, facts, coverage)

    return publish


def prune_tree(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    """Delete old segments. Before that, the list of what the tree must hold forgets them."""
    known = read_facts(storage).coverage
    gone = by_partition(segment for segment in survey.segments if segment.path in going)
    changed = {where: without_segments(known[where], segments) for where, segments in gone.items() if where in known}
    if changed:
        write_facts(storage, survey, ClusterFacts(), {**known, **changed})
    storage.delete(going)


def survey_tree(
    layout: str,
    segments: Sequence[ForeignSegment],
    facts: Facts,
    faults: Sequence[Fault],
    *,
    topics: Iterable[str],
    doubts: Sequence[Doubt] = (),
    details: Mapping[str, Any] | None = None,
) -> Survey:
    """Return the survey of a tree with these segments, in order and without overlaps, and these facts."""
    verdict = judge(segments, facts.coverage)
    positions = {where: coverage.end_offset for where, coverage in facts.coverage.items()}
    for segment in segments:
        positions[segment.where] = max(positions.get(segment.where, 0), segment.end_offset)
    return Survey(
        layout=layout,
        segments=tuple(segments),
        topics={**{topic: ForeignTopic(name=topic) for topic in topics}, **facts.topics},
        gaps=verdict.gaps,
        groups=facts.groups,
        positions=positions,
        cluster_id=facts.cluster_id,
        taken_at_ms=facts.taken_at_ms,
        faults=(*faults, *verdict.faults),
        doubts=(*verdict.doubts, *doubts),
        details=details or {},
    )


def check_records(
    segment: ForeignSegment, batches: Iterable[pa.RecordBatch], *, first: int | None = None, end: int | None = None
) -> Iterator[Fault]:
    """Yield the faults of a segment that only its records show. `batches` are all of them, as they are read.

    `first`: the offset of its first record, `end`: the offset after its last one; None: any will do.
    """
    records, begin, last = 0, None, segment.base_offset - 1
    try:
        for batch in batches:
            offset = number_column(batch.column("offset"))
            if int(offset[0]) <= last:
                yield Fault(path=segment.path, message="has offsets that do not rise", offset=int(offset[0]))
            begin = int(offset[0]) if begin is None else begin
            records, last = records + len(offset), int(offset[-1])
    except (CorruptDataError, RefusedError, ObjectNotFoundError) as error:
        yield Fault(path=segment.path, message=error.message, offset=max(last + 1, error.offset or 0))
        return
    if records != (records if segment.records is None else segment.records) or (
        (first, end) != (None if first is None else begin, None if end is None else last + 1)
    ):
        message = f"has {records} records from offset {begin} to {last}, which is not what it says of itself"
        yield Fault(path=segment.path, message=message, offset=begin)
