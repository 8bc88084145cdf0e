"""Restores an archive directly into the log directories of stopped brokers, without a running cluster.

All partitions are staged first, then put in place together. After a kill at any instant the directories are unchanged
or complete, or the same command completes them.
"""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from maxbrod.archive.archive import open_archive
from maxbrod.errors import IncompleteError, MaxbrodError, UnavailableError, UsageError
from maxbrod.layouts.logdir.target import locked, look_at, read_assignments
from maxbrod.model import TopicPartition, now_ms
from maxbrod.restore.archived import look_at_archive
from maxbrod.restore.cold.items import cold_items, cold_slices
from maxbrod.restore.cold.job import ColdMeter, run_cold_tasks
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
from maxbrod.restore.cold.task import ColdItem, ColdSettings, ColdWritten
from maxbrod.restore.loss import Losses, damaged_part, find_losses, listed_losses, unknown_losses
from maxbrod.restore.plan.changes import refuse_changes
from maxbrod.restore.plan.obstacles import in_order, refusal
from maxbrod.restore.plan.plan import RestorePlan, plan_restore, sources_of, without_lost
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest, command_digest
from maxbrod.restore.plan.sources import revisions_of
from maxbrod.restore.report import AGAIN
from maxbrod.restore.state import next_id, store_plan, store_report
from maxbrod.work.executor import Workers
from maxbrod.work.preflight import needs_storage
from maxbrod.work.progress import OnProgress, Progress, silent
from maxbrod.work.reach import Place
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from maxbrod.config import Config
    from maxbrod.restore.cold.items import Done
    from maxbrod.work.session import Session

_WHERE = "log directories"
"""Takes the place of a cluster in the digest of the command: a restore through brokers is another command."""


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
        """What was written; and the plan without damaged ranges, if the user accepts to lose them."""
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
        """Store plan and report for `groups apply` and `compare`. An archive that is read-only is restored too."""
        try:
            store_plan(self._archive.storage, plan)
            store_report(self._archive.storage, plan.restore_id, document)
        except MaxbrodError:
            return False
        return True
