"""Backs a cluster up into an archive: plans, lets Spark read, proves that nothing is missing, commits.

Nothing is remembered outside the archive. A run commits all or nothing of each wave of tasks; killed at any instant, it
leaves objects that no row names, and the next run begins where the catalog ends.
"""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from maxbrod.api.archives import Archive, open_for_writing
from maxbrod.api.backup_run import BackupRun, now_ms
from maxbrod.api.observing import Observation, Position, choose_topics, observe
from maxbrod.api.progress import Progress, silent
from maxbrod.api.reports import BackupReport, Notice
from maxbrod.api.snapshots import last_snapshot_run, read_snapshot
from maxbrod.api.truncation import cut_back
from maxbrod.catalog.rows import PartitionId, Run, Segment
from maxbrod.errors import EXIT_FAILED, EXIT_INCOMPLETE, UnavailableError, UsageError
from maxbrod.kafka.capture import capture
from maxbrod.kafka.client import KafkaClient
from maxbrod.kafka.cluster_state import encode_state
from maxbrod.kafka.deadline import Deadline
from maxbrod.kafka.open_transactions import open_transactions
from maxbrod.layouts.kafka.compression import Compression
from maxbrod.layouts.kafka.slices import SegmentLimits
from maxbrod.model import TopicPartition
from maxbrod.planning.assembly import assemble, check_tiling
from maxbrod.planning.items import RangeItem, Task, Trouble
from maxbrod.planning.mending import MENDABLE, plan_mending, settle, sort_out
from maxbrod.planning.selection import select_topics
from maxbrod.planning.snapshot import Snapshot, encode
from maxbrod.planning.starts import Earliest, Latest, parse_start
from maxbrod.planning.states import plan_partition
from maxbrod.planning.tasks import PartitionRange, plan_tasks
from maxbrod.spark.backup import run_backup_job
from maxbrod.spark.backup_task import TaskSettings
from maxbrod.spark.jobs import ON_SPARK
from maxbrod.spark.session import open_configured, parallelism_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from maxbrod.api.progress import OnProgress
    from maxbrod.api.waiting import Waiting
    from maxbrod.config import Config
    from maxbrod.kafka.cluster_state import ClusterState
    from maxbrod.planning.assembly import Assembly
    from maxbrod.planning.items import Outcome
    from maxbrod.planning.starts import Start
    from maxbrod.planning.states import PartitionPlan, PartitionState
    from maxbrod.planning.tasks import Wave
    from maxbrod.spark.session import Session

STOPPED: Final = "stopped"
_ROUNDS_MAX: Final = 3
"""A topic that is recreated, or a log that is cut, while it is read is planned afresh in the same run; not forever."""


class Backup:
    """One archive and one cluster, for any number of runs. Spark starts when there is something to read, and stays.

    Use it in a `with`. `stop` may be set from anywhere: the run under way then ends at its next commit.
    """

    def __init__(
        self,
        config: Config,
        *,
        session: Session | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
    ) -> None:
        if config.kafka is None:
            raise UsageError("no cluster is named", hint="give --bootstrap, or kafka.bootstrap in the configuration")
        if config.archive is None:
            raise UsageError("no archive is named", hint="give --archive, or archive in the configuration")
        self._config = config
        self._kafka = config.kafka
        self._wish = config.backup
        self._start = parse_start(self._wish.start)
        select_topics({}, self._wish.topics, self._wish.exclude, internal=True)  # refuses a pattern that is none
        self._compression = Compression.parse(self._wish.compression)
        self._on_progress = on_progress
        self.stop = stop or threading.Event()
        self._given_session = session
        self._session: Session | None = None
        self._undo = ExitStack()
        self._close_session = self._undo.enter_context(ExitStack())
        self._archive_url = config.archive
        self._opened: Archive | None = None
        self._positions: dict[PartitionId, Position] = {}
        self._names: dict[str, str] = {}
        self._compacted: set[str] = set()
        self._last_cluster: Mapping[str, Any] | None = None
        self._client = self._undo.enter_context(KafkaClient(self._kafka, stop=self.stop))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def run(self, *, demand_topics: bool = True, waiting: Waiting | None = None) -> BackupReport:
        """Bring the archive up to the present, but for what `waiting` puts off.

        UsageError where a topic that is named does not exist, unless `demand_topics` is false. After an error the next
        run begins afresh, from what the catalog says.
        """
        run = BackupRun()
        try:
            return self._run(run, demand_topics=demand_topics, waiting=waiting)
        except BaseException as error:
            self._forget(error)
            if isinstance(error, UnavailableError) and self.stop.is_set():
                # It was waited for when the stop came, and no longer then.
                run.interrupted = True
                run.notices.append(_stopped())
                return run.report(self._archive_url, -1)
            raise

    def hurry(self) -> None:
        """A run after a stop, to the end of what is there."""
        self.stop = threading.Event()

    def _run(self, run: BackupRun, *, demand_topics: bool, waiting: Waiting | None) -> BackupReport:
        self._on_progress(Progress(phase="planning"))
        archive = self._archive()
        only: set[str] | None = None
        cluster = capture(self._client, deadline=Deadline.after(self._wish.patience))
        for _ in range(_ROUNDS_MAX):
            demand = demand_topics and only is None
            found = choose_topics(self._client, self._wish, patience_s=self._wish.patience, demand=demand)
            if only is not None:
                found.topics = {name: topic for name, topic in found.topics.items() if name in only}
            self._round(run, archive, found, cluster, waiting if only is None else None)
            if only is None and not run.interrupted:
                self._mend(run, archive)
            if not run.again or run.interrupted:
                break
            self._commit(run, archive)
            only, run.again, run.stopped = run.again, set(), set()
        return self._finish(run, archive, cluster)

    def _forget(self, error: BaseException) -> None:
        """What is remembered may be ahead of the catalog: rows that were never committed, or a commit unheard of."""
        self._opened = None
        self._positions.clear()
        if isinstance(error, UnavailableError) and error.operation == ON_SPARK:
            # Its JVM may be gone; the next run starts another.
            self._session = None
            self._close_session.close()

    # Planning

    def _archive(self) -> Archive:
        if self._opened is None:
            options = self._config.storage
            opened = open_for_writing(self._archive_url, options, single_writer=self._wish.single_writer)
            self._remember(opened)
            self._opened = opened
        return self._opened

    def _remember(self, archive: Archive) -> None:
        """What earlier runs have left: positions from the rows, and from the last snapshot where there is no row."""
        last = last_snapshot_run(archive.catalog.runs())
        if last is not None:
            snapshot = read_snapshot(archive.storage, last)
            self._names.update(snapshot.topics)
            self._last_cluster = snapshot.cluster
            self._compacted |= _compacted_topics(snapshot.cluster)
            for partition, end in snapshot.ends.items():
                self._positions[partition] = Position(first_offset=end, end_offset=end, last_leader_epoch=None)
        for partition, found in archive.catalog.positions().items():
            self._names.setdefault(partition.topic_id, found.topic)
            self._positions[partition] = Position(
                first_offset=found.first_offset,
                end_offset=found.end_offset,
                last_leader_epoch=found.last_leader_epoch,
            )

    def _round(
        self,
        run: BackupRun,
        archive: Archive,
        found: Observation,
        cluster: ClusterState,
        waiting: Waiting | None,
    ) -> None:
        self._compacted |= {topic.topic_id for topic in cluster.topics if topic.compacted}
        observe(
            self._client,
            archive.catalog,
            found,
            positions=self._positions,
            compacted=self._compacted,
            start=self._start,
            patience_s=self._wish.patience,
        )
        run.notices.extend(found.notices)
        fresh = self._put_off(run, self._plan(run, archive, found), waiting)
        self._tell_open_transactions(run, fresh)
        waves = plan_tasks(
            [_range(plan) for plan in fresh],
            parallelism=self._parallelism(),
            wave_bytes=self._wish.commit_bytes,
        )
        self._explain_unread(run, fresh)
        self._run_waves(run, archive, waves)

    def _plan(self, run: BackupRun, archive: Archive, found: Observation) -> list[PartitionPlan]:
        plans = []
        appeared = self._starts(found.states)
        for state in found.states:
            where = TopicPartition(topic=state.topic, partition=state.partition)
            partition = PartitionId(topic_id=state.topic_id, partition=state.partition)
            start = appeared.get(partition, self._start)
            plan = plan_partition(state, start, offset_for_time=found.offsets_for_time.get(where, -1))
            run.plan(partition, plan)
            self._names[state.topic_id] = state.topic
            if plan.note:
                run.notices.append(
                    Notice(kind="start", message=plan.note, topic=state.topic, partition=state.partition)
                )
            if plan.truncated_at is not None:
                self._cut_back(run, archive, partition, plan, plan.truncated_at)
            if partition not in self._positions:
                self._positions[partition] = Position(
                    first_offset=plan.first, end_offset=plan.first, last_leader_epoch=None
                )
            plans.append(plan)
        return plans

    def _starts(self, states: Iterable[PartitionState]) -> dict[PartitionId, Start]:
        """Partitions that begin elsewhere than was asked for.

        Latest is for what is there when a first run comes. Of what the cluster has got since the last one, nothing was
        ever skipped on purpose.
        """
        if not isinstance(self._start, Latest) or self._last_cluster is None:
            return {}
        before = {topic["topic_id"]: len(topic["replicas"]) for topic in self._last_cluster["topics"]}
        return {
            PartitionId(topic_id=state.topic_id, partition=state.partition): Earliest()
            for state in states
            if state.partition >= before.get(state.topic_id, 0)
        }

    def _put_off(self, run: BackupRun, plans: list[PartitionPlan], waiting: Waiting | None) -> list[PartitionPlan]:
        """The plans without those that wait for more."""
        if waiting is None:
            return plans
        chosen, put_off = waiting.choose(plans, now_ms=run.started_at_ms)
        for plan in put_off:
            partition = PartitionId(topic_id=plan.state.topic_id, partition=plan.state.partition)
            run.wait(partition, plan.state.high_watermark - plan.first)
        run.recovery_point_ms = waiting.recovery_point_ms(run.started_at_ms)
        return chosen

    def _cut_back(self, run: BackupRun, archive: Archive, partition: PartitionId, plan: PartitionPlan, at: int) -> None:
        state, held = plan.state, self._positions[partition]
        lost = cut_back(archive, partition, at, run_id=run.run_id, now_ms=now_ms())
        objects = ", ".join(sorted({row.path for row in lost})[:5])
        run.committed = True
        run.notices.append(
            Notice(
                kind="truncated",
                message=f"the log was truncated to offset {at} since it was archived, and is archived again from there",
                topic=state.topic,
                partition=state.partition,
                first_offset=at,
                end_offset=held.end_offset,
                hint=f"the records that the cluster lost are still in {objects} until gc deletes it" if lost else None,
            )
        )
        rows = archive.catalog.rows(
            topic_id=partition.topic_id, partition=partition.partition, columns=["last_leader_epoch"]
        )
        epochs = [epoch for epoch in rows["last_leader_epoch"].to_pylist() if epoch is not None]
        self._positions[partition] = Position(
            first_offset=min(held.first_offset, at), end_offset=at, last_leader_epoch=max(epochs, default=None)
        )

    def _tell_open_transactions(self, run: BackupRun, plans: Iterable[PartitionPlan]) -> None:
        """They hold the last stable offset back; whoever waits for the archive should know for whom."""
        held_back = {
            TopicPartition(topic=plan.state.topic, partition=plan.state.partition): plan
            for plan in plans
            if plan.state.end < plan.state.high_watermark
        }
        for where, transactions in open_transactions(self._client, sorted(held_back)).items() if held_back else ():
            state = held_back[where].state
            for each in transactions:
                run.notices.append(
                    Notice(
                        kind="open transaction",
                        message=f"an open transaction holds the rest back: {each}",
                        topic=where.topic,
                        partition=where.partition,
                        first_offset=state.end,
                        end_offset=state.high_watermark,
                        hint="it is archived as soon as it ends; a hanging one: kafka-transactions --abort",
                    )
                )
        for plan in held_back.values():
            partition = PartitionId(topic_id=plan.state.topic_id, partition=plan.state.partition)
            run.wait(partition, plan.state.high_watermark - plan.state.end)

    def _parallelism(self) -> int:
        return parallelism_of(self._config.spark.master, self._session or self._given_session)

    # Reading

    def _run_waves(self, run: BackupRun, archive: Archive, waves: Sequence[Wave]) -> None:
        meter = _Meter(self._on_progress, waves)
        for number, planned in enumerate(waves):
            if number:
                self._commit(run, archive)
            if self.stop.is_set():
                run.interrupted = True
                break
            wave = self._still_to_read(run, planned)
            if not wave:
                continue
            outcomes = run_backup_job(self._spark(), self._settings(run), wave, on_done=meter.tasks_done)
            self._take(run, outcomes)
            meter.wave_done(outcomes)

    def _still_to_read(self, run: BackupRun, wave: Wave) -> list[Task]:
        """Without partitions that could not be read on; after a batch that reached into this wave, from its end on."""
        tasks = []
        for task in wave:
            items = [self._moved(item) for item in task.items if _id(item) not in run.stopped]
            kept = tuple(item for item in items if item.start < item.end)
            if kept:
                tasks.append(Task(items=kept))
        return tasks

    def _moved(self, item: RangeItem) -> RangeItem:
        position = self._positions[_id(item)]
        return replace(item, start=max(item.start, min(position.end_offset, item.end)))

    def _spark(self) -> Session:
        if self._session is None:
            self._on_progress(Progress(phase="starting Spark"))
            opening = open_configured(self._config.spark, self._given_session)
            self._session = self._close_session.enter_context(opening)
        return self._session

    def _settings(self, run: BackupRun) -> TaskSettings:
        wish = self._wish
        return TaskSettings(
            run_id=run.run_id,
            archive_url=self._archive_url,
            kafka=self._kafka,
            storage=self._config.storage,
            compression=self._compression,
            limits=SegmentLimits(bytes_max=wish.segment_bytes, records_max=wish.segment_records),
            patience_s=wish.patience,
        )

    # What came back

    def _take(self, run: BackupRun, outcomes: Iterable[Outcome]) -> None:
        """Rows of every partition of a wave, proved to tile before any of them may be committed."""
        by_partition: dict[PartitionId, list[Outcome]] = {}
        for outcome in outcomes:
            by_partition.setdefault(_id(outcome.item), []).append(outcome)
        assemblies = [self._assemble(run, partition, each) for partition, each in by_partition.items()]
        check_tiling(
            [row for each in assemblies for row in each.rows],
            {each.partition: (each.first, each.reached) for each in assemblies},
        )
        for assembly in assemblies:
            self._accept(run, assembly)
        for partition, each in by_partition.items():
            self._tell_failures(run, partition, each)

    def _explain_unread(self, run: BackupRun, plans: Iterable[PartitionPlan]) -> None:
        """Partitions of which nothing can be read, because retention took all that the archive lacks."""
        for plan in plans:
            if plan.gap is not None and plan.start >= plan.end:
                partition = PartitionId(topic_id=plan.state.topic_id, partition=plan.state.partition)
                self._accept(run, self._assemble(run, partition, ()))

    def _mend(self, run: BackupRun, archive: Archive) -> None:
        """Read once more what could not be read, or not be explained, before: another replica may lead today."""
        mending = plan_mending(archive.catalog.gaps(MENDABLE), run.plans)
        waves = plan_tasks([retry.range for retry in mending.retries], parallelism=self._parallelism())
        outcomes = [outcome for wave in waves for outcome in run_backup_job(self._spark(), self._settings(run), wave)]
        for retry, found in sort_out(outcomes, mending.retries)[1]:
            state = run.plans[retry.partition].state
            assembly = assemble(
                retry.partition,
                retry.planned,
                found,
                topic=state.topic,
                compacted=state.compacted,
                run_id=run.run_id,
                written_at=now_ms(),
            )
            rows = settle(retry, assembly)
            if rows is not None:
                run.replaced.append(retry.row)
                run.add(rows)
            for finding in assembly.findings:
                run.note(finding)

    def _assemble(self, run: BackupRun, partition: PartitionId, outcomes: Sequence[Outcome]) -> Assembly:
        plan = run.plans[partition]
        first = self._positions[partition].end_offset
        end = max((outcome.item.end for outcome in outcomes), default=plan.end)
        return assemble(
            partition,
            (first, end),
            outcomes,
            topic=plan.state.topic,
            compacted=plan.state.compacted,
            run_id=run.run_id,
            written_at=now_ms(),
            log_start=plan.state.log_start,
            first_time=plan.first_time and first == plan.first,
        )

    def _accept(self, run: BackupRun, assembly: Assembly) -> None:
        run.add(assembly.rows)
        for finding in assembly.findings:
            run.note(finding)
        held = self._positions[assembly.partition]
        epochs = [row.last_leader_epoch for row in assembly.rows if isinstance(row, Segment)]
        known = [epoch for epoch in (held.last_leader_epoch, *epochs) if epoch is not None]
        self._positions[assembly.partition] = Position(
            first_offset=min(held.first_offset, assembly.first),
            end_offset=assembly.reached,
            last_leader_epoch=max(known, default=None),
        )

    def _tell_failures(self, run: BackupRun, partition: PartitionId, outcomes: Iterable[Outcome]) -> None:
        failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
        if not failures:
            return
        run.stopped.add(partition)
        topic = run.plans[partition].state.topic
        if any(failure.trouble in {Trouble.DELETED, Trouble.TRUNCATED} for failure in failures):
            run.again.add(topic)
        for failure in failures:
            if failure.trouble is Trouble.STORAGE:
                notice = Notice(
                    kind="storage", message=failure.message, topic=topic, hint=failure.hint, exit_code=EXIT_FAILED
                )
                if notice not in run.notices:
                    run.notices.append(notice)

    # Committing

    def _commit(self, run: BackupRun, archive: Archive, more: Sequence[Run] = ()) -> None:
        if run.rows or run.replaced or more:
            archive.catalog.commit([*run.rows, *more], replaced=run.replaced)
            run.rows, run.replaced, run.committed = [], [], True

    def _finish(self, run: BackupRun, archive: Archive, cluster: ClusterState) -> BackupReport:
        if run.interrupted:
            run.notices.append(_stopped())
        run.notices.extend(
            Notice(kind="not captured", message=f"{gap.what}: {gap.why}", hint=gap.hint)
            for gap in cluster.gaps
            # A cluster without an authorizer has no ACLs: nothing is missing.
            if gap.what != "ACLs" or cluster.acls is None
        )
        # As JSON would have it, where a tuple is a list: it is compared with what was read from a snapshot.
        document = json.loads(json.dumps(encode_state(cluster)))
        if self._has_news(run, document):
            self._on_progress(Progress(phase="committing"))
            path = f"snapshots/{run.run_id}.json.zst"
            ends = {partition: position.end_offset for partition, position in self._positions.items()}
            snapshot = Snapshot(
                run_id=run.run_id,
                taken_at_ms=run.started_at_ms,
                cluster=document,
                ends=ends,
                topics={each.topic_id: self._names.get(each.topic_id, "") for each in ends},
            )
            archive.storage.put(path, encode(snapshot))
            run.committed = True
            report = run.report(self._archive_url, archive.catalog.version + 1)
            row = Run(
                run_id=run.run_id,
                started_at=run.started_at_ms,
                finished_at=report.finished_at_ms,
                snapshot=path,
                statistics=run.statistics(report),
                written_at=now_ms(),
            )
            self._commit(run, archive, [row])
            self._last_cluster = document
        return run.report(self._archive_url, archive.catalog.version)

    def _has_news(self, run: BackupRun, cluster: Mapping[str, Any]) -> bool:
        """An interval in which nothing happened leaves no trace in the archive."""
        return bool(run.rows) or run.committed or _timeless(cluster) != _timeless(self._last_cluster or {})


class _Meter:
    """Turns tasks that are done into bytes that are done."""

    def __init__(self, on_progress: OnProgress, waves: Sequence[Wave]) -> None:
        self._on_progress = on_progress
        self._bytes_total = sum(task.bytes_estimate for wave in waves for task in wave)
        self._tasks_total = sum(len(wave) for wave in waves)
        self._bytes = self._records = self._tasks = self._estimated = 0
        self._waves = [(len(wave), sum(task.bytes_estimate for task in wave)) for wave in waves]
        self._wave = 0
        if waves:
            self.tasks_done(0)

    def tasks_done(self, count: int) -> None:
        """Of the wave under way."""
        tasks, size = self._waves[min(self._wave, len(self._waves) - 1)]
        count = min(count, tasks)
        self._on_progress(
            Progress(
                phase="reading",
                bytes_done=self._bytes + size * count // max(tasks, 1),
                bytes_total=max(self._bytes_total - self._estimated + self._bytes, self._bytes),
                records_done=self._records,
                tasks_done=self._tasks + count,
                tasks_total=self._tasks_total,
            )
        )

    def wave_done(self, outcomes: Iterable[Outcome]) -> None:
        tasks, size = self._waves[self._wave]
        self._estimated += size
        self._tasks += tasks
        for outcome in outcomes:
            self._bytes += sum(each.raw_bytes for each in outcome.slices)
            self._records += sum(each.records for each in outcome.slices)
        self._wave += 1
        self.tasks_done(0)


def _stopped() -> Notice:
    message = "stopped on request: everything up to the last commit is archived"
    return Notice(kind=STOPPED, message=message, hint="run it again to go on", exit_code=EXIT_INCOMPLETE)


def _id(item: RangeItem) -> PartitionId:
    return PartitionId(topic_id=item.topic_id, partition=item.partition)


def _range(plan: PartitionPlan) -> PartitionRange:
    state = plan.state
    return PartitionRange(
        topic=state.topic,
        topic_id=state.topic_id,
        partition=state.partition,
        start=plan.start,
        end=plan.end,
        bytes_per_offset=state.bytes_per_offset,
        compacted=state.compacted,
        floor=0 if plan.first_time else plan.first,
    )


def _compacted_topics(cluster: Mapping[str, Any]) -> set[str]:
    return {
        topic["topic_id"]
        for topic in cluster.get("topics", ())
        if "compact" in ((topic.get("effective") or {}).get("cleanup.policy") or "")
    }


def _timeless(cluster: Mapping[str, Any]) -> str:
    """As text: what comes back from an archive has lists where the cluster's own state has tuples."""
    return json.dumps({name: value for name, value in cluster.items() if name != "taken_at_ms"}, sort_keys=True)
