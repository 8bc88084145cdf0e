"""An archive as the source of a comparison: which of its partitions, and which slices of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from maxbrod.archive.incarnations import Incarnation, newest_ids
from maxbrod.archive.snapshots import find_moment
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.compare.live import choose_match, whole_target
from maxbrod.compare.plan.pairs import Extent, Match, Pair, Times
from maxbrod.compare.plan.parts import PART_BYTES
from maxbrod.compare.restored import named_restore, restored_as, restored_topics
from maxbrod.errors import UsageError
from maxbrod.restore.plan.choosing import choose_incarnations
from maxbrod.restore.plan.columns import SOURCE_COLUMNS
from maxbrod.restore.plan.mapping import decode_map
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.restore.plan.sources import measure_sources, rows_to_read
from maxbrod.restore.plan.targets import count_partitions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.archive.opening import Archive
    from maxbrod.compare.live import LiveCluster
    from maxbrod.compare.plan.pairs import CompareRequest
    from maxbrod.compare.restored import RestoredTopic
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.restore.plan.sources import Source

_OPERATION = "compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPair:
    """A pair, and the slices that its source is read from."""

    pair: Pair
    slices: tuple[Slice, ...] = ()


def pair_archived(archive: Archive, target: LiveCluster, request: CompareRequest) -> list[ArchivedPair]:
    """The archive's topics with those of a cluster, by what the restore that made them says, if one did."""
    if request.restore is not None:
        restored = named_restore(archive, target, request)
        target.look(each.topic.target.name for each in restored)
        return [pair for each in restored for pair in _pair_restored(archive, target, request.selection, each)]
    topics = list(measure_topics(archive, request.selection))
    into = {sources[0].topic: request.selection.rename.apply(sources[0].topic) for sources, _ in topics}
    target.look(into.values())
    known = restored_topics(archive, target) if request.match is Match.AUTO and not request.cuts else []
    found: list[ArchivedPair] = []
    for sources, count in topics:
        restored_topic = restored_as(known, target, sources[0], into[sources[0].topic])
        if restored_topic is not None:
            found += _pair_restored(archive, target, request.selection, restored_topic)
        else:
            found += _pair_topic(archive, target, request, sources, count)
    return found


def measure_topics(archive: Archive, request: RestoreRequest) -> Iterator[tuple[list[Source], int]]:
    """Of each topic that is meant, its partitions, and how many it has in all."""
    moment = find_moment(archive.storage, archive.catalog.runs(), request.as_of)
    revisions = moment.revisions_in(archive.catalog)
    rows = archive.catalog.rows(columns=("topic", "written_at", *SOURCE_COLUMNS), revisions=revisions)
    topics = {} if moment.snapshot is None else dict(moment.snapshot.topics)
    topics |= dict(zip(rows["topic_id"].to_pylist(), rows["topic"].to_pylist(), strict=True))
    written = rows.group_by("topic_id").aggregate([("written_at", "min")]).to_pylist()
    first = {each["topic_id"]: each["written_at_min"] for each in written}
    known = [
        Incarnation(topic=name, topic_id=topic_id, first_written_at=first.get(topic_id, 0))
        for topic_id, name in topics.items()
    ]
    chosen = choose_incarnations(request, topics, newest_ids(known, moment.ranks))
    for error in chosen.wrong:
        raise error
    ends = {} if moment.snapshot is None else moment.snapshot.ends
    sources = measure_sources(rows, request, chosen, ends, as_of=request.as_of is not None, revisions=revisions)
    for partition in sorted(request.partitions - {each.partition for each in sources}):
        raise UsageError(f"no topic that is meant has a partition {partition}", hint="see 'maxbrod ls'")
    if not sources:
        raise UsageError("nothing in the archive is what was asked for", operation=_OPERATION, hint="see 'maxbrod ls'")
    counts: dict[str, int] = {}
    for each in ends:
        counts[each.topic_id] = max(counts.get(each.topic_id, 0), each.partition + 1)
    states = {} if moment.cluster is None else {each.topic_id: each for each in moment.cluster.topics}
    for (_, topic_id), group in groupby(sources, key=lambda each: (each.topic, each.topic_id)):
        mine = list(group)
        yield mine, count_partitions(mine, states.get(topic_id), counts.get(topic_id, 0))


def _pair_restored(
    archive: Archive, target: LiveCluster, request: RestoreRequest, restored: RestoredTopic
) -> Iterator[ArchivedPair]:
    plan, name = restored.plan, restored.topic.target.name
    times = Times(since_ms=plan.since_ms, until_ms=plan.until_ms)
    for each in restored.topic.partitions:
        source = each.source
        if request.partitions and source.partition not in request.partitions:
            continue
        pair = Pair(
            source_topic=source.topic,
            target_topic=name,
            partition=source.partition,
            match=Match.SET,
            source=_extent(source, source.first_offset),
            target=None,
            restored=True,
            notes=_notes(source),
            times=times,
        )
        if not restored.topic.target.repartitioned:
            pair = _placed(pair, target, source, restored.reports[source.partition])
        yield _with_slices(archive, source, pair)
    if restored.topic.target.repartitioned:
        # What stood there before is none of it.
        bases = dict(enumerate(restored.topic.target.bases))
        for pair in whole_target(target, restored.topic.target.source_topic, name, Times(), first=bases):
            yield ArchivedPair(pair=pair)


def _placed(pair: Pair, target: LiveCluster, source: Source, report: Mapping[str, Any]) -> Pair:
    """Where the report says that the records stand."""
    name, number = pair.target_topic, pair.partition
    log, starts = target.log(name, number), None
    if report["offsets"] == OffsetsMode.EXACT:
        first, end, found = source.first_offset, int(report["end"]), None
        starts = None if log is None else (first, log.first)
    else:
        found = decode_map(dict(report["map"]))
        first, end = found.base, found.target_end
    return replace(
        pair,
        match=Match.EXACT if found is None else Match.MAPPED,
        target=target.extent(name, number, first, end),
        offset_map=found,
        log_starts=starts,
        notes=(*pair.notes, *target.notes(name, number, end=end)),
    )


def _pair_topic(
    archive: Archive, target: LiveCluster, request: CompareRequest, sources: Sequence[Source], count: int
) -> Iterator[ArchivedPair]:
    topic = sources[0].topic
    name = request.selection.rename.apply(topic)
    there = target.topic(name)
    match = choose_match(request, topic, count, None if there is None else len(there.partitions))
    times = Times(since_ms=request.selection.since_ms, until_ms=request.selection.until_ms, cut_target=True)
    for source in sources:
        first, end = source.asked_first, source.asked_end
        log = target.log(name, source.partition)
        if match is Match.APPEND and log is not None:
            first, end = log.first, log.stable
        pair = Pair(
            source_topic=topic,
            target_topic=name,
            partition=source.partition,
            match=match,
            source=_extent(source, source.asked_first),
            target=None if match is Match.SET else target.extent(name, source.partition, first, end),
            notes=(*_notes(source), *_target_notes(target, name, source.partition, match, (first, end))),
            times=times,
        )
        yield _with_slices(archive, source, pair)
    if match is Match.SET:
        for pair in whole_target(target, topic, name, times):
            yield ArchivedPair(pair=pair)


def _target_notes(
    target: LiveCluster, name: str, partition: int, match: Match, compared: tuple[int, int]
) -> tuple[str, ...]:
    """Of a topic that is compared as a set, its own partitions are told of elsewhere."""
    if match is Match.SET:
        return ()
    if match is Match.EXACT:
        return target.notes(name, partition, first=compared[0], end=compared[1])
    return target.notes(name, partition)


def _extent(source: Source, first: int) -> Extent:
    return Extent(
        topic=source.topic, topic_id=source.topic_id, partition=source.partition, first=first, end=source.asked_end
    )


def _notes(source: Source) -> tuple[str, ...]:
    lacking = [
        f"the archive lacks offsets {each.first} to {each.end} ({each.reason or 'neither archived nor explained'})"
        for each in source.troubles
    ]
    gaps = [f"{count} offsets are a gap: {reason}" for reason, count in source.gaps.items()]
    return (*lacking, *gaps)


def _with_slices(archive: Archive, source: Source, pair: Pair) -> ArchivedPair:
    rows = archive.catalog.rows(
        topic_id=source.topic_id, partition=source.partition, revisions={source.id: source.revision}
    )
    request = RestoreRequest(since_ms=pair.times.since_ms, until_ms=pair.times.until_ms)
    found = decode_rows(rows_to_read(rows, [source], request))
    slices = tuple(slice_of(row) for row in found if isinstance(row, Segment))
    splits, size = [], 0
    for each in slices:
        if size >= PART_BYTES:
            splits.append(each.base_offset)
            size = 0
        size += each.raw_bytes
    return ArchivedPair(
        pair=replace(pair, splits=tuple(splits), bytes=sum(each.raw_bytes for each in slices)), slices=slices
    )
