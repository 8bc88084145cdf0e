"""The plan of a restore: everything that will be done, as one value. What `--dry-run` prints is what runs.

It is about offsets and names, not about objects, so it stays valid while segments of the archive are compacted. It is
stored before the first record is written, so a resumed restore does what was planned at first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa

from maxbrod.bounds import check_partitions
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.restore.plan.access import AccessPlan, find_access_obstacles, plan_access
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind, in_order
from maxbrod.restore.plan.preflight import Subject, find_missing_rights, find_obstacles, lost_obstacles, why_left_out
from maxbrod.restore.plan.request import Chosen, OffsetsMode, RestoreRequest, choose_groups, command_digest
from maxbrod.restore.plan.sources import RowsInMemory, Source, SourceRows, UnreadableRange, measure_sources, with_lost
from maxbrod.restore.plan.targets import (
    OffsetsPlan,
    Right,
    TargetState,
    TargetTopic,
    count_partitions,
    plan_offsets,
    plan_target,
)
from maxbrod.restore.repartition.extents import SourceExtent, plan_extents
from maxbrod.transform.plan import TransformPlan  # noqa: TC001 - pydantic reads the types of fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from maxbrod.catalog.replaced import Revisions
    from maxbrod.kafka.state.cluster_state import ClusterState, TopicState


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRestore:
    """One source partition. Unless its topic is repartitioned, it goes to the target partition of the same number."""

    source: Source
    offsets: OffsetsPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    target: TargetTopic
    partitions: tuple[PartitionRestore, ...]
    blocks: tuple[SourceExtent, ...] = ()
    """For a repartitioned topic: the order in which its sources are read."""
    known_from: str | None = None
    """The run that the topic's configuration is from, if it is an older one: the cluster had lost the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceArchive:
    """The archive that a plan was made from. The URL holds no secret."""

    url: str
    version: int
    """The version of the catalog."""
    run_id: str | None
    """The run whose snapshot describes topics and groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A topic of the archive that is not restored although the request does not exclude it."""

    topic: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    restore_id: str
    command: str
    """The digest of the command. The same command again resumes this restore."""
    archive: SourceArchive
    cluster_id: str
    planned_at_ms: int
    since_ms: int | None
    until_ms: int | None
    rate_bytes_per_s: int | None
    topics: tuple[TopicPlan, ...]
    groups: tuple[str, ...]
    with_acls: bool
    with_quotas: bool
    obstacles: tuple[Obstacle, ...]
    access: AccessPlan = field(default_factory=AccessPlan)
    """The ACLs and quotas to restore."""
    provenance: bool = False
    source_cluster_id: str | None = None
    """The id of the cluster that was backed up, if its snapshot has it."""
    transform: TransformPlan | None = None
    """The transformation of records before they are restored."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def records(self) -> int:
        return sum(partition.source.records for topic in self.topics for partition in topic.partitions)

    @property
    def bytes(self) -> int:
        return sum(partition.source.bytes for topic in self.topics for partition in topic.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """One line of a table: a topic, or those of its partitions that have the same offsets mode."""

    source: str
    target: str
    created: bool
    partitions: int
    target_partitions: int
    replication_factor: int
    repartitioned: bool
    offsets: str
    why: str
    records: int
    bytes: int
    fill_offsets: int
    fill_seconds: float
    known_from: str | None


def plan_restore(
    request: RestoreRequest,
    *,
    restore_id: str,
    archive: SourceArchive,
    chosen: Chosen,
    rows: pa.Table | SourceRows,
    ends: Mapping[PartitionId, int],
    snapshot: ClusterState | None,
    target: TargetState,
    now_ms: int,
    topic_runs: Mapping[str, str] | None = None,
    access_runs: Mapping[str, str] | None = None,
    lost: Mapping[PartitionId, Sequence[UnreadableRange]] | None = None,
    revisions: Revisions | None = None,
    had: Callable[[pa.Table], pa.ChunkedArray] | None = None,
) -> RestorePlan:
    """`rows` have the columns of `SOURCE_COLUMNS`; `ends` and `snapshot` are those of the run `archive.run_id`.

    `topic_runs` maps topic ids to the older run that describes them, `access_runs` the same for ACLs and quotas.
    `lost` are ranges whose objects are missing or damaged; `revisions` are those of the rows.
    `had` marks gaps `pruned` since the chosen point in the past; None: what was pruned is not missed.

    A plan with fatal obstacles is still a plan: `obstacles.refusal` says whether it may run.
    """
    as_of = request.as_of is not None
    read = RowsInMemory(rows) if isinstance(rows, pa.Table) else rows
    sources = measure_sources(
        read.portions(), request, chosen, ends, as_of=as_of, lost=lost, revisions=revisions, had=had
    )
    subjects = _subjects(request, sources, ends, snapshot, target)
    access = plan_access(
        request,
        snapshot,
        target.cluster,
        topics={subject.target.source_topic: subject.target.name for subject in subjects},
        groups=[
            group.group_id for group in choose_groups(request.groups, () if snapshot is None else snapshot.groups)[0]
        ],
    )
    obstacles = [
        *_missing(request, chosen, sources),
        *find_obstacles(request, subjects, target, now_ms=now_ms),
        *find_missing_rights(request, subjects, target, access),
        *find_access_obstacles(request, snapshot, target, access, access_runs),
    ]
    cluster_id = target.cluster.cluster_id or ""
    return RestorePlan(
        restore_id=restore_id,
        command=command_digest(request, archive=archive.url, cluster_id=cluster_id),
        archive=archive,
        cluster_id=cluster_id,
        planned_at_ms=now_ms,
        since_ms=request.since_ms,
        until_ms=request.until_ms,
        rate_bytes_per_s=request.rate_bytes_per_s,
        topics=tuple(_topic_plan(subject, read, topic_runs or {}) for subject in subjects),
        groups=request.groups,
        with_acls=request.with_acls,
        with_quotas=request.with_quotas,
        access=access,
        provenance=request.provenance,
        source_cluster_id=None if snapshot is None else snapshot.cluster_id,
        obstacles=in_order(obstacles),
        left_out=tuple(LeftOut(topic=name, why=why_left_out(name)) for name in chosen.left_out),
    )


def sources_of(plan: RestorePlan) -> list[Source]:
    return [partition.source for topic in plan.topics for partition in topic.partitions]


def without_lost(
    plan: RestorePlan, lost: Mapping[PartitionId, Sequence[UnreadableRange]], *, accepted: bool
) -> RestorePlan:
    """The plan with more unreadable ranges. They are left out if `accepted`, and fatal obstacles otherwise."""

    def changed(each: PartitionRestore) -> PartitionRestore:
        found = lost.get(each.source.id)
        return replace(each, source=with_lost(each.source, found)) if found else each

    fresh = [
        obstacle
        for source in sources_of(plan)
        for obstacle in lost_obstacles(source, lost.get(source.id, ()), accepted=accepted)
    ]
    topics = [replace(topic, partitions=tuple(map(changed, topic.partitions))) for topic in plan.topics]
    return replace(plan, topics=tuple(topics), obstacles=in_order([*plan.obstacles, *fresh]))


def describe(plan: RestorePlan) -> tuple[PlanLine, ...]:
    """The plan for a person: a line for each topic, and two if its partitions have different offsets modes."""
    return tuple(line for topic in plan.topics for line in _lines(topic))


def _subjects(
    request: RestoreRequest,
    sources: Sequence[Source],
    ends: Mapping[PartitionId, int],
    snapshot: ClusterState | None,
    target: TargetState,
) -> list[Subject]:
    """The topics to restore, each with its target and the offsets mode of its partitions."""
    known: dict[str, int] = {}
    for end in ends:
        known[end.topic_id] = max(known.get(end.topic_id, 0), end.partition + 1)
    archived = {} if snapshot is None else {topic.topic_id: topic for topic in snapshot.topics}
    by_topic = (list(group) for _, group in groupby(sources, key=lambda source: (source.topic, source.topic_id)))
    # By its id: another incarnation may have had another configuration.
    groups = [(group, archived.get(group[0].topic_id)) for group in by_topic]
    counts = [count_partitions(group, state, known.get(group[0].topic_id, 0)) for group, state in groups]
    check_partitions(
        {group[0].topic: count for (group, _), count in zip(groups, counts, strict=True)},
        {group[0].topic: max(len(group), 0 if state is None else state.partition_count) for group, state in groups},
    )
    return [_subject(request, *group, count, target) for group, count in zip(groups, counts, strict=True)]


def _subject(
    request: RestoreRequest,
    sources: list[Source],
    archived: TopicState | None,
    count: int,
    state: TargetState,
) -> Subject:
    target = plan_target(request, sources, archived, count, state)
    offsets = [
        plan_offsets(
            request.offsets,
            source,
            state.extents.get(TopicPartition(topic=target.name, partition=source.partition)),
            repartitioned=target.repartitioned,
            markers_allowed=state.rights.get(Right.CLUSTER_ACTION),
        )
        for source in sources
    ]
    return Subject(target=target, archived=archived, sources=sources, offsets=offsets)


def _topic_plan(subject: Subject, rows: SourceRows, runs: Mapping[str, str]) -> TopicPlan:
    target, pairs = subject.target, zip(subject.sources, subject.offsets, strict=True)
    return TopicPlan(
        target=target,
        partitions=tuple(PartitionRestore(source=source, offsets=offsets) for source, offsets in pairs),
        blocks=plan_extents(rows.of_topic(target.topic_id), subject.sources, target.partition_count)
        if target.repartitioned
        else (),
        known_from=runs.get(target.topic_id),
    )


def _missing(request: RestoreRequest, chosen: Chosen, sources: Sequence[Source]) -> Iterator[Obstacle]:
    """Names and numbers of the request that the archive does not have."""

    def missing(what: str, where: str | None, kind: ObstacleKind = ObstacleKind.TOPIC_MISSING) -> Obstacle:
        return Obstacle(kind=kind, where=where, what=what, hint="see 'maxbrod ls'", fatal=True)

    for error in chosen.wrong:
        what = error.message
        yield Obstacle(kind=ObstacleKind.TOPIC_MISSING, where=None, what=what, hint=error.hint, fatal=True)
    known = {TopicPartition(topic=source.topic, partition=source.partition) for source in sources}
    for where in (each.where for each in request.ranges if each.where.topic not in chosen.missing):
        if where not in known:
            yield missing(f"the archive has no partition {where}, or the request excludes it", str(where))
    for partition in sorted(request.partitions - {source.partition for source in sources}):
        yield missing(f"no topic that is restored has a partition {partition}", None)
    if not sources and not chosen.wrong:
        yield missing("nothing in the archive matches the request", None, ObstacleKind.NOTHING_CHOSEN)


def _lines(topic: TopicPlan) -> Iterator[PlanLine]:
    for mode in (OffsetsMode.EXACT, OffsetsMode.APPEND):
        alike = [partition for partition in topic.partitions if partition.offsets.mode is mode]
        if not alike:
            continue
        exact = mode is OffsetsMode.EXACT
        costs = [each.offsets.cost for each in alike if exact]
        reasons = sorted({each.offsets.why for each in alike})
        yield PlanLine(
            source=topic.target.source_topic,
            target=topic.target.name,
            created=not topic.target.exists,
            partitions=len(alike),
            target_partitions=topic.target.partition_count,
            replication_factor=topic.target.replication_factor,
            repartitioned=topic.target.repartitioned,
            offsets=str(mode),
            why=reasons[0] if len(reasons) == 1 else f"{reasons[0]}, and other reasons",
            records=sum(each.source.records for each in alike),
            bytes=sum(each.source.bytes for each in alike),
            fill_offsets=sum(cost.leading + cost.holes for cost in costs),
            fill_seconds=sum(cost.seconds for cost in costs),
            known_from=topic.known_from,
        )
