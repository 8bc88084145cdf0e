"""The waves of a run: tasks read ranges of partitions, and what they bring is proved.

Compacted topics are read afresh in waves of their own, if that was asked for: see `generations`, which has the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maxbrod.backup.base import rate_of_one
from maxbrod.backup.generations import (
    accept,
    choose_shares,
    drop_and_begin,
    held_by,
    note_caught_up,
    plan_switch,
    view_topics,
)
from maxbrod.backup.plan.tasks import plan_tasks
from maxbrod.backup.progress import BrokerWatch, Meter
from maxbrod.backup.proof import Proved, prove, prove_unread, still_to_read
from maxbrod.backup.task import TaskSettings, run_backup_task
from maxbrod.backup.truncation import find_mixed
from maxbrod.layouts.kafka.format import Compression, SegmentLimits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.backup.commits import Commits
    from maxbrod.backup.plan.generations import GenerationPolicy, GenerationShare
    from maxbrod.backup.plan.items import Outcome, Task
    from maxbrod.backup.plan.states import PartitionBackup
    from maxbrod.backup.run_state import BackupState
    from maxbrod.catalog.queries import ArchivedRange
    from maxbrod.config import Config, KafkaConfig
    from maxbrod.kafka.state.cluster_state import ClusterState
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.model import PartitionId
    from maxbrod.work.executor import TasksDone, Workers
    from maxbrod.work.progress import OnProgress

    Plans = Mapping[PartitionId, PartitionBackup]
    Held = Mapping[PartitionId, ArchivedRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveReader:
    """Reads waves of tasks with the workers of a backup."""

    config: Config
    kafka: KafkaConfig
    client: KafkaClient
    workers: Workers
    compression: Compression
    on_progress: OnProgress

    @property
    def stopped(self) -> bool:
        return self.workers.stop is not None and self.workers.stop.is_set()

    def read(self, run_id: str, wave: Sequence[Task], plans: Plans, held: Held, meter: Meter) -> Proved:
        """Read a wave, and prove what it brings."""
        watch = BrokerWatch(self.kafka, self.client.brokers, then=meter.tasks_done)
        outcomes = self.run_tasks(run_id, wave, bytes_total=meter.bytes_total, on_done=watch.tasks_done)
        # A log that was cut while it was read must not become one history: it is planned again.
        mixed = find_mixed(self.client, held, outcomes, patience_s=self.config.patience)
        outcomes = [outcome for outcome in outcomes if outcome.item.id not in mixed]
        proved = prove(outcomes, plans, held, run_id=run_id)
        meter.wave_done(outcomes)
        return replace(
            proved,
            stopped=proved.stopped.union(mixed),
            again=proved.again.union(plans[each].state.topic for each in mixed),
        )

    def run_tasks(
        self, run_id: str, wave: Sequence[Task], *, bytes_total: int, on_done: TasksDone | None = None
    ) -> list[Outcome]:
        """Return the outcome of every range of a wave, which is one of several with `bytes_total` together."""
        executor = self.workers.for_bytes(bytes_total)
        tasks = [task.items for task in wave]
        return executor.run(run_backup_task, self._settings(run_id, len(wave)), tasks, name=run_id, on_done=on_done)

    def _settings(self, run_id: str, tasks: int) -> TaskSettings:
        request = self.config.backup
        return TaskSettings(
            run_id=run_id,
            archive_url=str(self.config.archive),
            kafka=self.kafka,
            storage=self.config.storage,
            compression=self.compression,
            exact_timestamps=request.exact_timestamps,
            limits=SegmentLimits(
                bytes_max=request.segment_bytes or SegmentLimits().bytes_max, records_max=request.segment_records
            ),
            patience_s=self.config.patience,
            rate_bytes_per_s=rate_of_one(request.rate_bytes_per_s, tasks, self.workers.parallelism),
        )


def advance_generations(
    state: BackupState,
    commits: Commits,
    reader: WaveReader,
    archive: Archive,
    cluster: ClusterState,
    policy: GenerationPolicy,
) -> None:
    """Begin generations of compacted topics, read on, and plan the switch to those that are complete."""
    run, now = state.run, state.run.started_at_ms
    reaches = run.after_commit(state.known.ends, everything=True).reaches()
    complete = {partition: reach.complete for partition, reach in reaches.items()}
    views = view_topics(run.plans, state.known.held, state.generations, cluster, complete)
    state.generations, notices = drop_and_begin(state.generations, views, archive, policy, present=run.present, now=now)
    state.note(*notices)
    _read_generations(state, commits, reader, archive, choose_shares(state.generations, views, policy, now=now))
    for decide in (note_caught_up, plan_switch):
        if any(topic.building is not None for topic in state.generations.topics.values()):
            # Both look at the rows of the catalog.
            commits.commit(archive)
            state.generations, notices = decide(state.generations, views, archive)
            state.note(*notices)


def _read_generations(
    state: BackupState, commits: Commits, reader: WaveReader, archive: Archive, shares: Sequence[GenerationShare]
) -> None:
    """Read wave by wave. The backup itself is committed first: it does not depend on this."""
    plans = {share.plan.state.id: share.plan for share in shares}
    numbers = {share.plan.state.id: share.generation for share in shares}
    run_id = state.run.run_id
    waves = plan_tasks(
        [plan.range for plan in plans.values()],
        parallelism=reader.workers.parallelism,
        wave_bytes=reader.config.backup.commit_bytes,
    )
    meter = Meter(reader.on_progress, waves)
    stopped: frozenset[PartitionId] = frozenset()

    def accepted(proved: Proved) -> frozenset[PartitionId]:
        state.generations, notices, ended = accept(state.generations, proved, numbers)
        state.note(*notices)
        return ended

    accepted(prove_unread(plans.values(), held_by(shares, state.generations), run_id=run_id))
    for planned in waves:
        commits.commit(archive)
        if reader.stopped:
            state.run = replace(state.run, interrupted=True)
            return
        held = held_by(shares, state.generations)
        wave = still_to_read(planned, held, stopped)
        if not wave:
            meter.wave_done()
            continue
        stopped = stopped.union(accepted(reader.read(run_id, wave, plans, held, meter)))
