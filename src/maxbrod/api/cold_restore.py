"""Restores an archive straight into the log directories of brokers that are stopped: no cluster, no protocol.

All partitions are written aside first, then put in place together. Killed at any instant, the directories are as they
were or complete, and the same command again completes them.
"""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from maxbrod.api.archives import open_archive
from maxbrod.api.backup_run import now_ms
from maxbrod.api.cold_items import cold_items, sources_of
from maxbrod.api.cold_meter import ColdMeter
from maxbrod.api.cold_placing import Placing
from maxbrod.api.cold_report import ColdReport, cold_report_of
from maxbrod.api.progress import Progress, silent
from maxbrod.api.restore_damage import damage, without_snapshot
from maxbrod.api.restore_report import AGAIN
from maxbrod.api.restore_state import next_id, store_plan, store_report
from maxbrod.api.snapshots import find_moment, read_cluster
from maxbrod.errors import IncompleteError, MaxbrodError, UnavailableError, UsageError
from maxbrod.layouts.logdir.target import locked, look_at
from maxbrod.layouts.logdir.target_metadata import read_assignments
from maxbrod.planning.incarnations import Incarnation, newest_ids
from maxbrod.planning.restore.choosing import choose_incarnations
from maxbrod.planning.restore.cold import (
    COLD_COLUMNS,
    LeaderEpochs,
    check_cold,
    cold_state,
    measure_extents,
)
from maxbrod.planning.restore.cold_preflight import ColdTarget, find_cold_obstacles
from maxbrod.planning.restore.columns import SOURCE_COLUMNS
from maxbrod.planning.restore.obstacles import in_order, refusal
from maxbrod.planning.restore.plan import Archive, RestorePlan, plan_restore
from maxbrod.planning.restore.wish import OffsetsMode, command_digest
from maxbrod.planning.windows import spread
from maxbrod.spark.cold_restore import run_cold_job
from maxbrod.spark.cold_restore_task import ColdSettings
from maxbrod.spark.session import open_configured, parallelism_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from maxbrod.api.cold_items import Done
    from maxbrod.api.progress import OnProgress
    from maxbrod.config import Config
    from maxbrod.kafka.cluster_state import ClusterState
    from maxbrod.model import TopicPartition
    from maxbrod.planning.restore.wish import Wish
    from maxbrod.spark.cold_restore_task import ColdItem, ColdWritten
    from maxbrod.spark.session import Session

_WHERE = "log directories"
"""In place of a cluster in the digest of the command: a restore through brokers is another one."""


class ColdRestore:
    """One wish, one archive, the log directories of one cluster."""

    def __init__(
        self,
        config: Config,
        wish: Wish,
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
        check_cold(wish)
        self._paths = list(dict.fromkeys(each.resolve() for each in directories))
        if not self._paths:
            raise UsageError("no log directory is named", hint="give --to-logdir")
        self._config = config
        self._wish = replace(wish, offsets=OffsetsMode.EXACT)
        self._leader_epochs = leader_epochs
        self._archive = open_archive(config.archive, config.storage, layout=config.layout)
        self._session, self.on_progress = session, on_progress
        self.stop = stop or threading.Event()

    def plan(self) -> RestorePlan:
        """What would be done, and all that stands in its way. Changes nothing."""
        self.on_progress(Progress(phase="planning"))
        cluster_id = look_at(self._paths[0]).cluster_id
        with locked(self._paths):
            placing = Placing(self._paths, self._command(cluster_id))
            target = ColdTarget(
                directories=placing.look(), assignments=read_assignments(self._paths), done=placing.begun()
            )
            return self._plan(target)

    def run(self, plan: RestorePlan) -> ColdReport:
        """Do what the plan says. Run again after any failure.

        IncompleteError: `stop` was set before all was written; nothing is in its place then.
        """
        refused = refusal(plan.obstacles)
        if refused is not None:
            raise refused
        started_at_ms = now_ms()
        with locked(self._paths), Placing(self._paths, plan.command) as placing:
            done = placing.finish_begun()
            written = self._write(plan, self._items(plan, done))
            failures = {each.where: each.failure for each in written if each.failure is not None}
            if not failures:
                self.on_progress(Progress(phase="putting in place"))
                placing.place(written)
        return self._report(plan, placing, written, failures, started_at_ms)

    def _command(self, cluster_id: str | None) -> str:
        where = f"{_WHERE} of {cluster_id}: {', '.join(sorted(map(str, self._paths)))} {self._leader_epochs}"
        return command_digest(self._wish, archive=self._archive.url, cluster_id=where)

    def _plan(self, target: ColdTarget) -> RestorePlan:
        archive, wish = self._archive, self._wish
        moment = find_moment(archive.storage, archive.catalog.runs(), wish.as_of, needed=not wish.accept_gaps)
        snapshot = None if moment.snapshot is None else read_cluster(moment.snapshot)
        rows = archive.catalog.rows(columns=("topic", "written_at", *SOURCE_COLUMNS, *COLD_COLUMNS))
        topics = {} if moment.snapshot is None else dict(moment.snapshot.topics)
        topics |= dict(zip(rows["topic_id"].to_pylist(), rows["topic"].to_pylist(), strict=True))
        chosen = choose_incarnations(wish, topics, _newest(rows, topics, snapshot))
        state = cold_state(target.directories, wish.rename, snapshot, target.assignments, now_ms=now_ms())
        command = self._command(state.cluster.cluster_id)
        plan = plan_restore(
            wish,
            restore_id=next_id(archive.storage, command),
            archive=Archive(
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
        )
        extents = measure_extents(rows, sources_of(plan))
        obstacles = [
            *find_cold_obstacles(plan, target, extents, self._leader_epochs),
            *damage(archive.survey, chosen.topics.values(), accepted=wish.accept_gaps),
            *without_snapshot(moment),
        ]
        return replace(plan, command=command, obstacles=in_order(obstacles))

    def _items(self, plan: RestorePlan, done: Done) -> list[tuple[int, ColdItem]]:
        return cold_items(self._archive, plan, self._wish, self._paths, done=done, leader_epochs=self._leader_epochs)

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


def _newest(rows: pa.Table, topics: Mapping[str, str], snapshot: ClusterState | None) -> frozenset[str]:
    written = rows.group_by("topic_id").aggregate([("written_at", "min")]).to_pylist()
    first = {each["topic_id"]: each["written_at_min"] for each in written}
    incarnations = [
        Incarnation(topic=name, topic_id=topic_id, first_written_at=first.get(topic_id, 0))
        for topic_id, name in topics.items()
    ]
    present = set() if snapshot is None else {each.topic_id for each in snapshot.topics}
    return frozenset(newest_ids(incarnations, present))
