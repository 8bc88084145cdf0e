"""Restores an archive straight into the log directories of brokers that are stopped: no cluster, no protocol.

All partitions are written aside first, then put in place together. Killed at any instant, the directories are as they
were or complete, and the same command again completes them.
"""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from maxbrod.archive.incarnations import Incarnation, newest_ids
from maxbrod.archive.opening import open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.engine.progress import Progress, silent
from maxbrod.engine.session import open_configured, parallelism_of
from maxbrod.engine.windows import spread
from maxbrod.errors import IncompleteError, MaxbrodError, UnavailableError, UsageError
from maxbrod.layouts.logdir.target import locked, look_at
from maxbrod.layouts.logdir.target_metadata import read_assignments
from maxbrod.model import now_ms
from maxbrod.restore.cold.items import cold_items, cold_slices
from maxbrod.restore.cold.job import run_cold_job
from maxbrod.restore.cold.meter import ColdMeter
from maxbrod.restore.cold.placing import Placing
from maxbrod.restore.cold.plan import (
    COLD_COLUMNS,
    LeaderEpochs,
    check_cold,
    cold_state,
    measure_extents,
)
from maxbrod.restore.cold.preflight import ColdTarget, find_cold_obstacles
from maxbrod.restore.cold.report import ColdReport, cold_report_of
from maxbrod.restore.cold.task import ColdSettings
from maxbrod.restore.damage import damage, without_snapshot
from maxbrod.restore.loss import damaged_part, listed_losses, unknown_losses
from maxbrod.restore.loss_job import run_loss_job
from maxbrod.restore.plan.changes import refuse_changes
from maxbrod.restore.plan.choosing import choose_incarnations
from maxbrod.restore.plan.columns import SOURCE_COLUMNS
from maxbrod.restore.plan.obstacles import in_order, refusal
from maxbrod.restore.plan.plan import RestorePlan, SourceArchive, plan_restore, sources_of, without_lost
from maxbrod.restore.plan.request import OffsetsMode, command_digest
from maxbrod.restore.plan.sources import revisions_of
from maxbrod.restore.report import AGAIN
from maxbrod.restore.state import next_id, store_plan, store_report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from maxbrod.config import Config
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session
    from maxbrod.model import TopicPartition
    from maxbrod.restore.cold.items import Done
    from maxbrod.restore.cold.task import ColdItem, ColdWritten
    from maxbrod.restore.loss import LostOf
    from maxbrod.restore.plan.request import RestoreRequest

_WHERE = "log directories"
"""In place of a cluster in the digest of the command: a restore through brokers is another one."""


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
            raise UsageError("no archive is named", hint="give --archive, or archive in the configuration")
        if session is None and re.match(r"local\b", config.spark.master) is None:
            raise UsageError(
                "log directories are on this machine, and this Spark master is not",
                object_name=config.spark.master,
                hint="leave out --master",
            )
        check_cold(request)
        self._paths = list(dict.fromkeys(each.resolve() for each in directories))
        if not self._paths:
            raise UsageError("no log directory is named", hint="give --to-logdir")
        self._config = config
        self._request = replace(request, offsets=OffsetsMode.EXACT)
        self._leader_epochs = leader_epochs
        self._archive = open_archive(config.archive, config.storage, layout=config.layout)
        self._session, self.on_progress = session, on_progress
        self.stop = stop or threading.Event()

    def plan(self) -> RestorePlan:
        """What would be done, and all that stands in its way. Changes nothing."""
        self.on_progress(Progress(phase="planning"))
        cluster_id = look_at(self._paths[0]).cluster_id
        with locked(self._paths):
            return self._plan(self._look(Placing(self._paths, self._command(cluster_id))))

    def _look(self, placing: Placing) -> ColdTarget:
        return ColdTarget(directories=placing.look(), assignments=read_assignments(self._paths), done=placing.begun())

    def run(self, plan: RestorePlan) -> ColdReport:
        """Do what the plan says. Run again after any failure.

        IncompleteError: `stop` was set before all was written; nothing is in its place then. RefusedError: it is not
        what would be planned now.
        """
        started_at_ms = now_ms()
        with locked(self._paths), Placing(self._paths, plan.command) as placing:
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
        moment = find_moment(archive.storage, archive.catalog.runs(), request.as_of, needed=not request.accept_gaps)
        snapshot = moment.cluster
        revisions = moment.revisions_in(archive.catalog)
        columns = ("topic", "written_at", *SOURCE_COLUMNS, *COLD_COLUMNS)
        rows = archive.catalog.rows(columns=columns, revisions=revisions)
        topics = {} if moment.snapshot is None else dict(moment.snapshot.topics)
        topics |= dict(zip(rows["topic_id"].to_pylist(), rows["topic"].to_pylist(), strict=True))
        chosen = choose_incarnations(request, topics, _newest(rows, topics, moment.ranks))
        state = cold_state(target.directories, request.rename, snapshot, target.assignments, now_ms=now_ms())
        command = self._command(state.cluster.cluster_id)
        plan = plan_restore(
            request,
            restore_id=next_id(archive.storage, command),
            archive=SourceArchive(
                url=archive.url,
                version=archive.catalog.version,
                run_id=None if moment.run is None or moment.snapshot is None else moment.run.run_id,
            ),
            chosen=chosen,
            rows=rows,
            ends={} if moment.snapshot is None else moment.snapshot.ends,
            snapshot=snapshot,
            target=state,
            now_ms=now_ms(),
            topic_runs=moment.topic_runs,
            lost=listed_losses(archive, chosen.topics.keys(), revisions),
            revisions=revisions,
        )
        extents = measure_extents(rows, sources_of(plan))
        obstacles = [
            *find_cold_obstacles(plan, target, extents, self._leader_epochs),
            *damage(archive.survey, chosen.topics.values(), accepted=request.accept_gaps),
            *without_snapshot(moment),
        ]
        return replace(plan, command=command, obstacles=in_order(obstacles))

    def _written(self, plan: RestorePlan, done: Done) -> tuple[RestorePlan, list[ColdWritten]]:
        """What was written; and the plan, without what turned out to be damaged, if that is accepted."""
        written = self._write(plan, self._items(plan, done))
        while lost := self._accepted_losses(plan, written):
            plan = without_lost(plan, lost, accepted=True)
            again = {each.where for each in written if each.failure is not None}
            items = [(size, item) for size, item in self._items(plan, done) if item.where in again]
            written = [*(each for each in written if each.failure is None), *self._write(plan, items)]
        return plan, written

    def _accepted_losses(self, plan: RestorePlan, written: Sequence[ColdWritten]) -> LostOf:
        """What cannot be read of partitions that damage has ended, and nobody knew of."""
        damaged = damaged_part(plan, written) if self._request.accept_gaps else plan
        if not self._request.accept_gaps or not damaged.topics:
            return {}
        self.on_progress(Progress(phase="looking for damage"))
        with open_configured(self._config.spark, self._session) as session:
            found = run_loss_job(
                session,
                self._archive.url,
                self._config.storage,
                cold_slices(self._archive.catalog.rows(revisions=revisions_of(sources_of(damaged))), damaged),
                name=f"damage-{plan.restore_id}",
                parallelism=parallelism_of(self._config.spark.master, session),
                stop=self.stop,
            )
        return unknown_losses(plan, found)

    def _items(self, plan: RestorePlan, done: Done) -> list[tuple[int, ColdItem]]:
        return cold_items(self._archive, plan, self._request, self._paths, done=done, leader_epochs=self._leader_epochs)

    def _write(self, plan: RestorePlan, items: Sequence[tuple[int, ColdItem]]) -> list[ColdWritten]:
        if not items:
            return []
        spark, total = self._config.spark, sum(size * len(item.directories) for size, item in items)
        settings = ColdSettings(restore_id=plan.restore_id, archive_url=self._archive.url, storage=self._config.storage)
        self.on_progress(Progress(phase="starting Spark"))
        try:
            with open_configured(spark, self._session) as session:
                tasks = spread(items, parallelism_of(spark.master, session))

                meter = ColdMeter(self._paths, self.on_progress, bytes_total=total, tasks=len(tasks))
                return run_cold_job(session, settings, tasks, on_done=meter.tasks_done, stop=self.stop)
        except UnavailableError as error:
            if not self.stop.is_set():
                raise
            raise IncompleteError(
                "stopped before everything was restored; the directories are as they were",
                operation="restore",
                object_name=plan.restore_id,
                hint=AGAIN,
            ) from error

    def _report(
        self,
        plan: RestorePlan,
        placing: Placing,
        written: Sequence[ColdWritten],
        failures: Mapping[TopicPartition, Mapping[str, object]],
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
        """For those who come later with a cluster. An archive that takes nothing is restored all the same."""
        try:
            store_plan(self._archive.storage, plan)
            store_report(self._archive.storage, plan.restore_id, document)
        except MaxbrodError:
            return False
        return True


def _newest(rows: pa.Table, topics: Mapping[str, str], ranks: Mapping[str, int]) -> frozenset[str]:
    written = rows.group_by("topic_id").aggregate([("written_at", "min")]).to_pylist()
    first = {each["topic_id"]: each["written_at_min"] for each in written}
    incarnations = [
        Incarnation(topic=name, topic_id=topic_id, first_written_at=first.get(topic_id, 0))
        for topic_id, name in topics.items()
    ]
    return frozenset(newest_ids(incarnations, ranks))
