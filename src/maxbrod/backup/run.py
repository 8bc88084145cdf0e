"""Backs a cluster up into an archive: plans, lets Spark read, proves that nothing is missing, commits.

Nothing is remembered outside the archive. A run commits all or nothing of each wave of tasks; killed at any instant, it
leaves objects that no row names, and the next run begins where the catalog ends.
"""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

from maxbrod.archive.carried import RunKnowledge, encode_carried
from maxbrod.archive.opening import Archive, open_for_writing
from maxbrod.archive.recovery import oldest
from maxbrod.archive.selection import select_topics
from maxbrod.archive.snapshot_document import Snapshot, encode
from maxbrod.backup.accounting import explain_unread, still_to_read, take, take_mended
from maxbrod.backup.broker_watch import BrokerWatch
from maxbrod.backup.histories import find_mixed
from maxbrod.backup.job import run_backup_job
from maxbrod.backup.meter import Meter
from maxbrod.backup.notices import clock_behind, held_back, never_still, not_captured, stopped, truncated
from maxbrod.backup.observing import Observation, choose_topics, observe
from maxbrod.backup.plan.mending import plan_mending
from maxbrod.backup.plan.starts import AtOffsets, Earliest, Latest, parse_start
from maxbrod.backup.plan.states import plan_partition
from maxbrod.backup.plan.tasks import PartitionRange, plan_tasks
from maxbrod.backup.positions import Positions
from maxbrod.backup.run_state import BackupRun
from maxbrod.backup.task import TaskSettings
from maxbrod.backup.truncation import cut_back, held_rows
from maxbrod.catalog.replaced import after_replacing
from maxbrod.catalog.rows import Run, Segment
from maxbrod.engine.jobs import ON_SPARK
from maxbrod.engine.progress import Progress, silent
from maxbrod.engine.session import open_configured, parallelism_of
from maxbrod.errors import EXIT_FAILED, MaxbrodError, StorageFullError, UnavailableError, UsageError
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.state.cluster_state import encode_state
from maxbrod.kafka.state.open_transactions import open_transactions
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.kafka.compression import Compression
from maxbrod.layouts.kafka.slices import SegmentLimits
from maxbrod.model import MENDABLE, PartitionId, TopicPartition, now_ms
from maxbrod.notices import Notice, worst_exit_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from maxbrod.backup.plan.items import Outcome
    from maxbrod.backup.plan.states import PartitionBackup
    from maxbrod.backup.plan.tasks import Wave
    from maxbrod.backup.report import BackupReport
    from maxbrod.backup.waiting import Waiting
    from maxbrod.config import Config
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session
    from maxbrod.kafka.state.cluster_state import ClusterState

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
        self._request = config.backup
        self._start = parse_start(self._request.start)
        select_topics({}, self._request.topics, self._request.exclude, internal=True)  # refuses a pattern that is none
        self._compression = Compression.parse(self._request.compression)
        self._on_progress = on_progress
        self.stop = stop or threading.Event()
        self._given_session = session
        self._session: Session | None = None
        self._undo = ExitStack()
        self._close_session = self._undo.enter_context(ExitStack())
        self._archive_url = config.archive
        self._opened: Archive | None = None
        self._positions = Positions()
        self.recovery_point_ms: int | None = None
        """Of the topics that are chosen, as far as the archive tells, whatever became of the last run."""
        self.lags: Mapping[str, int | None] | None = None
        """Of each topic, what the cluster had at the last run and the archive has not; None: unknown."""
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
                run.notices.append(stopped())
                run.drop_uncommitted()
                return run.report(self._archive_url, -1, self.recovery_point_ms)
            raise
        finally:
            self.lags = run.lags()

    def hurry(self) -> None:
        """A run after a stop, to the end of what is there."""
        self.stop = self._client.stop = threading.Event()

    def _run(self, run: BackupRun, *, demand_topics: bool, waiting: Waiting | None) -> BackupReport:
        self._on_progress(Progress(phase="planning"))
        archive = self._archive()
        run.notices.extend(clock_behind(self._positions.newest_run, run.started_at_ms))
        only: set[str] | None = None
        cluster = capture(self._client, deadline=Deadline.after(self._config.patience))
        for _ in range(_ROUNDS_MAX):
            demand = demand_topics and only is None
            found = choose_topics(self._client, self._request, patience_s=self._config.patience, demand=demand)
            if only is None:
                run.present = found.present
            else:
                found.topics = {name: topic for name, topic in found.topics.items() if name in only}
            self._round(run, archive, found, cluster, waiting if only is None else None)
            if only is None:
                self._mend(run, archive)
            if not run.again or run.interrupted:
                break
            self._commit(run, archive)
            only, run.again, run.stopped = run.again, set(), set()
        else:
            run.notices.extend(map(never_still, sorted(only or ())))
        return self._finish(run, archive, cluster)

    def _forget(self, error: BaseException) -> None:
        """What is remembered may be ahead of the catalog: rows that were never committed, or a commit unheard of."""
        self._opened = None
        if isinstance(error, UnavailableError) and error.operation == ON_SPARK:
            # Its JVM may be gone; the next run starts another.
            self._session = None
            self._close_session.close()

    # Planning

    def _archive(self) -> Archive:
        if self._opened is None:
            options = self._config.storage
            opened = open_for_writing(self._archive_url, options, single_writer=self._request.single_writer)
            self._positions.remember(opened)
            self._opened = opened
            if self.recovery_point_ms is None:
                self.recovery_point_ms = oldest(self._positions.recovery_points_of(self._meant))
        return self._opened

    def _round(
        self,
        run: BackupRun,
        archive: Archive,
        found: Observation,
        cluster: ClusterState,
        waiting: Waiting | None,
    ) -> None:
        self._positions.compacted |= {topic.topic_id for topic in cluster.topics if topic.compacted}
        observe(
            self._client,
            archive.catalog,
            found,
            positions=self._positions.held,
            compacted=self._positions.compacted,
            start=self._start,
            patience_s=self._config.patience,
        )
        run.notices.extend(found.notices)
        run.could_not_ask(found.unasked)
        fresh = self._put_off(run, self._plan(run, archive, found), waiting)
        self._tell_open_transactions(run, fresh)
        waves = plan_tasks(
            [_range(plan) for plan in fresh],
            parallelism=self._parallelism(),
            wave_bytes=self._request.commit_bytes,
        )
        explain_unread(run, self._positions, fresh)
        self._run_waves(run, archive, waves)

    def _plan(self, run: BackupRun, archive: Archive, found: Observation) -> list[PartitionBackup]:
        plans = []
        # Latest, and given offsets, are for what is there when a first run comes: of what came later nothing was
        # skipped on purpose, and a topic that was created again has offsets of its own.
        at_first = isinstance(self._start, Latest | AtOffsets)
        appeared = self._positions.appeared(found.states) if at_first else ()
        for state in found.states:
            where = TopicPartition(topic=state.topic, partition=state.partition)
            partition = state.id
            start = Earliest() if partition in appeared else self._start
            plan = plan_partition(state, start, offset_for_time=found.offsets_for_time.get(where, -1))
            run.plan(partition, plan)
            if plan.note:
                run.notices.append(
                    Notice(kind="start", message=plan.note, topic=state.topic, partition=state.partition)
                )
            if plan.truncated_at is not None:
                self._cut_back(run, archive, partition, plan, plan.truncated_at)
            self._positions.meet(partition, state.topic, plan.first)
            run.ends[partition] = self._positions.end_of(partition)
            plans.append(plan)
        run.planned = True
        return plans

    def _put_off(self, run: BackupRun, plans: list[PartitionBackup], waiting: Waiting | None) -> list[PartitionBackup]:
        """The plans without those that wait for more."""
        if waiting is None:
            return plans
        chosen, put_off = waiting.choose(plans, now_ms=run.started_at_ms)
        run.put_off.update(plan.state.id for plan in put_off)
        return chosen

    def _cut_back(
        self, run: BackupRun, archive: Archive, partition: PartitionId, plan: PartitionBackup, at: int
    ) -> None:
        held = self._positions.held[partition]
        if at <= held.first_offset:
            # Without any row only the last snapshot would tell how far the archive is, and it tells of what is no more.
            rows = run.taken_back[partition] = held_rows(archive, partition)
            lost = [row for row in rows if isinstance(row, Segment)]
            self._positions.take_back(partition, at)
        else:
            lost = cut_back(archive, partition, at, run_id=run.run_id, now_ms=now_ms())
            run.committed = True
            self._positions.cut(archive, partition, at)
        run.notices.append(truncated(plan.state, at, held.end_offset, lost))

    def _tell_open_transactions(self, run: BackupRun, plans: Iterable[PartitionBackup]) -> None:
        """They hold the last stable offset back; whoever waits for the archive should know for whom."""
        waiting = {
            TopicPartition(topic=plan.state.topic, partition=plan.state.partition): plan.state
            for plan in plans
            if plan.state.end < plan.state.high_watermark
        }
        found = open_transactions(self._client, sorted(waiting)) if waiting else {}
        for where, state in sorted(waiting.items()):
            run.hold_back(state.id, found.get(where, ()))
            run.notices.extend(held_back(state, each, now_ms=now_ms()) for each in found.get(where, ()))

    def _parallelism(self) -> int:
        return parallelism_of(self._config.spark.master, self._session or self._given_session)

    # Reading

    def _run_waves(self, run: BackupRun, archive: Archive, waves: Sequence[Wave]) -> None:
        meter = Meter(self._on_progress, waves)
        for number, planned in enumerate(waves):
            if number:
                self._commit(run, archive)
            if self.stop.is_set():
                run.interrupted = True
                break
            wave = still_to_read(run, self._positions, planned)
            if not wave:
                meter.wave_done()
                continue
            watch = BrokerWatch(self._kafka, self._client.brokers, then=meter.tasks_done)
            outcomes = run_backup_job(self._spark(), self._settings(run), wave, on_done=watch.tasks_done)
            outcomes = self._of_one_history(run, outcomes)
            take(run, self._positions, outcomes)
            meter.wave_done(outcomes)

    def _of_one_history(self, run: BackupRun, outcomes: list[Outcome]) -> list[Outcome]:
        """Without partitions whose log was cut while it was read: those are planned afresh."""
        mixed = find_mixed(self._client, self._positions.held, outcomes, patience_s=self._config.patience)
        for partition in mixed:
            run.stopped.add(partition)
            run.again.add(run.plans[partition].state.topic)
        return [outcome for outcome in outcomes if outcome.item.id not in mixed]

    def _mend(self, run: BackupRun, archive: Archive) -> None:
        """Read once more what could not be read, or not be explained, before: another replica may lead today."""
        mending = plan_mending(archive.catalog.gaps(MENDABLE), run.plans)
        if run.interrupted:
            run.suspect.update(retry.partition for retry in mending.retries)
            return
        waves = plan_tasks([retry.range for retry in mending.retries], parallelism=self._parallelism())
        outcomes = [outcome for wave in waves for outcome in run_backup_job(self._spark(), self._settings(run), wave)]
        take_mended(run, mending, outcomes)

    def _spark(self) -> Session:
        if self._session is None:
            self._on_progress(Progress(phase="starting Spark"))
            opening = open_configured(self._config.spark, self._given_session)
            self._session = self._close_session.enter_context(opening)
        return self._session

    def _settings(self, run: BackupRun) -> TaskSettings:
        request = self._request
        return TaskSettings(
            run_id=run.run_id,
            archive_url=self._archive_url,
            kafka=self._kafka,
            storage=self._config.storage,
            compression=self._compression,
            exact_timestamps=self._request.exact_timestamps,
            limits=SegmentLimits(
                bytes_max=request.segment_bytes or SegmentLimits().bytes_max, records_max=request.segment_records
            ),
            patience_s=self._config.patience,
        )

    # Committing

    def _commit(self, run: BackupRun, archive: Archive, more: Sequence[Run] = ()) -> None:
        if run.rows or run.replaced or more:
            # The run's own row names the snapshot: with it everything may go that the snapshot does not speak of.
            gone = [*run.replaced, *run.take_back(everything=bool(more))]
            archive.catalog.commit([*run.rows, *more], retired=gone)
            self._positions.revisions = after_replacing(self._positions.revisions, gone)
            run.has_committed(self._positions.ends)

    def _finish(self, run: BackupRun, archive: Archive, cluster: ClusterState) -> BackupReport:
        if run.interrupted:
            run.notices.append(stopped())
        run.notices.extend(not_captured(cluster))
        # As JSON would have it, where a tuple is a list: it is compared with what was read from a snapshot.
        document = json.loads(json.dumps(encode_state(cluster)))
        before = self._positions.recovery_points_before((*run.plans, *run.unasked))
        news = self._has_news(run, document)
        if news or run.behind(self._positions.behind).keys() != self._positions.behind.keys():
            try:
                self._record(run, archive, cluster, document, before)
            except MaxbrodError as error:
                if news and not _is_told(run, error):
                    raise
                self._forget(error)
                run.drop_uncommitted()
        self._positions.recovery_points = run.recovery_points(before)
        self._positions.looked_at_ms = run.started_at_ms
        self.recovery_point_ms = run.recovery_point(self._positions.recovery_points)
        return run.report(self._archive_url, archive.catalog.version, self.recovery_point_ms)

    def _record(
        self,
        run: BackupRun,
        archive: Archive,
        cluster: ClusterState,
        document: Mapping[str, Any],
        before: Mapping[PartitionId, int | None],
    ) -> None:
        """Commit what is left to commit, with a snapshot and the run's own row, which tell how far it has come."""
        self._on_progress(Progress(phase="committing"))
        path = f"snapshots/{run.run_id}.json.zst"
        # Both tell what is true with the commit that names them; whoever sees them sees that commit.
        with run.as_committed(self._positions.ends):
            points, behind = run.recovery_points(before), run.behind(self._positions.behind)
            report = run.report(self._archive_url, archive.catalog.version + 1, run.recovery_point(points))
        carried = self._positions.carried_beside(cluster)
        snapshot = Snapshot(
            run_id=run.run_id,
            taken_at_ms=run.started_at_ms,
            cluster=document,
            ends=self._positions.ends,
            topics=self._positions.topics,
            recovery_points=points,
            behind=behind,
            carried=encode_carried(carried),
            revisions=after_replacing(self._positions.revisions, run.going),
            log_starts={partition: plan.state.log_start for partition, plan in run.plans.items()},
        )
        archive.storage.put(path, encode(snapshot))
        row = Run(
            run_id=run.run_id,
            started_at=run.started_at_ms,
            finished_at=report.finished_at_ms,
            snapshot=path,
            statistics=run.statistics(report),
            written_at=now_ms(),
        )
        self._commit(run, archive, [row])
        told = RunKnowledge(run_id=run.run_id, cluster=cluster, carried=carried)
        self._positions.recorded(row, document, told, behind)

    def _meant(self, names: Mapping[str, bool]) -> tuple[str, ...]:
        return select_topics(names, self._request.topics, self._request.exclude, internal=self._request.internal).chosen

    def _has_news(self, run: BackupRun, cluster: Mapping[str, Any]) -> bool:
        """An interval in which nothing happened leaves no trace in the archive."""
        if run.rows or run.taken_back or run.committed or self._positions.unrecorded:
            return True
        return _timeless(cluster) != _timeless(self._positions.cluster or {})


def _is_told(run: BackupRun, error: MaxbrodError) -> bool:
    """Whether the run reports anyway that its archive cannot be written to: that says more than the error."""
    return isinstance(error, StorageFullError | UnavailableError) and worst_exit_code(run.notices) == EXIT_FAILED


def _range(plan: PartitionBackup) -> PartitionRange:
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


def _timeless(cluster: Mapping[str, Any]) -> str:
    """As text: what comes back from an archive has lists where the cluster's own state has tuples."""
    return json.dumps({name: value for name, value in cluster.items() if name != "taken_at_ms"}, sort_keys=True)
