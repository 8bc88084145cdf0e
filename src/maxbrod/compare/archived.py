"""An archive as the source of a comparison: its partitions, their slices, and the restore that made a target topic.

The restore is found by the id of the target topic, or named. Its plan and report say where each record is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from maxbrod.archive.archive import Archive
from maxbrod.archive.selection import matches_nothing, select_topics
from maxbrod.batch.schema_ids import SchemaIdMap
from maxbrod.catalog.rows import Segment, decode_rows
from maxbrod.catalog.schema import SORT_ORDER
from maxbrod.compare.live import LiveCluster, choose_match, whole_target
from maxbrod.compare.plan import (
    BY_OFFSET,
    PART_BYTES,
    BroughtRecords,
    ComparedRange,
    CompareRequest,
    Match,
    Pair,
    Times,
)
from maxbrod.errors import RefusedError, UsageError
from maxbrod.groups.movement import find_restore
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import INT64_MAX, GapReason, PartitionId, TopicPartition
from maxbrod.registry.remap import map_for
from maxbrod.restore.archived import look_at_archive
from maxbrod.restore.plan.mapping import decode_map
from maxbrod.restore.plan.plan import RestorePlan, TopicPlan
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.restore.plan.sources import Source, measure_sources, rows_to_read
from maxbrod.restore.plan.targets import group_by_topic
from maxbrod.restore.state import finished_restores, read_restore, read_schema_map, read_topics

_OPERATION = "compare"
_ERASED = "records that were erased from the archive are left out of both sides"


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtLog:
    """A partition that a link has appended to, and what it has appended."""

    target: ComparedRange
    brought: BroughtRecords
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTopic:
    """One topic of a finished restore."""

    plan: RestorePlan
    topic: TopicPlan
    target_id: str | None
    reports: Mapping[int, Mapping[str, Any]]
    """By partition."""
    schema_ids: SchemaIdMap | None = None
    """The map by which the restore has exchanged schema ids."""


def pair_archived(archive: Archive, target: LiveCluster, request: CompareRequest) -> list[Pair]:
    """Pair the archive's topics with those of a cluster, as the restore that made them says, if one did."""
    if request.restore is not None:
        restored = _named_restore(archive, target, request)
        target.look(finished.topic.target.name for finished in restored)
        return [pair for finished in restored for pair in _pair_restored(archive, target, request.selection, finished)]
    topics = list(measure_topics(archive, request.selection, shared=request.shared))
    into = {sources[0].topic: request.selection.rename.apply(sources[0].topic) for sources, _ in topics}
    target.look(into.values())
    known = _restored_topics(archive, target)
    found: list[Pair] = []
    for sources, count in topics:
        automatic = request.match is Match.AUTO and not request.cuts
        remapped = [finished for finished in known if automatic or finished.schema_ids is not None]
        restored_topic = _restored_as(remapped, target, sources[0], into[sources[0].topic])
        if automatic and restored_topic is not None:
            found += _pair_restored(archive, target, request.selection, restored_topic)
        else:
            ids = None if restored_topic is None else restored_topic.schema_ids
            pairs = _pair_topic(archive, target, request, sources, count)
            found += (replace(pair, schema_ids=ids) for pair in pairs)
    return found


def pair_brought(archive: Archive, request: RestoreRequest, logs: Mapping[TopicPartition, BroughtLog]) -> list[Pair]:
    """Pair source partitions with what a link has appended of them."""
    found = []
    for source in (source for sources, _ in measure_topics(archive, request) for source in sources):
        log = logs.get(TopicPartition(topic=source.topic, partition=source.partition))
        if log is not None:
            pair = Pair(
                source_topic=source.topic,
                target_topic=log.target.topic,
                partition=source.partition,
                match=Match.BROUGHT,
                source=_extent(source, source.asked_first).clipped(log.brought.first, log.brought.end),
                target=log.target,
                brought=log.brought,
                notes=(*_notes(source), *log.notes),
            )
            found.append(_with_slices(archive, source, pair))
    return found


def measure_topics(
    archive: Archive, request: RestoreRequest, *, shared: bool = False
) -> Iterator[tuple[list[Source], int]]:
    """The chosen partitions of each selected topic, and how many partitions the topic has in all.

    `shared`: see `CompareRequest`.
    """
    archived = look_at_archive(archive, request, needed=False)
    for error in archived.chosen.wrong:
        raise error
    sources = measure_sources(
        archived.rows.portions(),
        request,
        archived.chosen,
        archived.ends,
        as_of=request.as_of is not None,
        revisions=archived.revisions,
        had=None if shared else archived.had,
    )
    for partition in sorted(request.partitions - {source.partition for source in sources}):
        raise UsageError(f"no selected topic has a partition {partition}", hint="see 'maxbrod ls'")
    if not sources:
        raise UsageError(
            "the archive holds nothing that matches the selection", operation=_OPERATION, hint="see 'maxbrod ls'"
        )
    for mine, _, count in group_by_topic(sources, archived.ends, archived.moment.cluster):
        yield mine, count


def _pair_restored(
    archive: Archive, target: LiveCluster, request: RestoreRequest, restored: FinishedTopic
) -> Iterator[Pair]:
    plan, name = restored.plan, restored.topic.target.name
    times = Times(since_ms=plan.since_ms, until_ms=plan.until_ms)
    for partition in restored.topic.partitions:
        source = partition.source
        if request.partitions and source.partition not in request.partitions:
            continue
        pair = Pair(
            source_topic=source.topic,
            target_topic=name,
            partition=source.partition,
            match=Match.SET,
            source=_extent(source, source.first_offset),
            target=None,
            notes=(*_notes(source), *_mapped_notes(restored)),
            times=times,
            schema_ids=restored.schema_ids,
        )
        if not restored.topic.target.repartitioned:
            pair = _placed(pair, target, source, restored.reports[source.partition])
        yield _with_slices(archive, source, pair)
    if restored.topic.target.repartitioned:
        # Records that were in the topic before the restore are not part of it.
        bases = dict(enumerate(restored.topic.target.bases))
        yield from whole_target(target, restored.topic.target.source_topic, name, Times(), first=bases)


def _placed(pair: Pair, target: LiveCluster, source: Source, report: Mapping[str, Any]) -> Pair:
    """The pair with the offsets at which the report says the records are."""
    name, number = pair.target_topic, pair.partition
    log, starts = target.log(name, number), None
    if report["offsets"] == OffsetsMode.EXACT:
        first, end, found = source.first_offset, int(report["end"]), None
        starts = None if log is None else (first, log.log_start)
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
) -> Iterator[Pair]:
    topic = sources[0].topic
    name = request.selection.rename.apply(topic)
    there = target.topic(name)
    match = choose_match(request, topic, count, None if there is None else len(there.partitions))
    times = Times(since_ms=request.selection.since_ms, until_ms=request.selection.until_ms, cut_target=True)
    for source in sources:
        # The target may still have what was pruned from the start of the archive, unless that is asked for.
        missed = any(trouble.reason is GapReason.PRUNED for trouble in source.troubles)
        asked_first = source.first_offset if GapReason.PRUNED in source.gaps and not missed else source.asked_first
        first, end = asked_first, source.asked_end
        log = target.log(name, source.partition)
        if match is Match.APPEND and log is not None:
            first, end = log.log_start, log.stable
        pair = Pair(
            source_topic=topic,
            target_topic=name,
            partition=source.partition,
            match=match,
            source=_extent(source, asked_first),
            target=None if match is Match.SET else target.extent(name, source.partition, first, end),
            notes=(*_notes(source), *_target_notes(target, name, source.partition, match, (first, end))),
            times=times,
        )
        yield _with_slices(archive, source, pair)
    if match is Match.SET:
        yield from whole_target(target, topic, name, times)


def _target_notes(
    target: LiveCluster, name: str, partition: int, match: Match, compared: tuple[int, int]
) -> tuple[str, ...]:
    """Notes about the target's log. For a set, `whole_target` adds those of the target's own partitions."""
    if match is Match.SET:
        return ()
    if match is Match.EXACT:
        return target.notes(name, partition, first=compared[0], end=compared[1])
    return target.notes(name, partition)


def _extent(source: Source, first: int) -> ComparedRange:
    return ComparedRange(
        topic=source.topic, topic_id=source.topic_id, partition=source.partition, first=first, end=source.asked_end
    )


def _notes(source: Source) -> tuple[str, ...]:
    lacking = [
        f"the archive lacks offsets {trouble.first} to {trouble.end} "
        f"({trouble.reason or 'neither archived nor explained'})"
        for trouble in source.troubles
    ]
    gaps = [f"{count} offsets are a gap: {reason}" for reason, count in source.gaps.items()]
    return (*lacking, *gaps)


def _with_slices(archive: Archive, source: Source, pair: Pair) -> Pair:
    rows = archive.catalog.rows(
        topic_id=source.topic_id, partition=source.partition, revisions={source.id: source.revision}
    )
    request = RestoreRequest(since_ms=pair.times.since_ms, until_ms=pair.times.until_ms)
    found = decode_rows(rows_to_read(rows, [source], request))
    erasures = archive.erasures()
    same_offsets = pair.match in BY_OFFSET and pair.offset_map is None and pair.brought is None
    erased = erasures.records_in(source.id, 0, INT64_MAX) if same_offsets else None
    slices = tuple(erasures.slice_of(row) for row in found if isinstance(row, Segment))
    splits, size = [], 0
    for part in slices:
        if size >= PART_BYTES:
            splits.append(part.base_offset)
            size = 0
        size += part.raw_bytes
    return replace(
        pair,
        splits=tuple(splits),
        bytes=sum(part.raw_bytes for part in slices),
        slices=slices,
        revision=source.revision,
        compacted=GapReason.COMPACTED in source.gaps,
        erased=erased,
        notes=(*pair.notes, *([_ERASED] if erased is not None else [])),
    )


def whole_log(archive: Archive, source: ComparedRange, revision: int) -> tuple[Slice, ...]:
    """All that the archive has of a partition, beyond what is compared too."""
    revisions = {PartitionId(topic_id=source.topic_id, partition=source.partition): revision}
    rows = archive.catalog.rows(topic_id=source.topic_id, partition=source.partition, revisions=revisions)
    erasures = archive.erasures()
    return tuple(erasures.slice_of(row) for row in decode_rows(rows.sort_by(SORT_ORDER)) if isinstance(row, Segment))


# Restores


def _restored_topics(archive: Archive, target: LiveCluster) -> list[FinishedTopic]:
    """The topics of all finished restores into this cluster."""
    found = []
    for restore_id in finished_restores(archive.storage):
        plan, report = read_restore(archive.storage, restore_id)
        if plan.cluster_id == target.cluster_id:
            found += _topics_of(archive, plan, report)
    return found


def _topics_of(archive: Archive, plan: RestorePlan, report: Mapping[str, Any]) -> list[FinishedTopic]:
    created = read_topics(archive.storage, plan.restore_id)
    remapped = plan.schemas is not None and plan.schemas.remap
    ids = read_schema_map(archive.storage, plan.restore_id) if remapped else None
    return [
        FinishedTopic(
            plan=plan,
            topic=topic,
            target_id=topic.target.target_id or created.get(topic.target.name),
            reports={
                partition["partition"]: partition
                for partition in report["partitions"]
                if partition["target"] == topic.target.name
            },
            schema_ids=None if ids is None else map_for(ids, topic.target.source_topic),
        )
        for topic in plan.topics
    ]


def _mapped_notes(restored: FinishedTopic) -> tuple[str, ...]:
    if restored.schema_ids is None:
        return ()
    return (f"schema ids are compared as restore {restored.plan.restore_id} has mapped them",)


def _restored_as(
    known: Sequence[FinishedTopic], target: LiveCluster, source: Source, name: str
) -> FinishedTopic | None:
    """The one restore that made this target topic from this source."""
    if target.topic(name) is None:
        return None
    mine = (source.topic_id, name, target.id_of(name))
    found = [
        finished
        for finished in known
        if (finished.topic.target.topic_id, finished.topic.target.name, finished.target_id) == mine
    ]
    if len(found) > 1:
        ids = ", ".join(finished.plan.restore_id for finished in found)
        raise UsageError(
            "several restores wrote into this topic", operation=_OPERATION, object_name=name, hint=f"--restore: {ids}"
        )
    return found[0] if found else None


def _named_restore(archive: Archive, target: LiveCluster, request: CompareRequest) -> list[FinishedTopic]:
    restore_id = find_restore(finished_restores(archive.storage), request.restore)
    plan, report = read_restore(archive.storage, restore_id)
    if plan.cluster_id != target.cluster_id:
        raise RefusedError(
            f"this restore wrote into cluster {plan.cluster_id}, not into {target.cluster_id}",
            operation=_OPERATION,
            object_name=restore_id,
            hint="give the bootstrap servers of that cluster",
        )
    if request.match is not Match.AUTO:
        raise UsageError(
            "--restore already says how records are matched", operation=_OPERATION, hint="leave out --offsets"
        )
    known = {finished.topic.target.source_topic: finished for finished in _topics_of(archive, plan, report)}
    names = select_topics(
        dict.fromkeys(known, False), request.selection.topics, request.selection.exclude, internal=True
    )
    if names.wrong is not None:
        raise matches_nothing(names.wrong, known, whose=f"restore {restore_id}")
    if not names.chosen:
        raise UsageError("this restore has none of the selected topics", object_name=restore_id)
    partitions = {restore.source.partition for name in names.chosen for restore in known[name].topic.partitions}
    for partition in sorted(request.selection.partitions - partitions):
        raise UsageError(f"no selected topic has a partition {partition}", object_name=restore_id)
    return [known[name] for name in names.chosen]
