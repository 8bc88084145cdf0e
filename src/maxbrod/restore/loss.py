"""What a restore cannot read of an archive: objects that are gone or too short, which a listing tells before anything
is changed, and damage that only reading meets. What is accepted of it is left out, and remembered with the plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.words import INT64_MAX
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.check.objects import check_objects
from maxbrod.check.problems import ProblemKind
from maxbrod.errors import EXIT_CORRUPT
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.restore.loss_job import find_loss
from maxbrod.restore.plan.mapping import OffsetMap, decode_map, encode_map, join_maps
from maxbrod.restore.plan.plan import sources_of
from maxbrod.restore.plan.request import OffsetsMode
from maxbrod.restore.plan.sources import UnreadableRange, sound_part

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from maxbrod.archive.opening import Archive
    from maxbrod.catalog.replaced import Revisions
    from maxbrod.check.problems import Problem
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.restore.plan.plan import RestorePlan
    from maxbrod.restore.plan.sources import Source
    from maxbrod.restore.task import Restored

_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "end_offset", "kind", "path", "position", "bytes"),
)
_FOLDERS_MAX: Final = 20
"""Of single topics that are listed; of more topics all objects are."""

LostOf = dict[PartitionId, list[UnreadableRange]]


class Ended(Protocol):
    """What a task tells of a partition that it has written, into a cluster or into a log directory."""

    @property
    def where(self) -> TopicPartition: ...
    @property
    def failure(self) -> Mapping[str, Any] | None: ...


def listed_losses(archive: Archive, topic_ids: Collection[str], revisions: Revisions | None = None) -> LostOf:
    """Rows of these topics whose objects are not there, or end too early. One listing, whatever the layout.

    `revisions` are those that the rows are of; without them, rows are those of now.
    """
    if not topic_ids:
        return {}
    one = next(iter(topic_ids)) if len(topic_ids) == 1 else None
    rows = archive.catalog.rows(columns=_COLUMNS, topic_id=one, revisions=revisions)
    rows = rows.filter(pc.is_in(rows["topic_id"], value_set=pa.array(sorted(topic_ids), pa.string())))
    _, problems = check_objects(archive, rows, narrow=len(topic_ids) <= _FOLDERS_MAX)
    found: LostOf = {}
    for each in problems:
        lost = _lost(archive, each, revisions)
        if lost is not None and each.topic_id is not None and each.partition is not None:
            found.setdefault(PartitionId(topic_id=each.topic_id, partition=each.partition), []).append(lost)
    return found


def _lost(archive: Archive, problem: Problem, revisions: Revisions | None) -> UnreadableRange | None:
    first, end = problem.first_offset or 0, problem.end_offset or 0
    if problem.kind is ProblemKind.MISSING:
        return UnreadableRange(first=first, end=end, object_name=problem.object_name or "", why=problem.message)
    # Batches before its end are still there.
    rows = archive.catalog.rows(
        topic_id=problem.topic_id, partition=problem.partition, offsets=(first, end), revisions=revisions
    )
    slices = (slice_of(row) for row in decode_rows(rows) if isinstance(row, Segment) and row.end_offset == end)
    return next((find_loss(archive.storage, each) for each in slices), None)


def losses_of(plan: RestorePlan) -> LostOf:
    """What the plan leaves out."""
    return {source.id: list(source.lost) for source in sources_of(plan) if source.lost}


def unknown_losses(plan: RestorePlan, lost: Mapping[PartitionId, Sequence[UnreadableRange]]) -> LostOf:
    """Of what is lost, what the plan asks for and does not leave out yet."""
    found: LostOf = {}
    for source in sources_of(plan):
        known = {each.end: each.first for each in source.lost}
        fresh = [
            each
            for each in lost.get(source.id, ())
            if each.end > source.asked_first
            and (each.first < source.asked_end or each.first == each.end)
            and known.get(each.end, each.end + 1) > each.first
        ]
        if fresh:
            found[source.id] = fresh
    return found


def sound_slices(
    slices: Mapping[PartitionId, Sequence[Slice]], sources: Iterable[Source]
) -> dict[PartitionId, list[Slice]]:
    """The slices of sources without what is lost of them."""
    lost = {each.id: {one.end: one for one in each.lost} for each in sources if each.lost}
    return {
        partition: [part for each in found if (part := sound_part(each, lost.get(partition, {}))) is not None]
        for partition, found in slices.items()
    }


def damaged_part(plan: RestorePlan, restored: Iterable[Ended]) -> RestorePlan:
    """The plan of those partitions only that damage in the archive has ended. A repartitioned topic is one whole."""
    failed = {each.where for each in restored if each.failure is not None and each.failure["exit_code"] == EXIT_CORRUPT}
    topics = []
    for topic in plan.topics:
        name = topic.target.name
        if topic.target.repartitioned:
            kept = topic.partitions if any(where.topic == name for where in failed) else ()
        else:
            kept = tuple(
                each
                for each in topic.partitions
                if TopicPartition(topic=name, partition=each.source.partition) in failed
            )
        if kept:
            topics.append(replace(topic, partitions=kept))
    return replace(plan, topics=tuple(topics))


def joined(plan: RestorePlan, before: Iterable[Restored], after: Iterable[Restored]) -> list[Restored]:
    """What two attempts have restored together. Where offsets stay, the second reads only on from the first."""
    exact = {
        TopicPartition(topic=topic.target.name, partition=each.source.partition)
        for topic in plan.topics
        for each in topic.partitions
        if not topic.target.repartitioned and each.offsets.mode is OffsetsMode.EXACT
    }
    found = {each.where: each for each in before}
    for each in after:
        found[each.where] = _added(found[each.where], each) if each.where in exact else each
    return list(found.values())


def _added(before: Restored, after: Restored) -> Restored:
    first, second = decode_map(before.map), decode_map(after.map)
    limit = int(second.source[0]) if len(second) else INT64_MAX
    kept = first.source < limit
    count = np.minimum(first.count, limit - first.source)[kept]
    earlier = OffsetMap(first.source[kept], count, first.target[kept], first.base)
    whole = join_maps([earlier, second], base=first.base)
    return replace(after, records=whole.records, map=encode_map(whole))
