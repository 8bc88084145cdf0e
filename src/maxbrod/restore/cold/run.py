"""Restores an archive directly into the log directories of stopped brokers, without a running cluster.

All partitions are staged first, then put in place together. After a kill at any instant the directories are unchanged
or complete, or the same command completes them.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.errors import IncompleteError, MaxbrodError, RefusedError, UnavailableError, UsageError
from maxbrod.layouts.logdir.installation import staged_bytes
from maxbrod.layouts.logdir.target import locked, look_at, read_assignments
from maxbrod.layouts.logdir.writer import SEGMENT_BYTES, WrittenLog
from maxbrod.model import PartitionId, TopicPartition, now_ms
from maxbrod.restore.archived import look_at_archive
from maxbrod.restore.cold.placement import Placing
from maxbrod.restore.cold.plan import (
    COLD_COLUMNS,
    ColdTarget,
    LeaderEpochs,
    check_cold,
    cold_configs,
    cold_state,
    find_cold_obstacles,
    measure_extents,
    rows_to_write,
)
from maxbrod.restore.cold.task import ColdItem, ColdSettings, ColdWritten, run_cold_task
from maxbrod.restore.loss import Losses, damaged_part, find_losses, listed_losses, sound_slices, unknown_losses
from maxbrod.restore.plan.obstacles import in_order, refusal
from maxbrod.restore.plan.plan import RestorePlan, plan_restore, sources_of, without_lost
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest, command_digest
from maxbrod.restore.plan.resume import refuse_changes
from maxbrod.restore.plan.sources import revisions_of
from maxbrod.restore.report import AGAIN, RestoreReport, report_of
from maxbrod.restore.state import next_id, store_plan, store_report
from maxbrod.restore.task import Restored
from maxbrod.work.executor import Workers
from maxbrod.work.preflight import needs_storage
from maxbrod.work.progress import OnProgress, Progress, silent
from maxbrod.work.reach import Place
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from maxbrod.archive.archive import Archive
    from maxbrod.config import Config
    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.work.executor import Executor, TasksDone
    from maxbrod.work.session import Session


_WHERE = "log directories"
"""Takes the place of a cluster in the digest of the command: a restore through brokers is another command."""
Done: TypeAlias = "Mapping[tuple[Path, TopicPartition], WrittenLog]"
_LOOKING_SHARE: Final = 0.1
"""The part of the time that is spent on looking how far it is: 100,000 folders take a while."""

_NO_MAP: dict[str, Any] = {"base": 0, "ranges": []}
"""Offsets stay the same."""


class ColdRestore:
    """One request, one archive, the log directories of one cluster."""

    def __init__(
        self,
        config: Config,
        request: RestoreRequest,
        directories: Sequence[Path],
        *,
        leader_epochs: LeaderEpochs = LeaderEpochs.KEEP,
        session: Session | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
    ) -> None:
        if config.archive is None:
            raise UsageError("no archive is given", hint="give --archive, or archive in the configuration")
        if session is None and re.match(r"local\b", config.spark.master) is None:
            raise UsageError(
                "log directories are on this machine, and this Spark master is not",
                object_name=config.spark.master,
                hint="leave out --master",
            )
        check_cold(request)
        self._paths = list(dict.fromkeys(directory.resolve() for directory in directories))
        if not self._paths:
            raise UsageError("no log directory is given", hint="give --to-logdir")
        self._config = config
        self._request = replace(request, offsets=OffsetsMode.EXACT)
        self._leader_epochs = leader_epochs
        self._archive = open_archive(config.archive, config.storage, layout=config.layout)
        self._session, self.on_progress = session, on_progress
        self.stop = stop or threading.Event()

    def plan(self) -> RestorePlan:
        """The plan and its obstacles. Changes nothing."""
        self.on_progress(Progress(phase="planning"))
        cluster_id = look_at(self._paths[0]).cluster_id
        with locked(self._paths):
            return self._plan(self._look(Placing(self._paths, self._command(cluster_id))))

    def _look(self, placing: Placing) -> ColdTarget:
        return ColdTarget(directories=placing.look(), assignments=read_assignments(self._paths), done=placing.begun())

    def run(self, plan: RestorePlan) -> ColdReport:
        """Carry out the plan. After any failure run it again.

        IncompleteError: `stop` was set before everything was written; nothing is in place then. RefusedError: the
        plan is out of date.
        """
        started_at_ms = now_ms()
        with locked(self._paths), Placing(self._paths, plan.command) as placing:
            # Planned again under the locks: brokers may have started and stopped since the plan was shown.
            now = self._plan(self._look(placing))
            for each in (plan, now):
                if (refused := refusal(each.obstacles)) is not None:
                    raise refused
            refuse_changes(plan, now, begun=False)
            done = placing.finish_begun()
            plan, written = self._written(plan, done)
            failures = {each.where: each.failure for each in written if each.failure is not None}
            if not failures:
                self.on_progress(Progress(phase="putting in place"))
                placing.place(written)
        return self._report(plan, placing, written, failures, started_at_ms)

    def _command(self, cluster_id: str | None) -> str:
        where = f"{_WHERE} of {cluster_id}: {', '.join(sorted(map(str, self._paths)))} {self._leader_epochs}"
        return command_digest(self._request, archive=self._archive.url, cluster_id=where)

    def _plan(self, target: ColdTarget) -> RestorePlan:
        archive, request = self._archive, self._request
        archived = look_at_archive(archive, request, columns=COLD_COLUMNS)
        moment, chosen = archived.moment, archived.chosen
        state = cold_state(target.directories, request.rename, moment.cluster, target.assignments, now_ms=now_ms())
        command = self._command(state.cluster.cluster_id)
        plan = plan_restore(
            request,
            restore_id=next_id(archive.storage, command),
            archive=archived.source,
            chosen=chosen,
            rows=archived.rows,
            ends=archived.ends,
            snapshot=moment.cluster,
            target=state,
            now_ms=now_ms(),
            topic_runs=moment.topic_runs,
            lost=listed_losses(archive, chosen.topics.keys(), archived.revisions),
            revisions=archived.revisions,
            had=archived.had,
        )
        extents = measure_extents(archived.rows.portions(), sources_of(plan))
        obstacles = [
            *find_cold_obstacles(plan, target, extents, self._leader_epochs),
            *archived.obstacles(accepted=request.accept_gaps),
        ]
        return replace(plan, command=command, obstacles=in_order(obstacles))

    def _written(self, plan: RestorePlan, done: Done) -> tuple[RestorePlan, list[ColdWritten]]:
        """Write all partitions. Return the plan, without damaged ranges that the user accepts to lose, and outcomes."""
        written = self._write(plan, self._items(plan, done))
        while lost := self._accepted_losses(plan, written):
            plan = without_lost(plan, lost, accepted=True)
            again = {each.where for each in written if each.failure is not None}
            items = [(size, item) for size, item in self._items(plan, done) if item.where in again]
            written = [*(each for each in written if each.failure is None), *self._write(plan, items)]
        return plan, written

    def _accepted_losses(self, plan: RestorePlan, written: Sequence[ColdWritten]) -> Losses:
        """Unreadable ranges, not yet known, of partitions that damage has stopped."""
        damaged = damaged_part(plan, written) if self._request.accept_gaps else plan
        if not self._request.accept_gaps or not damaged.topics:
            return {}
        self.on_progress(Progress(phase="looking for damage"))
        with self._workers() as workers:
            found = find_losses(
                workers.for_bytes(damaged.bytes),
                Place(url=self._archive.url, storage=self._config.storage),
                cold_slices(
                    self._archive.catalog.rows(
                        topic_ids={each.topic_id for each in sources_of(damaged)},
                        revisions=revisions_of(sources_of(damaged)),
                    ),
                    damaged,
                ),
                name=f"damage-{plan.restore_id}",
                stop=self.stop,
            )
        return unknown_losses(plan, found)

    def _workers(self) -> Workers:
        needs = needs_storage(self._archive.url, self._config.storage)
        return Workers(
            self._config.spark, needs=needs, session=self._session, on_progress=self.on_progress, stop=self.stop
        )

    def _items(self, plan: RestorePlan, done: Done) -> list[tuple[int, ColdItem]]:
        return cold_items(self._archive, plan, self._request, self._paths, done=done, leader_epochs=self._leader_epochs)

    def _write(self, plan: RestorePlan, items: Sequence[tuple[int, ColdItem]]) -> list[ColdWritten]:
        if not items:
            return []
        total = sum(size * len(item.directories) for size, item in items)
        settings = ColdSettings(restore_id=plan.restore_id, archive_url=self._archive.url, storage=self._config.storage)
        try:
            with self._workers() as workers:
                executor = workers.for_bytes(total)
                tasks = spread(items, executor.parallelism)
                meter = ColdMeter(self._paths, self.on_progress, bytes_total=total, tasks=len(tasks))
                return run_cold_tasks(executor, settings, tasks, on_done=meter.tasks_done, stop=self.stop)
        except UnavailableError as error:
            if not self.stop.is_set():
                raise
            raise IncompleteError(
                "stopped before everything was restored; the directories are unchanged",
                operation="restore",
                object_name=plan.restore_id,
                hint=AGAIN,
            ) from error

    def _report(
        self,
        plan: RestorePlan,
        placing: Placing,
        written: Sequence[ColdWritten],
        failures: Mapping[TopicPartition, MaxbrodError],
        started_at_ms: int,
    ) -> ColdReport:
        logs = {where: log for (_, where), log in placing.placed.items()}
        report = cold_report_of(plan, logs, failures, started_at_ms=started_at_ms, resumed=placing.resumed)
        return ColdReport(
            restore=report,
            directories=tuple(map(str, self._paths)),
            bytes=sum(log.bytes for log in placing.placed.values()),
            segments=sum(log.segments for log in placing.placed.values()),
            batches_lowered=0 if failures else sum(each.batches_lowered for each in written),
            remembered=not failures and self._remember(plan, report.as_dict()),
        )

    def _remember(self, plan: RestorePlan, document: dict[str, object]) -> bool:
        """Store plan and report for `groups apply` and `compare`. An archive that is read-only is restored too."""
        try:
            store_plan(self._archive.storage, plan)
            store_report(self._archive.storage, plan.restore_id, document)
        except MaxbrodError:
            return False
        return True


def cold_items(
    archive: Archive,
    plan: RestorePlan,
    request: RestoreRequest,
    paths: Sequence[Path],
    *,
    done: Done,
    leader_epochs: LeaderEpochs,
) -> list[tuple[int, ColdItem]]:
    """The partitions that some directory lacks, with their sizes. RefusedError: a folder is no longer empty."""
    target = ColdTarget(directories=list(map(look_at, paths)), done=done.keys())
    moment = find_moment(archive.storage, archive.catalog.runs(), plan.archive.run_id)
    configs = cold_configs(request.rename, moment.cluster, read_assignments(paths))
    sources = sources_of(plan)
    rows = archive.catalog.rows(topic_ids={each.topic_id for each in sources}, revisions=revisions_of(sources))
    extents, slices = measure_extents([rows], sources), cold_slices(rows, plan)
    items = []
    for topic in plan.topics:
        for source in (partition.source for partition in topic.partitions):
            where = TopicPartition(topic=topic.target.name, partition=source.partition)
            directories = _lacking(target, where)
            if directories:
                item = ColdItem(
                    where=where,
                    directories=tuple(map(str, directories)),
                    start=extents[source.id].start,
                    end=source.asked_end,
                    epoch_max=max(target.leader_epoch(where), 0) if leader_epochs is LeaderEpochs.LOWER else None,
                    segment_bytes=_segment_bytes(configs.get(where.topic, {})),
                    slices=tuple(slices.get(source.id, ())),
                )
                items.append((source.raw_bytes, item))
    return items


def cold_slices(rows: pa.Table, plan: RestorePlan) -> dict[PartitionId, list[Slice]]:
    """The slices of all sources in the order of offsets, without what is lost."""
    sources = sources_of(plan)
    return sound_slices(rows_to_write(rows, sources), sources)


def _lacking(target: ColdTarget, where: TopicPartition) -> list[Path]:
    """The directories that the partition is still to be written to."""
    found = []
    for directory, folder in target.folders(where):
        if (directory.path, where) in target.done:
            continue
        if folder.held is not None:
            raise RefusedError(
                f"the folder is not empty any more: {folder.held}",
                operation="restore",
                object_name=str(directory.path / str(where)),
                hint="nothing was changed; find out what has written there",
            )
        found.append(directory.path)
    return found


def _segment_bytes(configs: Mapping[str, str]) -> int:
    with suppress(KeyError, ValueError):
        return int(configs["segment.bytes"])
    return SEGMENT_BYTES


def run_cold_tasks(
    executor: Executor,
    settings: ColdSettings,
    tasks: Sequence[Sequence[ColdItem]],
    *,
    on_done: TasksDone | None = None,
    stop: threading.Event | None = None,
) -> list[ColdWritten]:
    """Return the outcome of every item. UnavailableError: `stop` was set before the tasks had finished.

    RefusedError: the tasks may run on other machines, which do not have these directories.
    """
    if not executor.is_here:
        raise RefusedError(
            "this Spark session runs elsewhere, and log directories are on this machine",
            operation="restore",
            hint="leave out --master, or say --master 'local[*]'",
        )
    return executor.run(
        run_cold_task, settings, tasks, name=f"restore-{settings.restore_id}", on_done=on_done, stop=stop
    )


class ColdMeter:
    """The progress of the job, seen from the driver: the bytes that the tasks have staged in the directories."""

    def __init__(self, directories: Sequence[Path], on_progress: OnProgress, *, bytes_total: int, tasks: int) -> None:
        self._directories, self._on_progress = directories, on_progress
        self._bytes_total, self._tasks = bytes_total, tasks
        self._bytes = 0
        self._next = 0.0

    def tasks_done(self, count: int) -> None:
        """Called from one thread at a time."""
        now = time.monotonic()
        if self._on_progress is not silent and now >= self._next:
            # A task that failed removes what it wrote, perhaps at this moment.
            with suppress(OSError):
                self._bytes = min(sum(map(staged_bytes, self._directories)), self._bytes_total)
            self._next = now + (time.monotonic() - now) / _LOOKING_SHARE
        self._on_progress(
            Progress(
                phase="restoring",
                bytes_done=self._bytes,
                bytes_total=self._bytes_total,
                tasks_done=count,
                tasks_total=self._tasks,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReport:
    """The report of every restore, and what was written."""

    restore: RestoreReport
    directories: tuple[str, ...]
    bytes: int
    """The size of the logs, over all replicas."""
    segments: int
    batches_lowered: int
    """Batches whose leader epoch was lowered to the target's."""
    remembered: bool
    """True if the archive holds plan and report, so that 'maxbrod groups' and 'maxbrod compare' find them."""

    @property
    def exit_code(self) -> int:
        return self.restore.exit_code

    @property
    def complete(self) -> bool:
        return self.restore.complete

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.restore.as_dict(),
            "directories": list(self.directories),
            "bytes": self.bytes,
            "segments": self.segments,
            "batches_lowered": self.batches_lowered,
            "remembered": self.remembered,
        }


def cold_report_of(
    plan: RestorePlan,
    logs: Mapping[TopicPartition, WrittenLog],
    failures: Mapping[TopicPartition, MaxbrodError],
    *,
    started_at_ms: int,
    resumed: bool,
) -> RestoreReport:
    """If any partition failed, none is in place."""
    restored = []
    for topic in plan.topics:
        for partition in topic.partitions:
            where = TopicPartition(topic=topic.target.name, partition=partition.source.partition)
            log = None if failures else logs.get(where)
            end, records = (0, 0) if log is None else (log.end, log.records)
            failure = failures.get(where)
            restored.append(Restored(where=where, end=end, records=records, map=_NO_MAP, failure=failure))
    # A restore into log directories has no ACLs and quotas to report.
    return replace(report_of(plan, restored, started_at_ms=started_at_ms, resumed=resumed), access=None)
