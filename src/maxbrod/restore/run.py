"""Restores an archive into a cluster: plan, agree, store, prepare, write, finish, report.

The plan is stored in the archive before anything is changed. After a crash the same command finds it, reads from the
target's logs how far they got, and continues there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from maxbrod.archive.archive import Archive, open_archive
from maxbrod.batch.provenance import Provenance
from maxbrod.batch.schema_ids import SchemaIdMap
from maxbrod.config import StorageConfig
from maxbrod.errors import CorruptDataError, UnavailableError
from maxbrod.groups.movement import Movement, archived_groups, plan_moves
from maxbrod.groups.plan import active_groups, missing_groups, unplaced_groups
from maxbrod.kafka.produce.producer_ids import new_producer_id
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import PartitionId, TopicPartition, now_ms
from maxbrod.restore.archived import (
    ArchivedState,
    Losses,
    damaged_part,
    find_losses,
    joined,
    listed_losses,
    look_at_archive,
    losses_of,
    plan_archived,
    planned_rows,
    sound_slices,
    unknown_losses,
)
from maxbrod.restore.items import Restored, RestoreItem, RestoreSettings, SharedItem, run_restore_tasks, shared_items
from maxbrod.restore.meter import metering_logs
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind, in_order, refusal
from maxbrod.restore.plan.plan import (
    PartitionRestore,
    RestorePlan,
    TopicPlan,
    done_before,
    held_by,
    part_of,
    refuse_changes,
    sources_of,
    without_lost,
)
from maxbrod.restore.plan.preflight import lost_obstacles
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest, choose_groups, command_digest, in_stages
from maxbrod.restore.plan.sources import revisions_of, rows_to_read
from maxbrod.restore.plan.targets import Right, TargetState
from maxbrod.restore.report import RestoreReport, ended_by_stop, report_of
from maxbrod.restore.schemas import SchemaRestore
from maxbrod.restore.staging import as_staged, clear_staging, open_staged, plan_transform, stage, transform_session
from maxbrod.restore.state import (
    alone,
    find_finished,
    find_interrupted,
    keep_producers,
    next_id,
    others_interrupted,
    read_plan,
    read_topics,
    store_lost,
    store_plan,
    store_report,
    store_topics,
)
from maxbrod.restore.target import (
    TargetTopics,
    look_at_target,
    missing_transactions,
    refused_creations,
    restore_acls,
    restore_quotas,
    restore_settings,
)
from maxbrod.transform.plan import TransformPlan
from maxbrod.work.executor import Executor, Workers
from maxbrod.work.jobs import SparkExecutor
from maxbrod.work.preflight import needs_of
from maxbrod.work.session import Session
from maxbrod.work.windows import rate_of_one, spread
from maxbrod.work.work import Work

if TYPE_CHECKING:
    Slices = dict[PartitionId, list[Slice]]


class Restore:
    """One request, one archive, one cluster. Use it in a `with`."""

    def __init__(self, work: Work, request: RestoreRequest, *, workers: Workers | None = None) -> None:
        """`workers`: write with these, and leave them open."""
        self._work, self._config, self._request = work, work.config, request
        self._patience_s, self._workers = work.config.patience, workers
        kafka = work.config.cluster
        self._archive = open_archive(
            work.config.archive_url, work.config.storage, layout=work.config.layout, records=True
        )
        self._undo = ExitStack()
        self._client = self._undo.enter_context(KafkaClient(kafka, stop=work.stop))
        self._schemas = SchemaRestore(work.config, request, self._archive.storage)
        self._resumed = False
        """True if the last plan is that of a restore that was started before."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def plan(self) -> RestorePlan:
        """The plan for the request; or the stored plan of an interrupted restore by the same command."""
        plan = self._plan(self._request)
        if self._request.transform is None or plan.transform is not None:
            return plan
        transform = plan_transform(self._spark(), self._archive, self._request, plan.restore_id)
        return replace(plan, transform=transform)

    def run(self, plan: RestorePlan) -> RestoreReport:
        """Carry out the plan that was agreed to. After any failure run it again: it resumes.

        IncompleteError: `stop` was set before everything was restored. RefusedError: the plan is out of date.
        """
        with ended_by_stop(self._work, plan), alone(plan.restore_id):
            return self._carry_out(self._agree(plan))

    # Planning

    def _plan(self, request: RestoreRequest, staged: Archive | None = None) -> RestorePlan:
        """`staged`: plan with these transformed records. It has the same partitions as the archive."""
        self._work.tell("planning")
        archived = self._archived
        snapshot, topics = archived.moment.cluster, archived.chosen.topics.values()
        groups, _ = choose_groups(self._request.groups, () if snapshot is None else snapshot.groups)
        target = look_at_target(
            self._client,
            {self._request.rename.apply(name) for name in topics},
            {group.group_id for group in groups},
            patience_s=self._patience_s,
        )
        cluster_id = target.cluster.cluster_id or ""
        command = command_digest(self._request, archive=self._archive.url, cluster_id=cluster_id)
        begun = find_interrupted(self._archive.storage, command)
        self._resumed = begun is not None
        if begun is not None:
            return self._plan_rest(begun, archived)
        return self._plan_new(request, command, archived, target, staged)

    @cached_property
    def _archived(self) -> ArchivedState:
        """Read once for all plans: a catalog stays at the version that it has read."""
        return look_at_archive(self._archive, self._request)

    def _plan_rest(self, begun: RestorePlan, archived: ArchivedState) -> RestorePlan:
        """The stored plan, with what the archive has lost since."""
        # The rate is not part of what was planned: the user may want another one now.
        begun = replace(begun, rate_bytes_per_s=self._request.rate_bytes_per_s)
        if begun.transform is not None:
            return begun  # staged records do not depend on the archive any more
        lost = listed_losses(self._archive, archived.chosen.topics.keys(), revisions_of(sources_of(begun)))
        return without_lost(begun, unknown_losses(begun, lost), accepted=self._request.accept_gaps)

    def _plan_new(
        self,
        request: RestoreRequest,
        command: str,
        archived: ArchivedState,
        target: TargetState,
        staged: Archive | None,
    ) -> RestorePlan:
        snapshot, mine = archived.moment.cluster, self._request
        restore_id = next_id(self._archive.storage, command)
        plan = plan_archived(archived, request, target, restore_id=restore_id, staged=staged)
        obstacles = [
            *plan.obstacles,
            *archived.obstacles(accepted=mine.accept_gaps),
            *missing_groups(plan.groups, snapshot),
            *unplaced_groups(plan.groups, snapshot, plan, strict=mine.strict),
            *active_groups(plan.groups, snapshot, target.cluster, forced=mine.force_groups),
            *self._begun_before(command, target),
            *refused_creations(self._client, plan, patience_s=self._patience_s),
        ]
        schemas, more = self._schemas.plan(archived.moment)
        obstacles += more
        if not target.rights.get(Right.CLUSTER_ACTION):
            obstacles += missing_transactions(self._client, plan, patience_s=self._patience_s)
        return replace(plan, command=command, obstacles=in_order(obstacles), schemas=schemas)

    def _begun_before(self, command: str, target: TargetState) -> Iterator[Obstacle]:
        storage = self._archive.storage
        finished = find_finished(storage, command)
        if finished is not None and not self._request.again:
            yield from done_before(finished, read_topics(storage, finished.restore_id), target.cluster.topic)
        for other in others_interrupted(storage, command):
            if other.cluster_id == target.cluster.cluster_id:
                yield from held_by(other, read_topics(storage, other.restore_id), target.cluster.topic)

    def _agree(self, plan: RestorePlan) -> RestorePlan:
        """The plan to carry out: the one that was agreed to, if planning again gives the same.

        Planning runs again under the lock. Between the first plan and the lock another process of this machine may
        have started or finished the same restore, and anybody may have changed the target. From here on no other
        process of this machine starts it; on other machines, the stored plan and producer ids keep two processes from
        writing a record twice.
        """
        now = self._plan(self._request)
        refuse_changes(plan, now, begun=self._resumed)
        return now if self._resumed else plan

    # Carrying out

    def _carry_out(self, plan: RestorePlan) -> RestoreReport:
        started_at_ms, resumed = now_ms(), self._resumed
        plan = self._store(plan)
        if plan.schemas is not None:
            # First, because it can be refused, and because nobody can read a record whose schema is missing.
            self._work.tell("restoring schemas")
            plan = replace(plan, schemas=self._schemas.apply(plan.schemas, plan.restore_id))
        topics, producer_id = self._prepare(plan)
        plan, restored, usable = self._write(plan, topics, producer_id)
        failed = any(outcome.failure is not None for outcome in restored)
        if not failed:
            restore_quotas(self._client, plan, patience_s=self._patience_s)
            restore_settings(self._client, plan, patience_s=self._patience_s)
        report = report_of(plan, restored, started_at_ms=started_at_ms, resumed=resumed, usable_at_ms=usable)
        return report if failed else self._finish(plan, report)

    def _store(self, plan: RestorePlan) -> RestorePlan:
        """Store the plan, or what a resumed one leaves out in addition. Nothing at the target has changed yet."""
        storage = self._archive.storage
        if not self._resumed:
            plan = self._staged(plan)
            store_plan(storage, plan)
        elif fresh := unknown_losses(read_plan(storage, plan.restore_id), losses_of(plan)):
            store_lost(storage, plan.restore_id, fresh)
        return plan

    def _prepare(self, plan: RestorePlan) -> tuple[TargetTopics, int]:
        """Create and configure topics, create ACLs, and move logs to their first offset. Returns the producer id."""
        self._work.tell("preparing topics")
        storage = self._archive.storage
        topics = TargetTopics(self._client, patience_s=self._patience_s)
        topics.prepare(plan, read_topics(storage, plan.restore_id))
        # Before the first record: a topic that holds records is recognized as ours only by its id.
        created = {topic.target.name for topic in plan.topics if not topic.target.exists}
        store_topics(storage, plan.restore_id, {name: topics.ids[name] for name in created})
        restore_acls(self._client, plan, patience_s=self._patience_s)
        # One id serves all partitions: brokers keep sequence numbers for each partition.
        producers = keep_producers(storage, plan.restore_id, lambda: new_producer_id(self._client).producer_id)
        topics.fill_starts(plan, producers.fillers)
        return topics, producers.records

    def _write(
        self, plan: RestorePlan, topics: TargetTopics, producer_id: int
    ) -> tuple[RestorePlan, list[Restored], dict[str, int]]:
        """Write stage by stage, and release the topics of a stage as soon as they are complete.

        Returns the plan without damaged ranges, if the user accepts to lose them; the outcome of every partition; and
        the time at which each target topic could be used.
        """
        workers = self._workers or self._work.workers(needs_of(self._config))
        executor, restored, usable = workers.for_bytes(plan.bytes), list[Restored](), dict[str, int]()
        for names in in_stages(self._request.order, {topic.target.source_topic for topic in plan.topics}):
            if self._work.is_stopped():
                raise UnavailableError("the restore was stopped", operation="restore")
            plan, outcomes = self._write_stage(executor, plan, names, topics, producer_id)
            restored += outcomes
            if all(outcome.failure is None for outcome in outcomes):
                self._work.tell("releasing topics")
                complete = part_of(plan, names)
                topics.release(complete)
                usable |= dict.fromkeys((topic.target.name for topic in complete.topics), now_ms())
        return plan, restored, usable

    def _write_stage(
        self, executor: Executor, plan: RestorePlan, names: Container[str], topics: TargetTopics, producer_id: int
    ) -> tuple[RestorePlan, list[Restored]]:
        restored = self._write_once(executor, plan, part_of(plan, names), topics, producer_id)
        while lost := self._accepted_losses(executor, part_of(plan, names), restored):
            # Stored before any record that follows them is written: a resumed restore must leave out the same.
            store_lost(self._archive.storage, plan.restore_id, lost)
            plan = without_lost(plan, lost, accepted=True)
            again = damaged_part(part_of(plan, names), restored)
            restored = joined(plan, restored, self._write_once(executor, plan, again, topics, producer_id))
        return plan, restored

    def _write_once(
        self, executor: Executor, whole: RestorePlan, plan: RestorePlan, topics: TargetTopics, producer_id: int
    ) -> list[Restored]:
        """Write a part of the whole plan."""
        slices = restore_slices(self._archive, self._config.storage, plan, self._request)
        tasks = restore_tasks(self._archive, plan, topics, slices, executor.parallelism, self._id_map)
        if not tasks:
            return []
        settings = RestoreSettings(
            restore_id=plan.restore_id,
            archive_url=self._archive.url if plan.transform is None else plan.transform.staging,
            kafka=self._config.cluster,
            storage=self._config.storage,
            producer_id=producer_id,
            since_ms=plan.since_ms,
            until_ms=plan.until_ms,
            markers=topics.markers_allowed,
            rate_bytes_per_s=rate_of_one(plan.rate_bytes_per_s, len(tasks)),
            batches=self._request.batches,
            patience_s=self._patience_s,
        )
        with metering_logs(self._config.cluster, whole, self._work.on_progress, tasks=len(tasks)) as meter:
            return run_restore_tasks(executor, settings, tasks, meter=meter, stop=self._work.stop)

    def _id_map(self, plan: RestorePlan, topic: str) -> SchemaIdMap | None:
        return self._schemas.map_for(plan.schemas, plan.restore_id, topic)

    def _finish(self, plan: RestorePlan, report: RestoreReport) -> RestoreReport:
        """Move groups, store the report, and remove staged records."""
        storage = self._archive.storage
        if plan.groups:
            # Before the report, which ends the restore: after a crash here the same command moves them again.
            self._work.tell("moving groups")
            moves, missing = plan_moves(self._archive, plan, report.partitions, plan.groups)
            force = self._request.force_groups
            movement = Movement(self._client, storage, plan, patience_s=self._patience_s, force=force)
            report = replace(report, groups=movement.apply(moves), groups_missing=missing)
        store_report(storage, plan.restore_id, report.as_dict())
        left = None if plan.transform is None else clear_staging(self._config, plan.transform)
        return report if left is None else replace(report, warnings=(*report.warnings, left))

    # Expressions

    def _spark(self) -> Session:
        """The session for expressions. It is opened once and also does the work that follows."""
        if self._work.session is None:
            self._work.session = self._undo.enter_context(transform_session(self._work, self._request))
        return self._work.session

    def _staged(self, plan: RestorePlan) -> RestorePlan:
        """Transform the records before anything is changed, and plan again with the transformed ones."""
        if plan.transform is None:
            return plan
        plan, staged, transform = self._stage(plan, plan.transform)
        again = self._plan(as_staged(self._request, transform), staged)
        if (refused := refusal(again.obstacles)) is not None:
            raise refused
        left_out = (
            obstacle for source in sources_of(plan) for obstacle in lost_obstacles(source, source.lost, accepted=True)
        )
        pruned = (obstacle for obstacle in plan.obstacles if obstacle.kind is ObstacleKind.PRUNED)
        obstacles = in_order([*again.obstacles, *left_out, *pruned])
        return replace(again, restore_id=plan.restore_id, transform=transform, obstacles=obstacles)

    def _stage(self, plan: RestorePlan, transform: TransformPlan) -> tuple[RestorePlan, Archive, TransformPlan]:
        """Stage the records, without damaged ranges if the user accepts to lose them. The plan names those."""
        session = self._spark()
        while True:
            try:
                staged, done = stage(self._work, session, self._archive, self._request, plan, transform)
            except CorruptDataError:
                read = replace(plan, transform=None)
                lost = self._damage(SparkExecutor(session), read) if self._request.accept_gaps else {}
                if not lost:
                    raise
                plan = without_lost(plan, lost, accepted=True)
            else:
                return plan, staged, done

    # Damage

    def _accepted_losses(self, executor: Executor, plan: RestorePlan, restored: Sequence[Restored]) -> Losses:
        """Unreadable ranges, not yet known, of partitions that damage has stopped, if the user accepts to lose them."""
        if not self._request.accept_gaps or plan.transform is not None:
            return {}
        return self._damage(executor, damaged_part(plan, restored))

    def _damage(self, executor: Executor, plan: RestorePlan) -> Losses:
        if not plan.topics:
            return {}
        slices = restore_slices(self._archive, self._config.storage, plan, self._request)
        return find_losses(self._work, executor, self._archive, plan, slices)


def restore_slices(archive: Archive, storage: StorageConfig, plan: RestorePlan, request: RestoreRequest) -> Slices:
    """The slices of all sources by partition, in the order of offsets: of the archive, or of what is staged.

    The catalog is read once, whatever the number of partitions.
    """
    sources = sources_of(plan)
    if plan.transform is not None:
        archive, request = open_staged(plan.transform.staging, storage), as_staged(request, plan.transform)
    return sound_slices(archive, rows_to_read(planned_rows(archive, plan), sources, request), sources)


def _unmapped(plan: RestorePlan, topic: str) -> SchemaIdMap | None:  # noqa: ARG001 - of no plan and no topic
    return None


def restore_tasks(
    archive: Archive,
    plan: RestorePlan,
    topics: TargetTopics,
    slices: Slices,
    parallelism: int,
    id_map: Callable[[RestorePlan, str], SchemaIdMap | None] = _unmapped,
) -> list[list[RestoreItem | SharedItem]]:
    """Partitions spread over as many tasks as can run at once, the largest first.

    `id_map`: the map of schema ids for a topic of the archive.
    """
    maps = {topic.target.source_topic: id_map(plan, topic.target.source_topic) for topic in plan.topics}
    items: list[tuple[int, RestoreItem | SharedItem]] = [
        (
            partition.source.bytes,
            replace(_item(plan, topic, partition, where, topics, slices), schema_ids=maps[topic.target.source_topic]),
        )
        for topic in plan.topics
        for where, partition in topic.placed()
        if not topic.target.repartitioned
    ]
    items += (
        (size, replace(item, schema_ids=maps[source]))
        for size, source, item in _shared_items(archive, plan, topics, slices, parallelism)
    )
    return spread(items, parallelism)


def _item(
    plan: RestorePlan,
    topic: TopicPlan,
    planned: PartitionRestore,
    where: TopicPartition,
    topics: TargetTopics,
    slices: Slices,
) -> RestoreItem:
    source, target = planned.source, topic.target
    exact = planned.offsets.mode is OffsetsMode.EXACT
    provenance = Provenance(
        topic=target.source_topic,
        partition=source.partition,
        cluster_id=plan.source_cluster_id,
        restore_id=plan.restore_id,
    )
    return RestoreItem(
        where=where,
        topic_id=topics.ids[target.name],
        exact=exact,
        base=source.first_offset if exact else target.bases[source.partition],
        first_offset=source.first_offset,
        end_offset=source.asked_end,
        batch_bytes_max=topics.batch_bytes_max(target),
        slices=tuple(slices.get(source.id, ())),
        provenance=provenance if plan.provenance else None,
        lossy=bool(source.lost),
    )


def _shared_items(
    archive: Archive,
    plan: RestorePlan,
    topics: TargetTopics,
    slices: Mapping[PartitionId, Sequence[Slice]],
    parallelism: int,
) -> Iterator[tuple[int, str, SharedItem]]:
    """Items of repartitioned topics. A topic gets the same part of all tasks as it has of all bytes."""
    shared = [topic for topic in plan.topics if topic.target.repartitioned]
    groups = archived_groups(archive, plan) if shared else ()
    for topic in shared:
        size = sum(partition.source.bytes for partition in topic.partitions)
        items = shared_items(
            topic,
            slices,
            groups,
            topic_id=topics.ids[topic.target.name],
            batch_bytes_max=topics.batch_bytes_max(topic.target),
            tasks=-(-parallelism * size // max(plan.bytes, 1)),
        )
        # Each item reads all of its topic.
        yield from ((size, topic.target.source_topic, item) for item in items)
