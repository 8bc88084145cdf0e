"""The topics of an archive: `maxbrod ls`.

Arrow adds up the rows portion by portion, so that millions of segments are listed in seconds and in little memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.recovery import oldest
from maxbrod.archive.runs import RunSummary, gaps_by_topic, is_partial, summarise_run
from maxbrod.archive.selection import Incarnation, newest_ids, select_names
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.catalog.schema import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.archive.archive import AnyCatalog, Archive
    from maxbrod.archive.snapshot_document import Snapshot


_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "end_offset", "kind", "reason"),
    *("bytes", "raw_bytes", "records", "min_timestamp", "max_timestamp", "written_at"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """One incarnation of a topic. Times are milliseconds; None if there is no record."""

    topic: str
    topic_id: str
    newest: bool
    """Whether it is the newest topic of this name."""
    partitions: int
    offsets: int
    records: int
    segments: int
    bytes: int
    raw_bytes: int
    gaps: Mapping[str, int]
    """The number of offsets without data, by reason."""
    min_timestamp: int | None
    max_timestamp: int | None
    written_at: int | None
    """The time of its last row."""
    recovery_point: int | None = None
    """Everything written to it before this can be restored. None: no backup has archived it to its end, or the cluster
    no longer has it."""
    last_seen: str | None = None
    """The run that last saw it, if the cluster no longer has it."""
    generations: tuple[GenerationSummary, ...] = ()
    """Those of a compacted topic that is read in generations, by number; none as of an older run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicListing:
    archive: str
    layout: str
    as_of: str | None
    topics: tuple[TopicSummary, ...]
    runs: int
    last_run: RunSummary | None
    recovery_point: int | None
    """Everything written before this to the listed topics can be restored, as far as the cluster still has them.

    The real point may be later, because a backup that finds nothing new leaves no trace.
    """
    behind: int = 0
    """The number of partitions that the last backup could not archive completely."""
    partial: bool = False
    """Whether topics may have been hidden from the last backup: then there is no recovery point."""
    unreadable_snapshot: str | None = None
    """The newest run with a snapshot, if that cannot be read: recovery points and empty topics are then unknown."""
    faults: int = 0
    """The number of faults in another tool's archive by which records are lost: they are not listed."""


def list_topics(archive: Archive, patterns: Sequence[str] = (), *, as_of: str | None = None) -> TopicListing:
    """Topics by name; also empty ones, if the last backup saw them. UsageError: a pattern matches nothing."""
    runs = archive.catalog.runs()
    moment = find_moment(archive.storage, runs, as_of)
    known = _known_topics(moment.snapshot)
    ids = _matching(archive, moment, known, patterns) if patterns else None
    totals: dict[str, _Totals] = {}
    for rows in archive.catalog.portions(_COLUMNS, topic_ids=ids, as_of=moment.ends, revisions=moment.revisions):
        _add(totals, rows)
    summaries = _summaries(totals, moment, {key: each for key, each in known.items() if ids is None or key in ids})
    if as_of is None:
        generations = summarise_generations(archive.catalog)
        summaries = [replace(summary, generations=generations.get(summary.topic_id, ())) for summary in summaries]
    snapshot = moment.snapshot
    listed = {summary.topic_id for summary in summaries}
    points = {} if snapshot is None else snapshot.recovery_points
    partial = not patterns and is_partial(runs if moment.run is None else runs[: runs.index(moment.run) + 1])
    return TopicListing(
        archive=archive.url,
        layout=archive.layout,
        as_of=moment.as_of,
        topics=tuple(summaries),
        runs=len(runs),
        last_run=summarise_run(runs[-1]) if runs else None,
        recovery_point=None
        if partial
        else oldest(point for each, point in points.items() if each.topic_id in listed or not patterns),
        partial=partial,
        behind=0 if snapshot is None else sum(each.topic_id in listed or not patterns for each in snapshot.behind),
        unreadable_snapshot=moment.run.run_id if moment.run is not None and snapshot is None else None,
        faults=0 if archive.survey is None else sum(fault.fatal for fault in archive.survey.faults),
    )


def _matching(
    archive: Archive, moment: Moment, known: Mapping[str, tuple[str, int]], patterns: Sequence[str]
) -> set[str]:
    """The ids of topics whose names match: of all others, no row is read but for its name."""
    names = {topic_id: name for topic_id, (name, _) in known.items()}
    archived = archive.catalog.topics(as_of=moment.ends, revisions=moment.revisions)
    names |= zip(archived["topic_id"].to_pylist(), archived["topic"].to_pylist(), strict=True)
    chosen = select_names(set(names.values()), patterns)
    return {topic_id for topic_id, name in names.items() if name in chosen}


def _recovery_points(snapshot: Snapshot | None) -> dict[str, int | None]:
    """The recovery point of each topic, by id."""
    found: dict[str, list[int | None]] = {}
    for partition, point in ({} if snapshot is None else snapshot.recovery_points).items():
        found.setdefault(partition.topic_id, []).append(point)
    return {topic_id: oldest(points) for topic_id, points in found.items()}


@dataclass(slots=True)
class _Totals:
    """The sums of one topic's rows."""

    topic: str
    first_written_at: int = 0
    written_at: int | None = None
    """None if the topic has no rows."""
    partitions: int = 0
    offsets: int = 0
    records: int = 0
    segments: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    gaps: Counter[str] = field(default_factory=Counter)
    min_timestamp: int | None = None
    max_timestamp: int | None = None


def _add(totals: dict[str, _Totals], rows: pa.Table) -> None:
    """Add rows of one or more partitions, of each all."""
    partitions, offsets = _extents(rows)
    gaps, segments = gaps_by_topic(rows), _segments(rows)
    for each in _sums(rows).to_pylist():
        topic_id, first, last = each["topic_id"], each["written_at_min"], each["written_at_max"]
        found = totals.setdefault(topic_id, _Totals(each["topic_max"], first, last))
        found.first_written_at = min(found.first_written_at, first)
        found.written_at = last if found.written_at is None else max(found.written_at, last)
        found.partitions += partitions[topic_id]
        found.offsets += offsets[topic_id]
        found.records += each["records_sum"] or 0
        found.segments += segments.get(topic_id, 0)
        found.bytes += each["bytes_sum"] or 0
        found.raw_bytes += each["raw_bytes_sum"] or 0
        found.gaps.update(gaps.get(topic_id, {}))
        lowest, highest = (
            (found.min_timestamp, each["min_timestamp_min"]),
            (found.max_timestamp, each["max_timestamp_max"]),
        )
        found.min_timestamp = min((time for time in lowest if time is not None), default=None)
        found.max_timestamp = max((time for time in highest if time is not None), default=None)


def _summaries(
    totals: Mapping[str, _Totals], moment: Moment, known: Mapping[str, tuple[str, int]]
) -> list[TopicSummary]:
    """`known` are topics in the snapshot, with or without rows."""
    incarnations = [
        Incarnation(topic=each.topic, topic_id=topic_id, first_written_at=each.first_written_at)
        for topic_id, each in totals.items()
    ]
    empty = {topic_id: each for topic_id, each in known.items() if topic_id not in totals}
    incarnations += [Incarnation(topic=topic, topic_id=each, first_written_at=0) for each, (topic, _) in empty.items()]
    newest = newest_ids(incarnations, moment.ranks)
    points = _recovery_points(moment.snapshot)
    found = [
        TopicSummary(
            topic=total.topic,
            topic_id=topic_id,
            newest=topic_id in newest,
            # Partitions without rows are still empty.
            partitions=max(total.partitions, known.get(topic_id, ("", 0))[1]),
            offsets=total.offsets,
            records=total.records,
            segments=total.segments,
            bytes=total.bytes,
            raw_bytes=total.raw_bytes,
            gaps=dict(sorted(total.gaps.items())),
            min_timestamp=total.min_timestamp,
            max_timestamp=total.max_timestamp,
            written_at=total.written_at,
            recovery_point=points.get(topic_id),
            last_seen=moment.lost.get(topic_id),
        )
        for topic_id, total in {**totals, **{each: _Totals(name) for each, (name, _) in empty.items()}}.items()
    ]
    return sorted(found, key=lambda each: (each.topic, not each.newest, -(each.written_at or 0), each.topic_id))


def _sums(rows: pa.Table) -> pa.Table:
    return rows.group_by("topic_id").aggregate(
        [
            *((name, "sum") for name in ("records", "bytes", "raw_bytes")),
            *((name, "min") for name in ("min_timestamp", "written_at")),
            *((name, "max") for name in ("topic", "max_timestamp", "written_at")),
        ]
    )


def _extents(rows: pa.Table) -> tuple[dict[str, int], dict[str, int]]:
    """By topic id: the number of partitions with rows, and of offsets between their first and their end."""
    extents = rows.group_by(["topic_id", "partition"]).aggregate([("base_offset", "min"), ("end_offset", "max")])
    spans = extents.append_column("span", pc.subtract(extents["end_offset_max"], extents["base_offset_min"]))
    sums = spans.group_by("topic_id").aggregate([("span", "sum"), ("span", "count")]).to_pylist()
    counts = {each["topic_id"]: each["span_count"] for each in sums}
    return counts, {each["topic_id"]: each["span_sum"] for each in sums}


def _segments(rows: pa.Table) -> dict[str, int]:
    counts = rows.filter(pc.equal(rows["kind"], Kind.DATA)).group_by("topic_id").aggregate([("kind", "count")])
    return {each["topic_id"]: each["kind_count"] for each in counts.to_pylist()}


def _known_topics(snapshot: Snapshot | None) -> dict[str, tuple[str, int]]:
    """The name and the partition count of each topic in the snapshot, by id."""
    if snapshot is None:
        return {}
    counts = Counter(partition.topic_id for partition in snapshot.ends)
    return {topic_id: (snapshot.topics[topic_id], count) for topic_id, count in counts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSummary:
    """One generation. Times are milliseconds."""

    number: int
    stage: str
    """`building`, `active`, `retired` or `dropped`."""
    began_at: int
    caught_up_at: int | None
    activated_at: int | None
    ended_at: int | None
    why: str | None
    """Why it was dropped."""
    targets: Mapping[int, int]
    """By partition: the offsets below are read afresh."""
    log_ends: Mapping[int, int]
    """By partition: where the log ended when the generation was found complete."""
    read: Mapping[int, int]
    """For a generation under construction, by partition: the offsets below have been read."""


def summarise_generations(catalog: AnyCatalog) -> dict[str, tuple[GenerationSummary, ...]]:
    """By topic id."""
    topics = catalog.generations()
    building = any(topic.building is not None for topic in topics.values())
    read: dict[str, dict[int, int]] = {}
    for partition, held in (catalog.building_positions() if building else {}).items():
        read.setdefault(partition.topic_id, {})[partition.partition] = held.end_offset
    return {
        topic_id: tuple(
            GenerationSummary(
                number=generation.number,
                stage=str(generation.stage),
                began_at=generation.began_at,
                caught_up_at=generation.caught_up_at,
                activated_at=generation.activated_at,
                ended_at=generation.ended_at,
                why=generation.why,
                targets=generation.targets,
                log_ends=generation.log_ends,
                read=read.get(topic_id, {}) if generation is topic.building else {},
            )
            for generation in topic.generations
        )
        for topic_id, topic in topics.items()
    }
