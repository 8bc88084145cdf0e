"""Restores an archive directly into the log directories of stopped brokers, without a running cluster.

All partitions are staged first, then put in place together. After a kill at any instant the directories are unchanged
or complete, or the same command completes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from maxbrod.archive.archive import Archive, open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.errors import MaxbrodError, RefusedError, UsageError
from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.logdir.target import locked, look_at, read_assignments, staged_bytes
from maxbrod.layouts.logdir.writer import SEGMENT_BYTES, WrittenLog
from maxbrod.model import PartitionId, TopicPartition, now_ms
from maxbrod.restore.archived import (
    Losses,
    damaged_part,
    find_losses,
    look_at_archive,
    plan_archived,
    planned_rows,
    sound_slices,
)
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
from maxbrod.restore.cold.task import ColdItem, ColdWritten, Placing, run_cold_task
from maxbrod.restore.items import Restored
from maxbrod.restore.meter import RestoreMeter
from maxbrod.restore.plan.obstacles import in_order
from maxbrod.restore.plan.plan import RestorePlan, refuse_changes, sources_of, without_lost
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest, command_digest, parse_word
from maxbrod.restore.report import ColdReport, ended_by_stop, report_of
from maxbrod.restore.state import next_id, store_plan, store_report
from maxbrod.work.executor import Workers
from maxbrod.work.preflight import needs_storage
from maxbrod.work.reach import Place
from maxbrod.work.windows import spread
from maxbrod.work.work import Work

_WHERE = "log directories"
"""Takes the place of a cluster in the digest of the command: a restore through brokers is another command."""
Done: TypeAlias = "Mapping[tuple[Path, TopicPartition], WrittenLog]"
_NO_MAP: dict[str, Any] = {"base": 0, "ranges": []}
"""Offsets stay the same."""


class ColdRestore:
    """One request, one archive, the log directories of one cluster."""

    def __init__(
        self,
        work: Work,
        request: RestoreRequest,
        directories: Sequence[Path],
        leader_epochs: str = LeaderEpochs.KEEP,
    ) -> None:
        if request.schema_registry is not None:
            raise UsageError(
                "schemas are restored with a cluster, not with log directories",
                hint="leave out --schema-registry; restore the schemas with a topic when the brokers are up",
            )
        self._work, config = work, work.config
        url = config.archive_url
        if work.session is None and re.match(r"local\b", config.spark.master) is None:
            raise UsageError(
                "log directories are on this machine, and this Spark master is not",
                object_name=config.spark.master,
                hint="leave out --master",
            )
        check_cold(request)
        self._paths = list(dict.fromkeys(directory.resolve() for directory in directories))
        if not self._paths:
            raise UsageError("no log directory is given", hint="give --to-logdir")
        self._request = replace(request, offsets=OffsetsMode.EXACT)
        self._leader_epochs = parse_word(LeaderEpochs, "leader-epochs", leader_epochs)
        self._archive = open_archive(url, config.storage, layout=config.layout, records=True)

    def plan(self) -> RestorePlan:
        """Return the plan and its obstacles. Changes nothing."""
        self._work.tell("planning")
        cluster_id = look_at(self._paths[0]).cluster_id
        with locked(self._paths):
            return self._plan(Placing(self._paths, self._command(cluster_id)))

    def run(self, plan: RestorePlan) -> ColdReport:
        """Carry out the plan. After any failure run it again.

        IncompleteError: `stop` was set before everything was written; nothing is in place then. RefusedError: the
        plan is out of date.
        """
        started_at_ms = now_ms()
        with self._work, locked(self._paths), Placing(self._paths, plan.command) as placing:
            # Planned again under the locks: brokers may have started and stopped since the plan was shown.
            refuse_changes(plan, self._plan(placing), begun=False)
            done = placing.finish_begun()
            workers = self._work.workers(needs_storage(self._archive.url, self._archive.options))
            with ended_by_stop(self._work, plan, "; the directories are unchanged"):
                plan, written = self._write_all(workers, plan, done)
            if all(outcome.failure is None for outcome in written):
                self._work.tell("putting in place")
                placing.place(written)
        return self._report(plan, placing, written, started_at_ms)

    def _command(self, cluster_id: str | None) -> str:
        where = f"{_WHERE} of {cluster_id}: {', '.join(sorted(map(str, self._paths)))} {self._leader_epochs}"
        return command_digest(self._request, archive=self._archive.url, cluster_id=where)

    def _plan(self, placing: Placing) -> RestorePlan:
        archive, request = self._archive, self._request
        assignments = read_assignments(self._paths)
        target = ColdTarget(directories=placing.look(), assignments=assignments, done=placing.begun())
        archived = look_at_archive(archive, request, columns=COLD_COLUMNS)
        snapshot = archived.moment.cluster
        state = cold_state(target.directories, request.rename, snapshot, assignments, now_ms=now_ms())
        command = self._command(state.cluster.cluster_id)
        plan = plan_archived(archived, request, state, restore_id=next_id(archive.storage, command))
        extents = measure_extents(archived.rows.portions(), sources_of(plan))
        obstacles = [
            *find_cold_obstacles(plan, target, extents, self._leader_epochs),
            *archived.obstacles(accepted=request.accept_gaps),
        ]
        return replace(plan, command=command, obstacles=in_order(obstacles))

    def _write_all(self, workers: Workers, plan: RestorePlan, done: Done) -> tuple[RestorePlan, list[ColdWritten]]:
        """Write all partitions. Return the plan, without damaged ranges that the user accepts to lose, and outcomes."""
        written = self._write(workers, plan, self._items(plan, done))
        while lost := self._accepted_losses(workers, plan, written):
            plan = without_lost(plan, lost, accepted=True)
            again = {outcome.where for outcome in written if outcome.failure is not None}
            items = [(size, item) for size, item in self._items(plan, done) if item.where in again]
            written = [
                *(outcome for outcome in written if outcome.failure is None),
                *self._write(workers, plan, items),
            ]
        return plan, written

    def _accepted_losses(self, workers: Workers, plan: RestorePlan, written: Sequence[ColdWritten]) -> Losses:
        """Return unreadable ranges, not yet known, of partitions that damage has stopped."""
        damaged = damaged_part(plan, written)
        if not self._request.accept_gaps or not damaged.topics:
            return {}
        slices = cold_slices(self._archive, planned_rows(self._archive, damaged), damaged)
        return find_losses(self._work, workers.for_bytes(damaged.bytes), self._archive, plan, slices)

    def _items(self, plan: RestorePlan, done: Done) -> list[tuple[int, ColdItem]]:
        return cold_items(self._archive, plan, self._request, self._paths, done=done, leader_epochs=self._leader_epochs)

    def _write(self, workers: Workers, plan: RestorePlan, items: Sequence[tuple[int, ColdItem]]) -> list[ColdWritten]:
        """RefusedError: the tasks may run on other machines, which do not have these directories."""
        if not items:
            return []
        total = sum(size * len(item.directories) for size, item in items)
        executor = workers.for_bytes(total)
        if not executor.is_here:
            raise RefusedError(
                "this Spark session runs elsewhere, and log directories are on this machine",
                operation="restore",
                hint="leave out --master, or say --master 'local[*]'",
            )
        tasks = spread(items, executor.parallelism)
        look = partial(staged_so_far, self._paths)
        meter = RestoreMeter(look, self._work.on_progress, bytes_total=total, tasks=len(tasks))
        return executor.run(
            run_cold_task,
            Place(url=self._archive.url, storage=self._archive.options),
            tasks,
            name=f"restore-{plan.restore_id}",
            meter=meter,
            stop=self._work.stop,
        )

    def _report(
        self, plan: RestorePlan, placing: Placing, written: Sequence[ColdWritten], started_at_ms: int
    ) -> ColdReport:
        failures = {outcome.where: outcome.failure for outcome in written if outcome.failure is not None}
        # If any partition failed, none is in place.
        logs = {} if failures else {where: log for (_, where), log in placing.placed.items()}
        restored = [
            Restored(
                where=where,
                end=logs[where].end if where in logs else 0,
                records=logs[where].records if where in logs else 0,
                map=_NO_MAP,
                failure=failures.get(where),
            )
            for topic in plan.topics
            for where, _ in topic.placed()
        ]
        whole = report_of(plan, restored, started_at_ms=started_at_ms, resumed=placing.resumed)
        # A restore into log directories has no ACLs and quotas to report.
        report = replace(whole, access=None)
        return ColdReport(
            **{field.name: getattr(report, field.name) for field in fields(report)},
            directories=tuple(map(str, self._paths)),
            bytes=sum(log.bytes for log in placing.placed.values()),
            segments=sum(log.segments for log in placing.placed.values()),
            batches_lowered=0 if failures else sum(outcome.batches_lowered for outcome in written),
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


def staged_so_far(directories: Sequence[Path]) -> tuple[float, float]:
    """Return the bytes that tasks have staged; their records are not known yet."""
    # A task that failed removes what it wrote, perhaps at this moment.
    with suppress(OSError):
        return sum(map(staged_bytes, directories)), 0
    return 0, 0


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
    rows = planned_rows(archive, plan)
    extents, slices = measure_extents([rows], sources_of(plan)), cold_slices(archive, rows, plan)
    items = []
    for topic in plan.topics:
        for where, partition in topic.placed():
            source, directories = partition.source, _lacking(target, where)
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


def cold_slices(archive: Archive, rows: pa.Table, plan: RestorePlan) -> dict[PartitionId, list[Slice]]:
    """The slices of all sources in the order of offsets, without what is lost."""
    sources = sources_of(plan)
    return sound_slices(archive, rows_to_write(rows, sources), sources)


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
