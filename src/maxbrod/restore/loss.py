"""The ranges of an archive that a restore cannot read.

A listing shows objects that are missing or too short, before anything is changed. Damage within an object shows only
when the object is read. Ranges that the user accepts to lose are left out, and stored with the plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from maxbrod.archive.selection import INT64_MAX
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.check.objects import check_objects
from maxbrod.check.problems import Problem, ProblemKind
from maxbrod.errors import EXIT_CORRUPT, CorruptDataError, MaxbrodError
from maxbrod.layouts.kafka.format import Slice  # noqa: TC001 - pydantic reads the types of fields
from maxbrod.layouts.reader import read_logs
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.restore.plan.mapping import build_map, decode_map, encode_map
from maxbrod.restore.plan.plan import RestorePlan, sources_of
from maxbrod.restore.plan.request import OffsetsMode
from maxbrod.restore.plan.sources import Source, UnreadableRange, sound_part
from maxbrod.storage.stores import open_storage
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from maxbrod.archive.archive import Archive
    from maxbrod.catalog.replaced import Revisions
    from maxbrod.restore.task import Restored
    from maxbrod.storage.interface import Storage
    from maxbrod.work.executor import Executor
    from maxbrod.work.reach import Place

_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "end_offset", "kind", "path", "position", "bytes"),
)
_FOLDERS_MAX: Final = 20
"""Up to this many topics, only their folders are listed; else all objects."""

Losses = dict[PartitionId, list[UnreadableRange]]


class Ended(Protocol):
    """The outcome of a partition that a task wrote, into a cluster or into a log directory."""

    @property
    def where(self) -> TopicPartition: ...
    @property
    def failure(self) -> MaxbrodError | None: ...


def listed_losses(archive: Archive, topic_ids: Collection[str], revisions: Revisions | None = None) -> Losses:
    """Rows of these topics whose objects are missing or too short. Takes one listing, whatever the layout.

    `revisions` are the revisions of the rows to check; None: the rows of now.
    """
    if not topic_ids:
        return {}

    def rows() -> Iterator[pa.Table]:
        return archive.catalog.portions(_COLUMNS, topic_ids=topic_ids, revisions=revisions)

    _, problems = check_objects(archive, rows, narrow=len(topic_ids) <= _FOLDERS_MAX)
    found: Losses = {}
    for each in problems:
        lost = _lost(archive, each, revisions)
        if lost is not None and each.topic_id is not None and each.partition is not None:
            found.setdefault(PartitionId(topic_id=each.topic_id, partition=each.partition), []).append(lost)
    return found


def _lost(archive: Archive, problem: Problem, revisions: Revisions | None) -> UnreadableRange | None:
    first, end = problem.first_offset or 0, problem.end_offset or 0
    if problem.kind is ProblemKind.MISSING:
        return UnreadableRange(first=first, end=end, object_name=problem.object_name or "", why=problem.message)
    # An object that is too short still holds the batches before its end.
    rows = archive.catalog.rows(
        topic_id=problem.topic_id, partition=problem.partition, offsets=(first, end), revisions=revisions
    )
    slices = (slice_of(row) for row in decode_rows(rows) if isinstance(row, Segment) and row.end_offset == end)
    return next((find_loss(archive.storage, each) for each in slices), None)


def find_loss(storage: Storage, stored: Slice) -> UnreadableRange | None:
    """The offsets of a slice that cannot be read; None: all can. Sound batches before the damage are not lost."""
    reached = stored.base_offset
    try:
        for _, headers in read_logs(storage, stored):
            reached = max(reached, int(headers.last_offset[-1]) + 1)
    except CorruptDataError as error:
        first = min(reached, stored.end_offset)
        name = error.object_name or storage.name_of(stored.path)
        why = error.message.partition(" cannot be read: ")[2] or error.message
        return UnreadableRange(first=first, end=stored.end_offset, object_name=name, why=why)
    return None


def find_losses(
    executor: Executor,
    place: Place,
    slices: Mapping[PartitionId, Sequence[Slice]],
    *,
    name: str,
    stop: threading.Event | None = None,
) -> Losses:
    """Read slices to find what is lost of each partition, in the order of offsets. Writes nothing.

    UnavailableError: `stop` was set before the tasks had finished.
    """
    sized = [(one.bytes, (partition, one)) for partition, stored in slices.items() for one in stored]
    found: Losses = {}
    for partition, lost in executor.run(_read_slices, place, spread(sized, executor.parallelism), name=name, stop=stop):
        found.setdefault(partition, []).append(lost)
    return {partition: sorted(lost, key=lambda each: each.end) for partition, lost in found.items()}


def _read_slices(
    place: Place, slices: Sequence[tuple[PartitionId, Slice]]
) -> list[tuple[PartitionId, UnreadableRange]]:
    storage = open_storage(place.url, place.storage)
    found = ((partition, find_loss(storage, stored)) for partition, stored in slices)
    return [(partition, lost) for partition, lost in found if lost is not None]


def losses_of(plan: RestorePlan) -> Losses:
    """The unreadable ranges that the plan leaves out."""
    return {source.id: list(source.lost) for source in sources_of(plan) if source.lost}


def unknown_losses(plan: RestorePlan, lost: Mapping[PartitionId, Sequence[UnreadableRange]]) -> Losses:
    """The part of `lost` that the plan asks for and does not leave out yet."""
    found: Losses = {}
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


def sound_slices(rows: pa.Table, sources: Iterable[Source]) -> dict[PartitionId, list[Slice]]:
    """The slices that these rows name, by partition and in their order, without what is lost of them."""
    lost = {source.id: {one.end: one for one in source.lost} for source in sources}
    found: dict[PartitionId, list[Slice]] = {}
    for row in decode_rows(rows):
        if isinstance(row, Segment):
            partition = PartitionId(topic_id=row.topic_id, partition=row.partition)
            sound = sound_part(slice_of(row), lost.get(partition, {}))
            if sound is not None:
                found.setdefault(partition, []).append(sound)
    return found


def damaged_part(plan: RestorePlan, restored: Iterable[Ended]) -> RestorePlan:
    """The plan with only the partitions that damage in the archive has stopped. Repartitioned topics stay whole."""
    failed = {each.where for each in restored if each.failure is not None and each.failure.exit_code == EXIT_CORRUPT}
    topics = []
    for topic in plan.topics:
        name = topic.target.name
        if topic.target.repartitioned:
            kept = topic.partitions if any(where.topic == name for where in failed) else ()
        else:
            kept = tuple(
                partition
                for partition in topic.partitions
                if TopicPartition(topic=name, partition=partition.source.partition) in failed
            )
        if kept:
            topics.append(replace(topic, partitions=kept))
    return replace(plan, topics=tuple(topics))


def joined(plan: RestorePlan, before: Iterable[Restored], after: Iterable[Restored]) -> list[Restored]:
    """The outcomes of two attempts together. With exact offsets, the second attempt reads only what the first left."""
    exact = set(_exact_partitions(plan))
    found = {each.where: each for each in before}
    for each in after:
        found[each.where] = _added(found[each.where], each) if each.where in exact else each
    return list(found.values())


def _exact_partitions(plan: RestorePlan) -> Iterator[TopicPartition]:
    for topic in plan.topics:
        for partition in topic.partitions:
            if not topic.target.repartitioned and partition.offsets.mode is OffsetsMode.EXACT:
                yield TopicPartition(topic=topic.target.name, partition=partition.source.partition)


def _added(before: Restored, after: Restored) -> Restored:
    """The second attempt reads the last slice of the first one again: its map counts where both have a record."""
    first, second = decode_map(before.map), decode_map(after.map)
    limit = int(second.source[0]) if len(second) else INT64_MAX
    kept = first.source < limit
    counts = np.minimum(first.count, limit - first.source)[kept]
    columns = ((first.source[kept], second.source), (counts, second.count), (first.target[kept], second.target))
    whole = build_map(*map(np.concatenate, columns), base=first.base)
    return replace(after, records=whole.records, map=encode_map(whole))
