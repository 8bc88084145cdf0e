"""One topic in detail, now or as of any run: `maxbrod show`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from maxbrod.archive.selection import Incarnation, incarnations_in, matches_nothing, newest_ids
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.catalog.rows import Gap, Segment, decode_rows
from maxbrod.errors import UsageError
from maxbrod.inspect.extents import PartitionExtent, measure_partitions
from maxbrod.inspect.listing import GenerationSummary, summarise_generations
from maxbrod.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.archive.knowledge import Known
    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.kafka.state.cluster_state import ClusterState

_ROWS_DECODED: Final = 1 << 16
"""Rows take a hundred megabytes as values."""
EVERY: Final = "*"
"""Stands in place of a topic id for all incarnations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGroupOffset:
    """The committed offset of a group. `lag` counts to the archive's end; it is negative if the archive is behind."""

    group_id: str
    type: str
    state: str
    partition: int
    offset: int
    lag: int
    metadata: str | None
    last_known: str | None = None
    """The run that last saw it, if the cluster no longer has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    """One incarnation of a topic."""

    topic: str
    topic_id: str
    newest: bool
    partitions: tuple[PartitionExtent, ...]
    configs: Mapping[str, str | None] | None
    """The settings of the topic itself in the snapshot; None if the snapshot does not have them."""
    groups: tuple[TopicGroupOffset, ...]
    last_seen: str | None = None
    """The run that last saw the topic, if the cluster no longer has it."""
    described_by: str | None = None
    """The run that recorded `configs`, if it is not the snapshot's own."""
    generations: tuple[GenerationSummary, ...] = ()
    """Those of a compacted topic that is read in generations, by number; none as of an older run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    archive: str
    as_of: str | None
    snapshot: str | None
    """The run whose snapshot has configurations and groups; None if none could be read."""
    topics: tuple[TopicDetails, ...]
    """Newest first; more than one only if old incarnations were requested."""


def show_topic(
    archive: Archive,
    topic: str,
    *,
    partition: int | None = None,
    as_of: str | None = None,
    topic_id: str | None = None,
) -> TopicDescription:
    """The newest incarnation of a topic, or that of `topic_id`. UsageError: it does not exist."""
    moment = find_moment(archive.storage, archive.catalog.runs(), as_of)
    snapshot = moment.snapshot
    archived = incarnations_in(archive.catalog.topics(as_of=moment.ends, revisions=moment.revisions))
    born = {each.topic_id: each.first_written_at for each in archived if each.topic == topic}
    empty = _empty_partitions(snapshot, topic)
    known = {*born, *(each.topic_id for each in empty)}
    if not known:
        raise matches_nothing(topic, _names(archived, snapshot))
    incarnations = [Incarnation(topic=topic, topic_id=each, first_written_at=born.get(each, 0)) for each in known]
    (newest,) = newest_ids(incarnations, moment.ranks)
    chosen = _chosen_ids(topic, known, newest, topic_id)
    extents = _measure(
        archive, {each: empty[each] for each in sorted(empty) if each.topic_id in chosen}, chosen, moment
    )
    details = [_details(topic, each, extents, moment, newest=each == newest) for each in chosen]
    if as_of is None:
        generations = summarise_generations(archive.catalog)
        details = [replace(detail, generations=generations.get(detail.topic_id, ())) for detail in details]
    return TopicDescription(
        archive=archive.url,
        as_of=moment.as_of,
        snapshot=None if snapshot is None else snapshot.run_id,
        topics=tuple(details if partition is None else (_only(detail, partition) for detail in details)),
    )


def _empty_partitions(snapshot: Snapshot | None, topic: str) -> dict[PartitionId, list[Segment | Gap]]:
    """The partitions of a topic in the snapshot, each without rows. Some of them may have rows."""
    known = {} if snapshot is None else snapshot.topics
    return {each: [] for each in (() if snapshot is None else snapshot.ends) if known.get(each.topic_id) == topic}


def _measure(
    archive: Archive,
    empty: Mapping[PartitionId, Sequence[Segment | Gap]],
    topic_ids: Collection[str],
    moment: Moment,
) -> dict[PartitionId, PartitionExtent]:
    """The extent of each partition of these topics, measured portion by portion."""
    found: dict[PartitionId, PartitionExtent] = {}

    def measure(partitions: Mapping[PartitionId, Sequence[Segment | Gap]]) -> None:
        extents = measure_partitions(partitions, _ends(partitions, moment))
        found.update(zip(partitions, extents, strict=True))

    measure(empty)
    portions = archive.catalog.portions(
        topic_ids=topic_ids, as_of=moment.ends, revisions=moment.revisions, rows_max=_ROWS_DECODED
    )
    for portion in portions:
        rows: dict[PartitionId, list[Segment | Gap]] = {}
        for row in decode_rows(portion):
            if isinstance(row, (Segment, Gap)):  # it returns no other rows
                rows.setdefault(PartitionId(topic_id=row.topic_id, partition=row.partition), []).append(row)
        measure(rows)
    return dict(sorted(found.items()))


def _chosen_ids(topic: str, known: set[str], newest: str, topic_id: str | None) -> list[str]:
    if topic_id is None:
        return [newest]
    if topic_id == EVERY:
        return [newest, *sorted(known - {newest})]
    if topic_id not in known:
        raise UsageError(f"no topic {topic!r} has the id {topic_id}", hint=f"there are {', '.join(sorted(known))}")
    return [topic_id]


def _details(
    topic: str,
    topic_id: str,
    partitions: Mapping[PartitionId, PartitionExtent],
    moment: Moment,
    *,
    newest: bool,
) -> TopicDetails:
    mine = [extent for each, extent in partitions.items() if each.topic_id == topic_id]
    extents = _with_log_starts(mine, topic_id, moment.snapshot)
    return TopicDetails(
        topic=topic,
        topic_id=topic_id,
        newest=newest,
        partitions=extents,
        configs=_configs(moment.cluster, topic_id),
        groups=() if moment.known is None else tuple(_groups(moment.known, topic, topic_id, extents)),
        last_seen=moment.lost.get(topic_id),
        described_by=moment.topic_runs.get(topic_id),
    )


def _with_log_starts(
    extents: Iterable[PartitionExtent], topic_id: str, snapshot: Snapshot | None
) -> tuple[PartitionExtent, ...]:
    known = {} if snapshot is None else snapshot.log_starts
    return tuple(
        replace(extent, log_start=known.get(PartitionId(topic_id=topic_id, partition=extent.partition)))
        for extent in extents
    )


def _ends(mine: Mapping[PartitionId, Sequence[object]], moment: Moment) -> dict[PartitionId, int]:
    """The ends as of a run, and the ends of partitions without rows."""
    ends = {} if moment.snapshot is None else moment.snapshot.ends
    return {each: ends[each] for each, rows in mine.items() if each in ends and (moment.as_of is not None or not rows)}


def _configs(cluster: ClusterState | None, topic_id: str) -> Mapping[str, str | None] | None:
    topics = () if cluster is None else cluster.topics
    return next((topic.configs for topic in topics if topic.topic_id == topic_id), None)


def _groups(known: Known, topic: str, topic_id: str, extents: Iterable[PartitionExtent]) -> Iterator[TopicGroupOffset]:
    ends = {extent.partition: extent.end_offset for extent in extents}
    for group in known.cluster.groups:
        for committed in group.offsets or ():
            if (committed.topic, committed.topic_id) == (topic, topic_id) and committed.partition in ends:
                yield TopicGroupOffset(
                    group_id=group.group_id,
                    type=group.type,
                    state=group.state,
                    partition=committed.partition,
                    offset=committed.offset,
                    lag=ends[committed.partition] - committed.offset,
                    metadata=committed.metadata,
                    last_known=known.offset_runs.get((group.group_id, topic_id, committed.partition)),
                )


def _only(details: TopicDetails, partition: int) -> TopicDetails:
    chosen = tuple(each for each in details.partitions if each.partition == partition)
    if not chosen:
        raise UsageError(
            f"the topic {details.topic!r} has no partition {partition}",
            hint=f"it has {', '.join(str(each.partition) for each in details.partitions)}",
        )
    groups = tuple(group for group in details.groups if group.partition == partition)
    return replace(details, partitions=chosen, groups=groups)


def _names(archived: Iterable[Incarnation], snapshot: Snapshot | None) -> set[str]:
    return {*(each.topic for each in archived), *(() if snapshot is None else snapshot.topics.values())}
