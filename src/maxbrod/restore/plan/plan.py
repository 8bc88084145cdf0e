"""The plan of a restore: everything that will be done, as one value. What `--dry-run` prints is what runs.

It is about offsets and names, not about objects, so it stays valid while segments of the archive are compacted. It is
stored before the first record is written, so a resumed restore does what was planned at first.

A plan that was agreed to, or begun before by this command or another one, is checked here against the present. How far
each partition got is not decided here: the task reads that from the target's log (`restore.task`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from maxbrod.bounds import check_partitions
from maxbrod.errors import RefusedError, TopicGoneError
from maxbrod.kafka.state.cluster_state import ClusterState, TopicState
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.restore.plan.access import AccessPlan, find_access_obstacles, plan_access
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind, in_order, refusal
from maxbrod.restore.plan.preflight import Subject, find_missing_rights, find_obstacles, lost_obstacles, why_left_out
from maxbrod.restore.plan.request import Chosen, OffsetsMode, RestoreRequest, choose_groups, command_digest, in_stages
from maxbrod.restore.plan.sources import RowsInMemory, Source, SourceRows, UnreadableRange, measure_sources, with_lost
from maxbrod.restore.plan.targets import (
    OffsetsPlan,
    Right,
    TargetState,
    TargetTopic,
    group_by_topic,
    plan_offsets,
    plan_target,
)
from maxbrod.restore.repartition.extents import SourceExtent, plan_extents
from maxbrod.transform.plan import TransformPlan

if TYPE_CHECKING:
    from maxbrod.catalog.replaced import Revisions


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

    def placed(self) -> Iterator[tuple[TopicPartition, PartitionRestore]]:
        """Yield the partitions with their target partitions, unless the topic is repartitioned."""
        for partition in self.partitions:
            yield TopicPartition(topic=self.target.name, partition=partition.source.partition), partition


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
class SchemasPlan:
    """The captured schemas that are brought back into a registry."""

    url: str
    captured: str
    """The document in the archive that has them."""
    captured_run: str
    remap: bool
    """True if the target gives other ids, and records get those."""
    versions: int
    present: int
    """Those that the target has already, under the same id."""
    registered: int | None = None
    """The number that had to be registered; None: not done yet."""
    left_out: tuple[str, ...] = ()
    """What could not come back."""


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
    """The ACLs, quotas and settings to restore."""
    provenance: bool = False
    source_cluster_id: str | None = None
    """The id of the cluster that was backed up, if its snapshot has it."""
    transform: TransformPlan | None = None
    """The transformation of records before they are restored."""
    left_out: tuple[LeftOut, ...] = ()
    schemas: SchemasPlan | None = None

    @property
    def records(self) -> int:
        return sum(partition.source.records for topic in self.topics for partition in topic.partitions)

    @property
    def known_from(self) -> dict[str, str]:
        """For topics that the cluster had lost, the run that last saw them."""
        return {topic.target.source_topic: topic.known_from for topic in self.topics if topic.known_from}

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
        topics=_in_order([_topic_plan(subject, read, topic_runs or {}) for subject in subjects], request),
        groups=request.groups,
        with_acls=request.with_acls,
        with_quotas=request.with_quotas,
        access=access,
        provenance=request.provenance,
        source_cluster_id=None if snapshot is None else snapshot.cluster_id,
        obstacles=in_order(obstacles),
        left_out=tuple(LeftOut(topic=name, why=why_left_out(name)) for name in chosen.left_out),
    )


def _in_order(topics: Sequence[TopicPlan], request: RestoreRequest) -> tuple[TopicPlan, ...]:
    """The topics in the order in which they are restored, so that the printed plan shows it."""
    stages = in_stages(request.order, {topic.target.source_topic for topic in topics})
    ranks = {name: rank for rank, names in enumerate(stages) for name in names}
    return tuple(sorted(topics, key=lambda topic: ranks[topic.target.source_topic]))


def part_of(plan: RestorePlan, names: Container[str]) -> RestorePlan:
    """The plan with only these topics of the archive."""
    return replace(plan, topics=tuple(topic for topic in plan.topics if topic.target.source_topic in names))


def sources_of(plan: RestorePlan) -> list[Source]:
    return [partition.source for topic in plan.topics for partition in topic.partitions]


def without_lost(
    plan: RestorePlan, lost: Mapping[PartitionId, Sequence[UnreadableRange]], *, accepted: bool
) -> RestorePlan:
    """The plan with more unreadable ranges. They are left out if `accepted`, and fatal obstacles otherwise."""

    def changed(partition: PartitionRestore) -> PartitionRestore:
        found = lost.get(partition.source.id)
        return replace(partition, source=with_lost(partition.source, found)) if found else partition

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
    groups = group_by_topic(sources, ends, snapshot)
    check_partitions(
        {mine[0].topic: count for mine, _, count in groups},
        {mine[0].topic: max(len(mine), 0 if state is None else state.partition_count) for mine, state, _ in groups},
    )
    subjects = []
    for mine, archived, count in groups:
        topic = plan_target(request, mine, archived, count, target)
        offsets = [
            plan_offsets(
                request.offsets,
                source,
                target.extents.get(TopicPartition(topic=topic.name, partition=source.partition)),
                repartitioned=topic.repartitioned,
                markers_allowed=target.rights.get(Right.CLUSTER_ACTION),
            )
            for source in mine
        ]
        subjects.append(Subject(target=topic, archived=archived, sources=mine, offsets=offsets))
    return subjects


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
        return Obstacle(kind, where, what, "see 'maxbrod ls'")

    for error in chosen.wrong:
        what = error.message
        yield Obstacle(ObstacleKind.TOPIC_MISSING, None, what, error.hint)
    known = {TopicPartition(topic=source.topic, partition=source.partition) for source in sources}
    for where in (range_.where for range_ in request.ranges if range_.where.topic not in chosen.missing):
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
        costs = [restore.offsets.cost for restore in alike if exact]
        reasons = sorted({restore.offsets.why for restore in alike})
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
            records=sum(restore.source.records for restore in alike),
            bytes=sum(restore.source.bytes for restore in alike),
            fill_offsets=sum(cost.leading + cost.holes for cost in costs),
            fill_seconds=sum(cost.seconds for cost in costs),
            known_from=topic.known_from,
        )


_PASSING: Final = frozenset({ObstacleKind.RIGHT_UNKNOWN, ObstacleKind.RETENTION, ObstacleKind.GROUPS})
"""Warnings that come and go with time, or with the members of a group."""


def check_topic(target: TargetTopic, present: TopicState | None, created_id: str | None, *, empty: bool) -> bool:
    """True if the topic exists and the restore can write to it. `created_id` is the id that this restore gave it.

    A topic that this restore created and somebody deleted is created again, as if nothing had been restored to it.
    TopicGoneError: the name belongs to another topic now, or a topic that existed before the restore was deleted.
    RefusedError: somebody else created the topic, or changed its number of partitions.
    """
    known = target.target_id or created_id
    if present is None and target.target_id is None:
        return False
    if present is None or (known is not None and present.topic_id != known):
        raise TopicGoneError(
            "the target topic was deleted" + (", and another topic has its name now" if present else ""),
            operation="resume a restore",
            object_name=target.name,
            hint="delete the topic of this name and run the same command again, which creates it again"
            if target.target_id is None
            else "restore with another command, under another name",
        )
    # A crash between creating a topic and storing its id leaves one that is ours and unknown. It is empty: the first
    # record is sent only once the id is stored.
    what = None
    if known is None and not empty:
        what = "somebody else has created the topic and written to it"
    elif present.partition_count != target.partition_count:
        what = f"the topic has {present.partition_count} partitions now, not {target.partition_count}"
    if what is not None:
        raise RefusedError(
            f"the restore cannot be resumed: {what}",
            operation="resume a restore",
            object_name=target.name,
            hint="nothing was changed; delete the topic and restore it again, or restore under another name",
        )
    return True


def done_before(
    plan: RestorePlan, created: Mapping[str, str], present: Callable[[str], TopicState | None]
) -> Iterator[Obstacle]:
    """Topics to which this same command has already restored everything.

    A user who sees a command die cannot know whether it had finished, and runs it again; that must not restore twice.
    """
    for name in _same_topics(plan, created, present):
        yield Obstacle(
            ObstacleKind.DONE_BEFORE,
            name,
            "the same command has already restored all of it",
            f"its report is in restores/{plan.restore_id}/ in the archive; say --again to restore it once more, "
            "into an empty topic, or with --offsets append after the existing records",
        )


def held_by(
    plan: RestorePlan, created: Mapping[str, str], present: Callable[[str], TopicState | None]
) -> Iterator[Obstacle]:
    """Topics that an interrupted restore by another command is writing to.

    Their configuration is the temporary one of that restore. A second restore would take it for the topic's own, and
    leave it in place for good.
    """
    for name in _same_topics(plan, created, present):
        yield Obstacle(
            ObstacleKind.HELD,
            name,
            f"the restore {plan.restore_id} into it, by another command, has not finished",
            "run that command again; or delete the topic to give that restore up",
        )


def _same_topics(
    plan: RestorePlan, created: Mapping[str, str], present: Callable[[str], TopicState | None]
) -> Iterator[str]:
    """The targets of the plan that still exist under the ids that its restore used."""
    for target in (topic.target for topic in plan.topics):
        found, known = present(target.name), target.target_id or created.get(target.name)
        if found is not None and found.topic_id == known:
            yield target.name


def refuse_changes(agreed: RestorePlan, now: RestorePlan, *, begun: bool) -> None:
    """RefusedError: `now` is not what was agreed to. `begun`: `now` is the stored plan of an interrupted restore.

    Any other MaxbrodError: one of the plans has a fatal obstacle.
    """
    for plan in (agreed, now):
        if (refused := refusal(plan.obstacles)) is not None:
            raise refused
    what = None if begun else next(_changes(agreed, now), None)
    # The rate is how the plan is carried out, not what it does.
    if begun and replace(now, rate_bytes_per_s=None) != replace(agreed, rate_bytes_per_s=None):
        what = "the same command was begun elsewhere in the meantime"
    if what is not None:
        raise RefusedError(
            f"the plan has changed since it was confirmed: {what}",
            operation="restore",
            object_name=agreed.restore_id,
            hint="nothing was changed; run the same command again, which shows the new plan",
        )


def _changes(agreed: RestorePlan, now: RestorePlan) -> Iterator[str]:
    if (agreed.restore_id, agreed.cluster_id) != (now.restore_id, now.cluster_id):
        yield "the same command was carried out elsewhere in the meantime"
    topics = {(topic.target.source_topic, topic.target.topic_id): topic for topic in now.topics}
    for topic in agreed.topics:
        name = topic.target.name
        found = topics.get((topic.target.source_topic, topic.target.topic_id))
        if found is None or not _holds(found, topic):
            yield f"the archive no longer holds all of {topic.target.source_topic}"
        elif found.target != topic.target:
            yield f"{name} was {'changed' if found.target.exists and topic.target.exists else 'created or deleted'}"
    if agreed.access != now.access:
        yield "ACLs, quotas or settings have changed"
    known = {(obstacle.kind, obstacle.where) for obstacle in agreed.obstacles}
    for obstacle in now.obstacles:
        if obstacle.kind not in _PASSING and (obstacle.kind, obstacle.where) not in known:
            yield str(obstacle)


def _holds(now: TopicPlan, agreed: TopicPlan) -> bool:
    """True if the archive still holds all offsets; more of them do no harm."""
    found = {partition.source.partition: partition.source for partition in now.partitions}
    sources = (partition.source for partition in agreed.partitions)
    return all(
        source.partition in found
        and found[source.partition].asked_first <= source.asked_first
        and found[source.partition].asked_end >= source.asked_end
        for source in sources
    )
