"""The topics of an archive: `maxbrod ls`.

Arrow adds up the rows portion by portion, so that millions of segments are listed in seconds and in little memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.runs import RunSummary, gaps_by_topic, is_partial, summarise_run
from maxbrod.archive.selection import Incarnation, newest_ids, select_names
from maxbrod.archive.snapshots import Moment, find_moment, oldest
from maxbrod.catalog.schema import Kind

if TYPE_CHECKING:
    from maxbrod.archive.archive import AnyCatalog, Archive
    from maxbrod.archive.look import ArchiveLook


_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "end_offset", "kind", "reason"),
    *("bytes", "raw_bytes", "records", "min_timestamp", "max_timestamp", "written_at"),
)
_SUMS: Final = (
    *((name, "sum") for name in ("records", "segments", "bytes", "raw_bytes")),
    *((name, "min") for name in ("base_offset", "min_timestamp", "written_at")),
    *((name, "max") for name in ("topic", "end_offset", "max_timestamp", "written_at")),
)
_GENERATION_FIELDS: Final = (
    *("number", "began_at", "caught_up_at", "activated_at", "ended_at", "why", "targets", "log_ends"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """One incarnation of a topic. Times are milliseconds; None if there is no record."""

    topic: str
    topic_id: str
    newest: bool
    """True if it is the newest topic of this name."""
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
    """True if topics may have been hidden from the last backup: then there is no recovery point."""
    unreadable_snapshot: str | None = None
    """The newest run with a snapshot, if that cannot be read: recovery points and empty topics are then unknown."""
    faults: int = 0
    """The number of faults in another tool's archive by which records are lost: they are not listed."""


def list_topics(
    archive: Archive, patterns: Sequence[str] = (), *, as_of: str | None = None, look: ArchiveLook | None = None
) -> TopicListing:
    """Topics by name; also empty ones, if the last backup saw them. UsageError: a pattern matches nothing.

    `look`: a look at the archive as of the same run, if there has been one.
    """
    runs = archive.catalog.runs() if look is None else look.runs
    moment = find_moment(archive.storage, runs, as_of) if look is None else look.moment
    snapshot = moment.snapshot
    # Those of the snapshot, with or without rows.
    known = Counter(partition.topic_id for partition in (() if snapshot is None else snapshot.ends))
    names = {} if snapshot is None else {topic_id: snapshot.topics[topic_id] for topic_id in known}
    ids = None
    if patterns:
        # Of all other topics, no row is read but for its name.
        archived = archive.catalog.topics(as_of=moment.ends, revisions=moment.revisions)
        every = names | dict(zip(archived["topic_id"].to_pylist(), archived["topic"].to_pylist(), strict=True))
        chosen = select_names(set(every.values()), patterns)
        ids = {topic_id for topic_id, name in every.items() if name in chosen}
        names = {topic_id: name for topic_id, name in names.items() if topic_id in ids}
    gaps: dict[str, Counter[str]] = {}
    parts = []
    for rows in archive.catalog.portions(_COLUMNS, topic_ids=ids, as_of=moment.ends, revisions=moment.revisions):
        parts.append(_by_partition(rows))
        for topic_id, reasons in gaps_by_topic(rows).items():
            gaps.setdefault(topic_id, Counter()).update(reasons)
    totals = {total["topic_id"]: total for total in _by_topic(parts)}
    names |= {topic_id: total["topic_max_max"] for topic_id, total in totals.items()}
    summaries = _summaries(archive, moment, names, known, totals, gaps, with_generations=as_of is None)
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
        else oldest(point for place, point in points.items() if place.topic_id in names or not patterns),
        partial=partial,
        behind=0 if snapshot is None else sum(place.topic_id in names or not patterns for place in snapshot.behind),
        unreadable_snapshot=moment.run.run_id if moment.run is not None and snapshot is None else None,
        faults=0 if archive.survey is None else sum(fault.fatal for fault in archive.survey.faults),
    )


def _by_partition(rows: pa.Table) -> pa.Table:
    """One row for each partition. All rows of a partition are in the same portion."""
    segments = pc.equal(rows["kind"], Kind.DATA).cast(pa.int64())
    found = rows.append_column("segments", segments).group_by(["topic_id", "partition"]).aggregate(_SUMS)
    return found.append_column("offsets", pc.subtract(found["end_offset_max"], found["base_offset_min"]))


def _by_topic(parts: Sequence[pa.Table]) -> list[dict[str, Any]]:
    if not parts:
        return []
    sums = [(f"{name}_{how}", how) for name, how in _SUMS]
    topics = pa.concat_tables(parts).group_by("topic_id").aggregate([*sums, ("offsets", "sum"), ("offsets", "count")])
    return list(topics.to_pylist())


def _summaries(
    archive: Archive,
    moment: Moment,
    names: Mapping[str, str],
    known: Mapping[str, int],
    totals: Mapping[str, Mapping[str, Any]],
    gaps: Mapping[str, Mapping[str, int]],
    *,
    with_generations: bool,
) -> list[TopicSummary]:
    """The topics of `names`. `known` has the number of partitions of each topic in the snapshot."""
    firsts = {topic_id: total["written_at_min_min"] for topic_id, total in totals.items()}
    newest = newest_ids(
        [
            Incarnation(topic=name, topic_id=topic_id, first_written_at=firsts.get(topic_id, 0))
            for topic_id, name in names.items()
        ],
        moment.ranks,
    )
    points: dict[str, list[int | None]] = {}
    for partition, point in ({} if moment.snapshot is None else moment.snapshot.recovery_points).items():
        points.setdefault(partition.topic_id, []).append(point)
    generations = summarise_generations(archive.catalog) if with_generations else {}
    found = []
    for topic_id, name in names.items():
        total = totals.get(topic_id, {})
        sums = {name: total.get(f"{name}_sum_sum") or 0 for name in ("records", "segments", "bytes", "raw_bytes")}
        found.append(
            TopicSummary(
                topic=name,
                topic_id=topic_id,
                newest=topic_id in newest,
                # Partitions without rows are still empty.
                partitions=max(total.get("offsets_count", 0), known.get(topic_id, 0)),
                offsets=total.get("offsets_sum", 0),
                **sums,
                gaps=dict(sorted(gaps.get(topic_id, {}).items())),
                min_timestamp=total.get("min_timestamp_min_min"),
                max_timestamp=total.get("max_timestamp_max_max"),
                written_at=total.get("written_at_max_max"),
                recovery_point=oldest(points[topic_id]) if topic_id in points else None,
                last_seen=moment.lost.get(topic_id),
                generations=generations.get(topic_id, ()),
            )
        )
    return sorted(
        found, key=lambda summary: (summary.topic, not summary.newest, -(summary.written_at or 0), summary.topic_id)
    )


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
    """The reason why it was dropped."""
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
                **{name: getattr(generation, name) for name in _GENERATION_FIELDS},
                stage=str(generation.stage),
                read=read.get(topic_id, {}) if generation is topic.building else {},
            )
            for generation in topic.generations
        )
        for topic_id, topic in topics.items()
    }
