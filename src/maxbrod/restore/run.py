"""Restores an archive into a cluster: plans, prepares topics, lets Spark append, sets everything right in the end.

What was planned is stored in the archive before anything is changed. After a crash the same command finds it, asks the
target's logs how far they are, and goes on exactly there.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from maxbrod.archive.incarnations import Incarnation, newest_ids
from maxbrod.archive.opening import open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.batch.provenance import Provenance
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.engine.progress import Progress, silent
from maxbrod.engine.session import open_configured, parallelism_of
from maxbrod.engine.windows import spread
from maxbrod.errors import CorruptDataError, IncompleteError, UnavailableError, UsageError
from maxbrod.groups.movement import Movement
from maxbrod.groups.moves import active_groups, archived_groups, missing_groups, plan_moves, unplaced_groups
from maxbrod.kafka.produce.producer_ids import new_producer_id
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import PartitionId, TopicPartition, now_ms
from maxbrod.restore.access import restore_acls, restore_quotas
from maxbrod.restore.damage import damage, without_snapshot
from maxbrod.restore.job import run_restore_job
from maxbrod.restore.lock import alone
from maxbrod.restore.loss import damaged_part, joined, listed_losses, losses_of, sound_slices, unknown_losses
from maxbrod.restore.loss_job import run_loss_job
from maxbrod.restore.meter import RestoreMeter
from maxbrod.restore.plan.changes import refuse_changes
from maxbrod.restore.plan.choosing import choose_groups, choose_incarnations
from maxbrod.restore.plan.columns import SOURCE_COLUMNS
from maxbrod.restore.plan.obstacles import in_order, refusal
from maxbrod.restore.plan.plan import RestorePlan, SourceArchive, plan_restore, sources_of, without_lost
from maxbrod.restore.plan.preflight import lost_obstacles
from maxbrod.restore.plan.request import OffsetsMode, command_digest
from maxbrod.restore.plan.resume import done_before, held_by
from maxbrod.restore.plan.sources import revisions_of, rows_to_read
from maxbrod.restore.plan.targets import Right
from maxbrod.restore.repartition.work import shared_items
from maxbrod.restore.report import AGAIN, RestoreReport, report_of
from maxbrod.restore.rights import missing_transactions
from maxbrod.restore.staging import open_staged
from maxbrod.restore.state import (
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
from maxbrod.restore.target import TargetTopics, look_at_target
from maxbrod.restore.task import RestoreItem, RestoreSettings
from maxbrod.restore.transforming import as_staged, clear_staging, plan_transform, stage, transform_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from maxbrod.archive.opening import Archive as AnyArchive
    from maxbrod.config import Config
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session
    from maxbrod.kafka.state.cluster_state import ClusterState
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.restore.items import SharedItem
    from maxbrod.restore.loss import LostOf
    from maxbrod.restore.plan.obstacles import Obstacle
    from maxbrod.restore.plan.plan import PartitionRestore, TopicPlan
    from maxbrod.restore.plan.request import RestoreRequest
    from maxbrod.restore.plan.targets import TargetState
    from maxbrod.restore.task import Restored
    from maxbrod.transform.plan import TransformPlan


class Restore:
    """One request, one archive, one cluster. Use it in a `with`."""

    def __init__(
        self,
        config: Config,
        request: RestoreRequest,
        *,
        session: Session | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
    ) -> None:
        if config.kafka is None:
            raise UsageError("no cluster is named", hint="give --bootstrap, or kafka.bootstrap in the configuration")
        if config.archive is None:
            raise UsageError("no archive is named", hint="give --archive, or archive in the configuration")
        self._config, self._kafka, self._request = config, config.kafka, request
        self._archive = open_archive(config.archive, config.storage, layout=config.layout)
        self._session = session
        self._on_progress = on_progress
        self.stop = stop or threading.Event()
        self._undo = ExitStack()
        self._client = self._undo.enter_context(KafkaClient(config.kafka, stop=self.stop))
        self._snapshot: ClusterState | None = None
        self._resumed = False
        """Whether what was planned last is a restore that was begun before."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def plan(self) -> RestorePlan:
        """What would be done; or what was begun by the same command and not ended, as it was planned then."""
        plan = self._plan(self._request)
        if self._request.transform is None or plan.transform is not None:
            return plan
        transform = plan_transform(self._spark(), self._archive, self._request, plan.restore_id)
        return replace(plan, transform=transform)

    def _plan(self, request: RestoreRequest, staged: AnyArchive | None = None) -> RestorePlan:
        """Of what was staged, where something was: it has the same partitions, and other records."""
        self._on_progress(Progress(phase="planning"))
        archive, storage = self._archive, self._archive.storage
        # Without it topics would get the defaults of the target, and groups would be missed after all is written.
        needed = not self._request.accept_gaps
        moment = find_moment(storage, archive.catalog.runs(), self._request.as_of, needed=needed)
        self._snapshot = moment.cluster
        revisions = moment.revisions_in(archive.catalog)
        rows = archive.catalog.rows(columns=("topic", "written_at", *SOURCE_COLUMNS), revisions=revisions)
        ends = {} if moment.snapshot is None else moment.snapshot.ends
        topics = {} if moment.snapshot is None else dict(moment.snapshot.topics)
        topics |= dict(zip(rows["topic_id"].to_pylist(), rows["topic"].to_pylist(), strict=True))
        written = rows.group_by("topic_id").aggregate([("written_at", "min")]).to_pylist()
        first = {each["topic_id"]: each["written_at_min"] for each in written}
        incarnations = [
            Incarnation(topic=name, topic_id=topic_id, first_written_at=first.get(topic_id, 0))
            for topic_id, name in topics.items()
        ]
        chosen = choose_incarnations(self._request, topics, newest_ids(incarnations, moment.ranks))
        names = {self._request.rename.apply(name) for name in chosen.topics.values()}
        archived_groups = () if self._snapshot is None else self._snapshot.groups
        groups = {group.group_id for group in choose_groups(self._request.groups, archived_groups)[0]}
        patience_s = self._config.patience
        target = look_at_target(self._client, names, groups, patience_s=patience_s)
        command = command_digest(self._request, archive=archive.url, cluster_id=target.cluster.cluster_id or "")
        accepted = self._request.accept_gaps
        begun = find_interrupted(storage, command)
        self._resumed = begun is not None
        if begun is not None:
            revisions = revisions_of(sources_of(begun))
        # What was staged has been read already.
        lost = listed_losses(archive, chosen.topics.keys(), revisions) if staged is None else {}
        if begun is not None:
            # How fast is not what was planned: whoever goes on may be in more of a hurry, or in less.
            begun = replace(begun, rate_bytes_per_s=self._request.rate_bytes_per_s)
            unread = {} if begun.transform is not None else unknown_losses(begun, lost)
            return without_lost(begun, unread, accepted=accepted)
        plan = plan_restore(
            request,
            restore_id=next_id(storage, command),
            archive=SourceArchive(
                url=archive.url,
                version=archive.catalog.version,
                run_id=None if moment.run is None or moment.snapshot is None else moment.run.run_id,
            ),
            chosen=chosen,
            rows=rows if staged is None else staged.catalog.rows(columns=SOURCE_COLUMNS),
            ends=ends,
            snapshot=self._snapshot,
            target=target,
            now_ms=now_ms(),
            topic_runs=moment.topic_runs,
            access_runs=None if moment.known is None else moment.known.access_runs,
            lost=lost,
            revisions=revisions,
        )
        forced = self._request.force_groups
        obstacles = [
            *plan.obstacles,
            *damage(archive.survey, chosen.topics.values(), accepted=accepted),
            *without_snapshot(moment),
            *missing_groups(plan.groups, self._snapshot),
            *unplaced_groups(plan.groups, self._snapshot, plan, strict=self._request.strict),
            *active_groups(plan.groups, self._snapshot, target.cluster, forced=forced),
            *self._begun_before(command, target),
        ]
        if not target.rights.get(Right.CLUSTER_ACTION):
            obstacles += missing_transactions(self._client, plan, patience_s=patience_s)
        return replace(plan, command=command, obstacles=in_order(obstacles))

    def _spark(self) -> Session:
        """For expressions: opened once, and used for all that follows."""
        if self._session is None:
            opening = transform_session(self._config, self._request, on_progress=self._on_progress)
            self._session = self._undo.enter_context(opening)
        return self._session

    def _begun_before(self, command: str, target: TargetState) -> Iterator[Obstacle]:
        storage = self._archive.storage
        finished = find_finished(storage, command)
        if finished is not None and not self._request.again:
            yield from done_before(finished, read_topics(storage, finished.restore_id), target.cluster.topic)
        for other in others_interrupted(storage, command):
            if other.cluster_id == target.cluster.cluster_id:
                yield from held_by(other, read_topics(storage, other.restore_id), target.cluster.topic)

    def run(self, plan: RestorePlan) -> RestoreReport:
        """Do what the plan says. Run again after any failure: it goes on where the target is.

        IncompleteError: `stop` was set before all was done. RefusedError: it is not what would be planned now.
        """
        try:
            with alone(plan.restore_id):
                return self._run(self._agreed(plan))
        except UnavailableError as error:
            if self.stop.is_set():
                raise IncompleteError(
                    "stopped before everything was restored",
                    operation="restore",
                    object_name=plan.restore_id,
                    hint=AGAIN,
                ) from error
            raise

    def _agreed(self, plan: RestorePlan) -> RestorePlan:
        """The plan to run, once nobody else can begin it here: what was agreed to, if it still is what there is."""
        now = self._plan(self._request)
        for each in (plan, now):
            if (refused := refusal(each.obstacles)) is not None:
                raise refused
        refuse_changes(plan, now, begun=self._resumed)
        return now if self._resumed else plan

    def _run(self, plan: RestorePlan) -> RestoreReport:
        storage, resumed = self._archive.storage, self._resumed
        started_at_ms = now_ms()
        if not resumed:
            plan = self._staged(plan)
            store_plan(storage, plan)
        elif fresh := unknown_losses(read_plan(storage, plan.restore_id), losses_of(plan)):
            store_lost(storage, plan.restore_id, fresh)
        topics = TargetTopics(self._client, patience_s=self._config.patience)
        self._on_progress(Progress(phase="preparing topics"))
        created = read_topics(storage, plan.restore_id)
        topics.prepare(plan, created)
        # Before the first record: from then on only its id tells such a topic from one that somebody else made.
        made = {each.target.name for each in plan.topics if not each.target.exists}
        store_topics(storage, plan.restore_id, {name: topics.ids[name] for name in made})
        restore_acls(self._client, plan, patience_s=self._config.patience)
        # One id serves all partitions: brokers count sequence numbers for each of them.
        producers = keep_producers(storage, plan.restore_id, lambda: new_producer_id(self._client).producer_id)
        topics.fill_starts(plan, producers.fillers)
        plan, restored = self._append(plan, topics, producers.records)
        failed = [each for each in restored if each.failure is not None]
        if failed:
            return report_of(plan, restored, started_at_ms=started_at_ms, resumed=resumed)
        self._on_progress(Progress(phase="releasing topics"))
        topics.release(plan)
        restore_quotas(self._client, plan, patience_s=self._config.patience)
        report = report_of(plan, restored, started_at_ms=started_at_ms, resumed=resumed)
        if plan.groups:
            # Before the report, which ends the restore: killed here, the same command comes by once more.
            self._on_progress(Progress(phase="moving groups"))
            moves = plan_moves(self._archive, plan, report.partitions, plan.groups)
            report = replace(report, groups=self._movement(plan).apply(moves.offsets), groups_missing=moves.missing)
        store_report(storage, plan.restore_id, report.as_dict())
        left = None if plan.transform is None else clear_staging(self._config, plan.transform)
        return report if left is None else replace(report, warnings=(*report.warnings, left))

    def _staged(self, plan: RestorePlan) -> RestorePlan:
        """Records are transformed before anything is touched; what is planned of them is planned anew."""
        if plan.transform is None:
            return plan
        plan, staged, transform = self._stage(plan, plan.transform)
        again = self._plan(as_staged(self._request, transform), staged)
        if (refused := refusal(again.obstacles)) is not None:
            raise refused
        left_out = (each for source in sources_of(plan) for each in lost_obstacles(source, source.lost, accepted=True))
        obstacles = in_order([*again.obstacles, *left_out])
        return replace(again, restore_id=plan.restore_id, transform=transform, obstacles=obstacles)

    def _stage(self, plan: RestorePlan, transform: TransformPlan) -> tuple[RestorePlan, AnyArchive, TransformPlan]:
        """Without what turns out to be damaged, if that is accepted: the plan says what that is."""
        session, config, progress = self._spark(), self._config, self._on_progress
        while True:
            try:
                staged, done = stage(
                    session, config, self._archive, self._request, plan, transform, on_progress=progress, stop=self.stop
                )
            except CorruptDataError:
                read = replace(plan, transform=None)
                lost = self._damage(session, read) if self._request.accept_gaps else {}
                if not lost:
                    raise
                plan = without_lost(plan, lost, accepted=True)
            else:
                return plan, staged, done

    def _movement(self, plan: RestorePlan) -> Movement:
        return Movement(
            self._client,
            self._archive.storage,
            plan,
            patience_s=self._config.patience,
            force=self._request.force_groups,
        )

    def _append(self, plan: RestorePlan, topics: TargetTopics, producer_id: int) -> tuple[RestorePlan, list[Restored]]:
        """What became of every partition; and the plan, without what turned out to be damaged, if that is accepted."""
        if self.stop.is_set():
            raise UnavailableError("nobody waits for it any more", operation="restore")
        self._on_progress(Progress(phase="starting Spark"))
        with open_configured(self._config.spark, self._session) as session:
            restored = self._append_all(session, plan, topics, producer_id)
            while lost := self._accepted_losses(session, plan, restored):
                # Before anything stands behind it: whoever goes on must leave out the same.
                store_lost(self._archive.storage, plan.restore_id, lost)
                plan = without_lost(plan, lost, accepted=True)
                again = damaged_part(plan, restored)
                restored = joined(plan, restored, self._append_all(session, again, topics, producer_id))
            return plan, restored

    def _append_all(
        self, session: Session, plan: RestorePlan, topics: TargetTopics, producer_id: int
    ) -> list[Restored]:
        tasks = self._tasks(plan, topics, parallelism_of(self._config.spark.master, session))
        rate = plan.rate_bytes_per_s
        settings = RestoreSettings(
            restore_id=plan.restore_id,
            archive_url=self._archive.url if plan.transform is None else plan.transform.staging,
            kafka=self._kafka,
            storage=self._config.storage,
            producer_id=producer_id,
            since_ms=plan.since_ms,
            until_ms=plan.until_ms,
            markers=topics.markers_allowed,
            rate_bytes_per_s=None if rate is None else rate / max(len(tasks), 1),
            patience_s=self._config.patience,
        )
        if not tasks:
            return []
        with RestoreMeter(self._kafka, plan, self._on_progress, tasks=len(tasks)) as meter:
            return run_restore_job(session, settings, tasks, on_done=meter.tasks_done, stop=self.stop)

    def _accepted_losses(self, session: Session, plan: RestorePlan, restored: Sequence[Restored]) -> LostOf:
        """What cannot be read of partitions that damage has ended, and nobody knew of, if that is accepted."""
        if not self._request.accept_gaps or plan.transform is not None:
            return {}
        return self._damage(session, damaged_part(plan, restored))

    def _damage(self, session: Session, plan: RestorePlan) -> LostOf:
        if not plan.topics:
            return {}
        self._on_progress(Progress(phase="looking for damage"))
        found = run_loss_job(
            session,
            self._archive.url,
            self._config.storage,
            self._slices(plan),
            name=f"damage-{plan.restore_id}",
            parallelism=parallelism_of(self._config.spark.master, session),
            stop=self.stop,
        )
        return unknown_losses(plan, found)

    def _tasks(self, plan: RestorePlan, topics: TargetTopics, parallelism: int) -> list[list[RestoreItem | SharedItem]]:
        """Partitions spread over as many tasks as can run at once, the largest first."""
        slices = self._slices(plan)
        items: list[tuple[int, RestoreItem | SharedItem]] = [
            (each.source.bytes, self._item(plan, topic, each, topics, slices.get(each.source.id, [])))
            for topic in plan.topics
            for each in topic.partitions
            if not topic.target.repartitioned
        ]
        items += self._shared_items(plan, topics, slices, parallelism)
        return spread(items, parallelism)

    def _shared_items(
        self,
        plan: RestorePlan,
        topics: TargetTopics,
        slices: Mapping[PartitionId, Sequence[Slice]],
        parallelism: int,
    ) -> Iterator[tuple[int, SharedItem]]:
        """As large a part of all tasks as a topic is of all bytes; each of its items reads all of it."""
        shared = [each for each in plan.topics if each.target.repartitioned]
        groups = archived_groups(self._archive, plan) if shared else ()
        for topic in shared:
            size = sum(each.source.bytes for each in topic.partitions)
            items = shared_items(
                topic,
                slices,
                groups,
                topic_id=topics.ids[topic.target.name],
                batch_bytes_max=topics.batch_bytes_max(topic.target),
                tasks=-(-parallelism * size // max(plan.bytes, 1)),
            )
            yield from ((size, each) for each in items)

    def _item(
        self,
        plan: RestorePlan,
        topic: TopicPlan,
        each: PartitionRestore,
        topics: TargetTopics,
        slices: Sequence[Slice],
    ) -> RestoreItem:
        source, target = each.source, topic.target
        exact = each.offsets.mode is OffsetsMode.EXACT
        return RestoreItem(
            where=TopicPartition(topic=target.name, partition=source.partition),
            topic_id=topics.ids[target.name],
            exact=exact,
            base=source.first_offset if exact else target.bases[source.partition],
            first_offset=source.first_offset,
            end_offset=source.asked_end,
            batch_bytes_max=topics.batch_bytes_max(target),
            slices=tuple(slices),
            provenance=_provenance(plan, topic, source.partition),
            lossy=bool(source.lost),
        )

    def _slices(self, plan: RestorePlan) -> dict[PartitionId, list[Slice]]:
        """Of all sources, in the order of offsets. The catalog is read once, however many partitions there are."""
        sources = sources_of(plan)
        ids = {each.topic_id for each in sources}
        staged = None if plan.transform is None else open_staged(plan.transform.staging, self._config.storage)
        catalog = (staged or self._archive).catalog
        rows = catalog.rows(topic_id=ids.pop() if len(ids) == 1 else None, revisions=revisions_of(sources))
        request = self._request if plan.transform is None else as_staged(self._request, plan.transform)
        found: dict[PartitionId, list[Slice]] = {}
        for row in decode_rows(rows_to_read(rows, sources, request)):
            if isinstance(row, Segment):
                found.setdefault(PartitionId(topic_id=row.topic_id, partition=row.partition), []).append(slice_of(row))
        return found if staged is not None else sound_slices(found, sources)


def _provenance(plan: RestorePlan, topic: TopicPlan, partition: int) -> Provenance | None:
    if not plan.provenance:
        return None
    return Provenance(
        topic=topic.target.source_topic,
        partition=partition,
        cluster_id=plan.source_cluster_id,
        restore_id=plan.restore_id,
    )
