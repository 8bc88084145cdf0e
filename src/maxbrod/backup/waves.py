"""The waves of a run: tasks read ranges of partitions, and what they bring is proved.

Compacted topics are read afresh in waves of their own, if that was asked for: see `generations`, which has the steps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from maxbrod.backup.generations import (
    accept,
    choose_shares,
    drop_and_begin,
    held_by,
    note_caught_up,
    plan_switch,
    view_topics,
)
from maxbrod.backup.plan.generations import GenerationPolicy, GenerationShare
from maxbrod.backup.plan.ranges import Held, Outcome, Plans, Task, Wave, plan_tasks
from maxbrod.backup.proof import Proved, prove, prove_unread, still_to_read
from maxbrod.backup.task import TaskSettings, run_backup_task
from maxbrod.backup.truncation import find_mixed
from maxbrod.config import KafkaConfig
from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.kafka.state.cluster_state import Broker, ClusterState
from maxbrod.kafka.wire.connection import Connection
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.kafka.format import Compression, SegmentLimits
from maxbrod.model import INT64_MAX, PartitionId
from maxbrod.work.progress import Meter, Watcher

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.backup.base import BackupBase
    from maxbrod.backup.commits import Commits


_LOG: Final = logging.getLogger(__name__)
_QUIET_S: Final = 10.0
_EVERY_S: Final = 60.0
_CONNECT_S: Final = 3.0
"""For all brokers together: the end of the tasks may have to wait for this."""


def read_waves(
    backup: BackupBase,
    commits: Commits,
    archive: Archive,
    waves: Sequence[Wave],
    plans: Plans,
    held: Callable[[], Held],
    accept: Callable[[Proved], frozenset[PartitionId]],
    *,
    halts: bool = False,
) -> None:
    """Read and prove wave by wave. Each is committed before the next begins; the last one is not.

    `held` returns what is archived by now. `accept` takes what was proved, and returns partitions that later waves
    leave out. `halts`: a stop ends tasks in the middle of a wave, and what they read counts.
    """
    sizes = [sum(task.bytes_estimate for task in wave) for wave in waves]
    meter = Meter(backup.on_progress, "reading", sum(sizes), sum(map(len, waves)))
    ended: frozenset[PartitionId] = frozenset()
    for number, planned in enumerate(waves):
        if number:
            commits.commit(archive)
        if backup.is_stopped():
            commits.state.run = replace(commits.state.run, interrupted=True)
            return
        wave = without_erased(archive, commits.state.known.ends, still_to_read(planned, held(), ended))
        meter.begin(len(planned), sizes[number])
        if wave:
            stop = backup.stop if halts else None
            proved = _read_wave(backup, commits.state.run.run_id, wave, plans, held(), meter, stop)
            ended = ended.union(accept(proved))
            if proved.halted:
                commits.state.run = replace(commits.state.run, interrupted=True)
                return
        else:
            meter.end(0)


def without_erased(archive: Archive, ends: Mapping[PartitionId, int], wave: Sequence[Task]) -> Wave:
    """Return the tasks, whose items know what was erased. Only offsets that the archive had before can have been."""
    if not any(item.start < ends.get(item.id, 0) for task in wave for item in task.items):
        return tuple(wave)
    erasures = archive.erasures()
    if not erasures:
        return tuple(wave)
    return tuple(
        replace(
            task,
            # A batch may reach beyond its range.
            items=tuple(replace(item, erased=erasures.records_in(item.id, 0, INT64_MAX)) for item in task.items),
        )
        for task in wave
    )


def _read_wave(
    backup: BackupBase,
    run_id: str,
    wave: Sequence[Task],
    plans: Plans,
    held: Held,
    meter: Meter,
    stop: threading.Event | None,
) -> Proved:
    """Read a wave, and prove what it brings. If it was stopped meanwhile, that is what its tasks had read by then."""
    watch = BrokerWatch(backup.kafka, backup.client.brokers, then=meter)
    try:
        outcomes = run_tasks(backup, run_id, wave, meter.total, watch, stop)
    except UnavailableError:
        if stop is None or not stop.is_set():
            raise
        # On a cluster, tasks do not notice a stop: they are ended, and what they read is left for the next run.
        return Proved(halted=True)
    # A log that was cut while it was read must not become one history: it is planned again.
    mixed = find_mixed(backup.client, held, outcomes, patience_s=backup.config.patience)
    outcomes = [outcome for outcome in outcomes if outcome.item.id not in mixed]
    proved = prove(outcomes, plans, held, run_id=run_id)
    slices = [stored for outcome in outcomes for stored in outcome.slices]
    meter.end(sum(stored.raw_bytes for stored in slices), sum(stored.records for stored in slices))
    return replace(
        proved,
        stopped=proved.stopped.union(mixed),
        again=proved.again.union(plans[partition].state.topic for partition in mixed),
    )


def run_tasks(
    backup: BackupBase,
    run_id: str,
    wave: Sequence[Task],
    bytes_total: int,
    meter: Watcher | None = None,
    stop: threading.Event | None = None,
) -> list[Outcome]:
    """Return the outcome of every range of a wave, which is one of several with `bytes_total` together."""
    request = backup.request
    settings = TaskSettings(
        run_id=run_id,
        archive_url=backup.archive_url,
        kafka=backup.kafka,
        storage=backup.config.storage,
        compression=Compression.parse(request.compression),
        exact_timestamps=request.exact_timestamps,
        limits=SegmentLimits(
            bytes_max=request.segment_bytes or SegmentLimits().bytes_max, records_max=request.segment_records
        ),
        patience_s=backup.config.patience,
        rate_bytes_per_s=backup.rate_of_one(len(wave)),
    )
    tasks = [task.items for task in wave]
    executor = backup.pool.for_bytes(bytes_total)
    return executor.run(run_backup_task, settings, tasks, name=run_id, meter=meter, stop=stop, gentle=True)


def advance_generations(
    backup: BackupBase, commits: Commits, archive: Archive, cluster: ClusterState, policy: GenerationPolicy
) -> None:
    """Begin generations of compacted topics, read on, and plan the switch to those that are complete."""
    state = commits.state
    run, now = state.run, state.run.started_at_ms
    reaches = run.after_commit(state.known.ends, everything=True).reaches()
    complete = {partition: reach.complete for partition, reach in reaches.items()}
    views = view_topics(run.plans, state.known.held, state.generations, cluster, complete)
    state.generations, notices = drop_and_begin(state.generations, views, archive, policy, present=run.present, now=now)
    state.note(*notices)
    shares = choose_shares(state.generations, views, policy, now=now)
    _read_generations(backup, commits, archive, shares)
    for decide in (note_caught_up, plan_switch):
        if any(topic.building is not None for topic in state.generations.topics.values()):
            # Both look at the rows of the catalog.
            commits.commit(archive)
            state.generations, notices = decide(state.generations, views, archive)
            state.note(*notices)


def _read_generations(
    backup: BackupBase, commits: Commits, archive: Archive, shares: Sequence[GenerationShare]
) -> None:
    """Read wave by wave. The backup itself is committed first: it does not depend on this."""
    state = commits.state
    plans = {share.plan.state.id: share.plan for share in shares}
    numbers = {share.plan.state.id: share.generation for share in shares}
    waves = plan_tasks(
        [plan.range for plan in plans.values()],
        parallelism=backup.pool.parallelism,
        wave_bytes=backup.request.commit_bytes,
    )

    def accepted(proved: Proved) -> frozenset[PartitionId]:
        state.generations, notices, ended = accept(state.generations, proved, numbers)
        state.note(*notices)
        return ended

    accepted(prove_unread(plans.values(), held_by(shares, state.generations), run_id=state.run.run_id))
    if waves:
        commits.commit(archive)
    read_waves(backup, commits, archive, waves, plans, lambda: held_by(shares, state.generations), accepted)


# Brokers that do not answer


class BrokerWatch:
    """Logs brokers that cannot be reached. Tasks run elsewhere and report nothing before they end.

    If no task has ended or read anything for a while, this tries to connect to every broker from here. `brokers` are
    those of the plan; `then` is told all that this is told.
    """

    def __init__(self, kafka: KafkaConfig, brokers: Sequence[Broker], *, then: Watcher) -> None:
        self._kafka = kafka
        self._then = then
        self._brokers = brokers
        self._done = (0, 0)
        self._check_at = time.monotonic() + _QUIET_S

    def seen(self, tasks: int, size: int) -> None:
        self._then.seen(tasks, size)
        now = time.monotonic()
        if (tasks, size) != self._done:
            self._done, self._check_at = (tasks, size), now + _QUIET_S
        elif now >= self._check_at:
            self._check()
            self._check_at = time.monotonic() + _EVERY_S

    def _check(self) -> None:
        limit = Deadline.after(_CONNECT_S)
        for broker in self._brokers:
            if limit.passed:
                return
            try:
                Connection.open(broker.host, broker.port, self._kafka, client_id="maxbrod", deadline=limit).close()
            except MaxbrodError as error:
                _LOG.warning("waiting for broker %d at %s:%d: %s", broker.node_id, broker.host, broker.port, error)
