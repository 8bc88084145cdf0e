"""An archive as seen by a request: the moment that it is read at, its rows, the topics that it means, and its losses.

A segment of another tool's archive that cannot be read is in no row: between rows it would look like offsets that never
had a record. A listing shows objects that are missing or too short, before anything is changed. Damage within an object
shows only when the object is read. Ranges that the user accepts to lose are left out, and stored with the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from maxbrod.archive.archive import AnyCatalog, Archive
from maxbrod.archive.pruned import PointInTime, had
from maxbrod.archive.snapshots import Moment, find_moment, known_topics
from maxbrod.catalog.replaced import Revisions
from maxbrod.catalog.rows import Run, Segment, decode_rows, slice_of
from maxbrod.check.objects import check_objects
from maxbrod.check.problems import Problem, ProblemKind
from maxbrod.errors import EXIT_CORRUPT, CorruptDataError, MaxbrodError
from maxbrod.kafka.state.cluster_state import ClusterState
from maxbrod.layouts.foreign import Survey
from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.reader import read_logs
from maxbrod.model import INT64_MAX, PartitionId, TopicPartition, now_ms
from maxbrod.restore.plan.mapping import build_map, decode_map, encode_map
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind, in_order
from maxbrod.restore.plan.plan import RestorePlan, SourceArchive, plan_restore, sources_of
from maxbrod.restore.plan.request import Chosen, OffsetsMode, RestoreRequest, choose_incarnations
from maxbrod.restore.plan.sources import SOURCE_COLUMNS, Source, UnreadableRange, revisions_of, sound_part
from maxbrod.restore.plan.targets import TargetState
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage
from maxbrod.work.reach import Place
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from maxbrod.restore.items import Restored
    from maxbrod.work.executor import Executor
    from maxbrod.work.work import Work

_OF_TARGET: Final = frozenset({ObstacleKind.RIGHT_UNKNOWN, ObstacleKind.PERMISSION, ObstacleKind.BROKERS})
"""Kinds of obstacles that only a cluster knows."""
_HINT: Final = "see 'maxbrod check'; or restore without what is lost: say --accept-gaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRows:
    """Rows of some topics, read from the catalog when they are needed: see `SourceRows`."""

    catalog: AnyCatalog
    columns: Sequence[str]
    topic_ids: Collection[str] | None
    revisions: Revisions | None

    def portions(self) -> Iterator[pa.Table]:
        return self.catalog.portions(self.columns, topic_ids=self.topic_ids, revisions=self.revisions)

    def of_topic(self, topic_id: str) -> pa.Table:
        return self.catalog.rows(columns=self.columns, topic_ids=[topic_id], revisions=self.revisions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedState:
    """An archive as one request sees it."""

    archive: Archive
    moment: Moment
    revisions: Revisions
    rows: ArchivedRows
    """Only those of the chosen topics."""
    chosen: Chosen
    had: Callable[[pa.Table], pa.ChunkedArray] | None = None
    """See `looking_back`."""

    @property
    def source(self) -> SourceArchive:
        run = self.moment.run
        return SourceArchive(
            url=self.archive.url,
            version=self.archive.catalog.version,
            run_id=None if run is None or self.moment.snapshot is None else run.run_id,
        )

    @property
    def ends(self) -> Mapping[PartitionId, int]:
        return {} if self.moment.snapshot is None else self.moment.snapshot.ends

    def obstacles(self, *, accepted: bool) -> Iterator[Obstacle]:
        """Yield what is damaged or unknown in the archive. `accepted`: gaps are no reason to stop."""
        if self.archive.survey is not None:
            yield from _damage(self.archive.survey, self.chosen.topics.values(), accepted=accepted)
        if self.moment.run is not None and self.moment.snapshot is None:
            yield Obstacle(
                ObstacleKind.INCOMPLETE,
                self.moment.run.run_id,
                "its snapshot cannot be read: new topics get the target's defaults, and no groups are restored",
                None,
                fatal=False,
            )


def look_at_archive(
    archive: Archive, request: RestoreRequest, *, columns: Collection[str] = (), needed: bool | None = None
) -> ArchivedState:
    """Choose topics; their rows are read later, with the columns that planning needs, and these.

    `needed`: a snapshot that cannot be read is an error; by default unless gaps are accepted.
    """
    # Without a snapshot topics would get the defaults of the target, and groups would not be restored. That must not
    # come as a surprise after all records are written.
    runs = archive.catalog.runs()
    moment = find_moment(
        archive.storage, runs, request.as_of, needed=not request.accept_gaps if needed is None else needed
    )
    revisions = moment.revisions_in(archive.catalog)
    topics, newest = known_topics(archive.catalog, moment, revisions)
    chosen = choose_incarnations(request, topics, newest)
    had = looking_back(request, moment, runs)
    names = (*SOURCE_COLUMNS, *columns, *(() if had is None else ("run_id",)))
    rows = ArchivedRows(
        catalog=archive.catalog,
        columns=tuple(dict.fromkeys(names)),
        topic_ids=chosen.topics,
        revisions=revisions,
    )
    return ArchivedState(archive=archive, moment=moment, revisions=revisions, rows=rows, chosen=chosen, had=had)


def plan_archived(
    archived: ArchivedState,
    request: RestoreRequest,
    target: TargetState,
    *,
    restore_id: str,
    staged: Archive | None = None,
) -> RestorePlan:
    """Plan what the request asks for. `staged`: with these transformed records, which have the same partitions."""
    moment, chosen, rows = archived.moment, archived.chosen, archived.rows
    if staged is not None:
        rows = ArchivedRows(catalog=staged.catalog, columns=SOURCE_COLUMNS, topic_ids=None, revisions=None)
    return plan_restore(
        request,
        restore_id=restore_id,
        archive=archived.source,
        chosen=chosen,
        rows=rows,
        ends=archived.ends,
        snapshot=moment.cluster,
        target=target,
        now_ms=now_ms(),
        topic_runs=moment.topic_runs,
        access_runs=None if moment.known is None else moment.known.access_runs,
        # What is staged has been read already.
        lost={} if staged else listed_losses(archived.archive, chosen.topics.keys(), archived.revisions),
        revisions=archived.revisions,
        had=None if staged else archived.had,
    )


def plan_into_empty(archive: Archive, request: RestoreRequest) -> RestorePlan:
    """Plan as if the cluster had as many brokers as the one that was backed up, and none of the topics.

    No cluster is asked. So the plan says what the archive gives, and nothing about what may stand in the way there.
    """
    archived = look_at_archive(archive, request)
    backed_up = archived.moment.cluster
    nothing = ClusterState(
        cluster_id=None,
        taken_at_ms=now_ms(),
        brokers=() if backed_up is None else backed_up.brokers,
        topics=(),
        acls=(),
        quotas=(),
        users=(),
        groups=(),
        gaps=(),
    )
    plan = plan_archived(archived, request, TargetState(cluster=nothing), restore_id="")
    obstacles = (*plan.obstacles, *archived.obstacles(accepted=request.accept_gaps))
    return replace(plan, obstacles=in_order(obstacle for obstacle in obstacles if obstacle.kind not in _OF_TARGET))


def looking_back(
    request: RestoreRequest, moment: Moment, runs: Sequence[Run]
) -> Callable[[pa.Table], pa.ChunkedArray] | None:
    """A function that marks gaps `pruned` since the point in the past that a request chooses: see `had`.

    It needs `run_id` too. None: the request asks for the present, and names no offsets.
    """
    point = PointInTime(run_id=moment.as_of, until_ms=request.until_ms, since_ms=request.since_ms)
    return partial(had, runs=runs, point=point) if point.chosen or request.ranges else None


def _damage(survey: Survey, chosen: Collection[str], *, accepted: bool) -> Iterator[Obstacle]:
    """Every fault that loses records, and every doubt, without those about topics that are not restored."""
    others = set(survey.topics) - set(chosen)
    for fault in survey.faults:
        # In every layout the name of the topic is a folder in the path.
        if fault.fatal and others.isdisjoint(fault.path.split("/")):
            yield Obstacle(
                ObstacleKind.CORRUPT, fault.path, fault.message, _HINT, fatal=not accepted, offset=fault.offset
            )
    for doubt in survey.doubts:
        if doubt.topic not in others:
            yield Obstacle(
                ObstacleKind.UNPROVED,
                None if doubt.partition is None else f"{doubt.topic}-{doubt.partition}",
                doubt.what,
                doubt.hint,
                fatal=doubt.refused and not accepted,
            )


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
    for problem in problems:
        lost = _lost(archive, problem, revisions)
        if lost is not None and problem.topic_id is not None and problem.partition is not None:
            found.setdefault(PartitionId(topic_id=problem.topic_id, partition=problem.partition), []).append(lost)
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
    return next((find_loss(archive.storage, part) for part in slices), None)


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
    work: Work,
    executor: Executor,
    archive: Archive,
    plan: RestorePlan,
    slices: Mapping[PartitionId, Sequence[Slice]],
) -> Losses:
    """Read slices to find what is lost of each partition and the plan does not leave out yet. Writes nothing.

    UnavailableError: it was stopped before the tasks had finished.
    """
    sized = [(one.bytes, (partition, one)) for partition, stored in slices.items() for one in stored]
    tasks, name = spread(sized, executor.parallelism), f"damage-{plan.restore_id}"
    found: Losses = {}
    place = Place(url=archive.url, storage=archive.options)
    total = sum(size for size, _ in sized)
    meter = work.meter("looking for damage", total, tasks=len(tasks))
    for partition, lost in executor.run(_read_slices, place, tasks, name=name, meter=meter, stop=work.stop):
        found.setdefault(partition, []).append(lost)
    return unknown_losses(
        plan, {partition: sorted(lost, key=lambda range_: range_.end) for partition, lost in found.items()}
    )


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
        known = {range_.end: range_.first for range_ in source.lost}
        fresh = [
            range_
            for range_ in lost.get(source.id, ())
            if range_.end > source.asked_first
            and (range_.first < source.asked_end or range_.first == range_.end)
            and known.get(range_.end, range_.end + 1) > range_.first
        ]
        if fresh:
            found[source.id] = fresh
    return found


def planned_rows(archive: Archive, plan: RestorePlan) -> pa.Table:
    """The rows of the plan's sources, as the archive had them when it was made. The catalog is read once."""
    sources = sources_of(plan)
    return archive.catalog.rows(topic_ids={source.topic_id for source in sources}, revisions=revisions_of(sources))


def sound_slices(archive: Archive, rows: pa.Table, sources: Iterable[Source]) -> dict[PartitionId, list[Slice]]:
    """The slices that these rows of an archive name, by partition and in their order, without what is lost of them."""
    erasures = archive.erasures()
    lost = {source.id: {one.end: one for one in source.lost} for source in sources}
    found: dict[PartitionId, list[Slice]] = {}
    for row in decode_rows(rows):
        if isinstance(row, Segment):
            partition = PartitionId(topic_id=row.topic_id, partition=row.partition)
            sound = sound_part(erasures.slice_of(row), lost.get(partition, {}))
            if sound is not None:
                found.setdefault(partition, []).append(sound)
    return found


def damaged_part(plan: RestorePlan, restored: Iterable[Ended]) -> RestorePlan:
    """The plan with only the partitions that damage in the archive has stopped. Repartitioned topics stay whole."""
    failed = {
        ended.where for ended in restored if ended.failure is not None and ended.failure.exit_code == EXIT_CORRUPT
    }
    topics = []
    for topic in plan.topics:
        name = topic.target.name
        if topic.target.repartitioned:
            kept = topic.partitions if any(where.topic == name for where in failed) else ()
        else:
            kept = tuple(partition for where, partition in topic.placed() if where in failed)
        if kept:
            topics.append(replace(topic, partitions=kept))
    return replace(plan, topics=tuple(topics))


def joined(plan: RestorePlan, before: Iterable[Restored], after: Iterable[Restored]) -> list[Restored]:
    """The outcomes of two attempts together. With exact offsets, the second attempt reads only what the first left."""
    exact = {
        where
        for topic in plan.topics
        for where, partition in topic.placed()
        if not topic.target.repartitioned and partition.offsets.mode is OffsetsMode.EXACT
    }
    found = {outcome.where: outcome for outcome in before}
    for outcome in after:
        where = outcome.where
        found[where] = _added(found[where], outcome) if where in exact else outcome
    return list(found.values())


def _added(before: Restored, after: Restored) -> Restored:
    """The second attempt reads the last slice of the first one again: its map counts where both have a record."""
    first, second = decode_map(before.map), decode_map(after.map)
    limit = int(second.source[0]) if len(second) else INT64_MAX
    kept = first.source < limit
    counts = np.minimum(first.count, limit - first.source)[kept]
    columns = ((first.source[kept], second.source), (counts, second.count), (first.target[kept], second.target))
    whole = build_map(*map(np.concatenate, columns), base=first.base)
    return replace(after, records=whole.records, map=encode_map(whole))
