"""The plan of a restore: all that will be done, as one value. What `--dry-run` prints is what runs.

It speaks of offsets and names, not of objects, so that it stays true while the archive's segments are compacted; and it
is stored before the first record is produced, so that whoever goes on after a crash does what was begun.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from maxbrod.model import TopicPartition
from maxbrod.planning.restore.access import AccessPlan, plan_access
from maxbrod.planning.restore.access_preflight import find_access_obstacles
from maxbrod.planning.restore.blocks import Block, plan_blocks
from maxbrod.planning.restore.choosing import choose_groups
from maxbrod.planning.restore.obstacles import Obstacle, ObstacleKind, in_order
from maxbrod.planning.restore.offsets_mode import OffsetsPlan, plan_offsets
from maxbrod.planning.restore.permissions import find_missing_rights
from maxbrod.planning.restore.preflight import Subject, find_obstacles
from maxbrod.planning.restore.sources import Source, measure_sources
from maxbrod.planning.restore.targets import Right, TargetTopic, count_partitions, plan_target
from maxbrod.planning.restore.wish import OffsetsMode, command_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from maxbrod.catalog.replaced import Revisions
    from maxbrod.catalog.rows import PartitionId
    from maxbrod.kafka.cluster_state import ClusterState
    from maxbrod.planning.restore.choosing import Chosen
    from maxbrod.planning.restore.targets import TargetState
    from maxbrod.planning.restore.wish import Wish
    from maxbrod.planning.transform import TransformPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """One source partition. Unless its topic is repartitioned it goes to the target's of the same number."""

    source: Source
    offsets: OffsetsPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    target: TargetTopic
    partitions: tuple[PartitionPlan, ...]
    blocks: tuple[Block, ...] = ()
    """Of a repartitioned topic: the order in which all is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What a plan was made from. Neither name holds a secret."""

    url: str
    version: int
    """Of the catalog."""
    run_id: str | None
    """Whose snapshot says what topics and groups were like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    restore_id: str
    command: str
    """The digest of the command: the same again goes on with this restore."""
    archive: Archive
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
    """The ACLs and quotas that come back."""
    provenance: bool = False
    source_cluster_id: str | None = None
    """Of the cluster that was archived, where its snapshot knows it."""
    transform: TransformPlan | None = None
    """What records go through before they are restored."""

    @property
    def records(self) -> int:
        return sum(each.source.records for topic in self.topics for each in topic.partitions)

    @property
    def bytes(self) -> int:
        return sum(each.source.bytes for topic in self.topics for each in topic.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """One line of a table: a topic, or the partitions of one that are alike in what is done about their offsets."""

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


def plan_restore(
    wish: Wish,
    *,
    restore_id: str,
    archive: Archive,
    chosen: Chosen,
    rows: pa.Table,
    ends: Mapping[PartitionId, int],
    snapshot: ClusterState | None,
    target: TargetState,
    now_ms: int,
    revisions: Revisions | None = None,
) -> RestorePlan:
    """`rows` of the chosen topics have the columns of `SOURCE_COLUMNS`; `ends` and `snapshot` are of `archive.run_id`.

    `revisions` are those that the rows are of.

    Obstacles do not keep a plan from being made: `obstacles.refusal` says whether it may run.
    """
    sources = measure_sources(rows, wish, chosen, ends, as_of=wish.as_of is not None, revisions=revisions)
    counts: dict[str, int] = {}
    for each in ends:
        counts[each.topic_id] = max(counts.get(each.topic_id, 0), each.partition + 1)
    subjects = [_subject(wish, group, counts, snapshot, target) for group in _by_topic(sources)]
    access = plan_access(
        wish,
        snapshot,
        target.cluster,
        topics={each.target.source_topic: each.target.name for each in subjects},
        groups=[group.group_id for group in choose_groups(wish.groups, () if snapshot is None else snapshot.groups)[0]],
    )
    obstacles = [
        *_missing(wish, chosen, sources),
        *find_obstacles(wish, subjects, target, now_ms=now_ms),
        *find_missing_rights(wish, subjects, target, access),
        *find_access_obstacles(wish, snapshot, target, access),
    ]
    cluster_id = target.cluster.cluster_id or ""
    return RestorePlan(
        restore_id=restore_id,
        command=command_digest(wish, archive=archive.url, cluster_id=cluster_id),
        archive=archive,
        cluster_id=cluster_id,
        planned_at_ms=now_ms,
        since_ms=wish.since_ms,
        until_ms=wish.until_ms,
        rate_bytes_per_s=wish.rate_bytes_per_s,
        topics=tuple(_topic_plan(each, rows) for each in subjects),
        groups=wish.groups,
        with_acls=wish.with_acls,
        with_quotas=wish.with_quotas,
        access=access,
        provenance=wish.provenance,
        source_cluster_id=None if snapshot is None else snapshot.cluster_id,
        obstacles=in_order(obstacles),
    )


def describe(plan: RestorePlan) -> tuple[PlanLine, ...]:
    """What a person reads: a line for each topic, and one more where its partitions differ in their offsets."""
    return tuple(line for topic in plan.topics for line in _lines(topic))


def _by_topic(sources: Sequence[Source]) -> Iterator[list[Source]]:
    return (list(group) for _, group in groupby(sources, key=lambda each: (each.topic, each.topic_id)))


def _subject(
    wish: Wish,
    sources: list[Source],
    counts: Mapping[str, int],
    snapshot: ClusterState | None,
    state: TargetState,
) -> Subject:
    topic, topic_id = sources[0].topic, sources[0].topic_id
    archived = None if snapshot is None else snapshot.topic(topic)
    if archived is not None and archived.topic_id != topic_id:
        archived = None  # another incarnation, which may have looked otherwise
    count = count_partitions(sources, archived, counts.get(topic_id, 0))
    target = plan_target(wish, sources, archived, count, state)
    offsets = [
        plan_offsets(
            wish.offsets,
            source,
            state.extents.get(TopicPartition(topic=target.name, partition=source.partition)),
            repartitioned=target.repartitioned,
            markers_allowed=state.rights.get(Right.CLUSTER_ACTION),
        )
        for source in sources
    ]
    return Subject(target=target, archived=archived, sources=sources, offsets=offsets)


def _topic_plan(subject: Subject, rows: pa.Table) -> TopicPlan:
    target, pairs = subject.target, zip(subject.sources, subject.offsets, strict=True)
    return TopicPlan(
        target=target,
        partitions=tuple(PartitionPlan(source=source, offsets=offsets) for source, offsets in pairs),
        blocks=plan_blocks(rows, subject.sources, target.partition_count) if target.repartitioned else (),
    )


def _missing(wish: Wish, chosen: Chosen, sources: Sequence[Source]) -> Iterator[Obstacle]:
    """What was asked for by name or number, and is not there."""

    def missing(what: str, where: str | None, kind: ObstacleKind = ObstacleKind.TOPIC_MISSING) -> Obstacle:
        return Obstacle(kind=kind, where=where, what=what, hint="see 'maxbrod ls'", fatal=True)

    for name in chosen.missing:
        yield missing(f"the archive has no topic {name}", name)
    known = {TopicPartition(topic=source.topic, partition=source.partition) for source in sources}
    for where in (each.where for each in wish.ranges if each.where.topic not in chosen.missing):
        if where not in known:
            yield missing(f"the archive has no partition {where}, or it is not asked for", str(where))
    for partition in sorted(wish.partitions - {source.partition for source in sources}):
        yield missing(f"no topic that is restored has a partition {partition}", None)
    if not sources and not chosen.missing:
        yield missing("nothing in the archive is what was asked for", None, ObstacleKind.NOTHING_CHOSEN)


def _lines(topic: TopicPlan) -> Iterator[PlanLine]:
    for mode in (OffsetsMode.EXACT, OffsetsMode.APPEND):
        alike = [each for each in topic.partitions if each.offsets.mode is mode]
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
        )
