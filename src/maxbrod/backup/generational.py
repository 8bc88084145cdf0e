"""The part of a backup that reads compacted topics afresh: see `generations`, which has the steps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from maxbrod.backup.archive_state import ArchiveState
from maxbrod.backup.base import BackupBase
from maxbrod.backup.generations import (
    KnownGenerations,
    accept,
    choose_shares,
    drop_and_begin,
    held_by,
    note_caught_up,
    plan_switch,
    view_topics,
)
from maxbrod.backup.plan.tasks import plan_tasks
from maxbrod.backup.progress import Meter
from maxbrod.backup.proof import Proved, prove_unread, still_to_read
from maxbrod.backup.run_state import BackupRun
from maxbrod.work.progress import OnProgress, silent

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.backup.plan.generations import Policy, Share
    from maxbrod.backup.plan.items import Task
    from maxbrod.backup.plan.states import PartitionBackup
    from maxbrod.catalog.queries import ArchivedRange
    from maxbrod.catalog.rows import Run
    from maxbrod.config import Config
    from maxbrod.kafka.state.cluster_state import ClusterState
    from maxbrod.model import PartitionId
    from maxbrod.notices import Notice
    from maxbrod.work.session import Session


class GenerationalBackup(BackupBase):
    """Knows generations from run to run. `Backup` reads, proves and commits."""

    def __init__(
        self,
        config: Config,
        *,
        session: Session | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__(config, session=session, on_progress=on_progress, stop=stop)
        self._known = ArchiveState()
        self._run = BackupRun()
        self._generations = KnownGenerations()

    @abstractmethod
    def _note(self, *notices: Notice) -> None: ...

    @abstractmethod
    def _commit(self, archive: Archive, row: Run | None = None) -> None: ...

    @abstractmethod
    def _read_wave(
        self,
        wave: Sequence[Task],
        plans: Mapping[PartitionId, PartitionBackup],
        held: Mapping[PartitionId, ArchivedRange],
        meter: Meter,
    ) -> Proved: ...

    def _advance_generations(self, archive: Archive, cluster: ClusterState, policy: Policy) -> None:
        """Begin generations of compacted topics, read on, and plan the switch to those that are complete."""
        run, now = self._run, self._run.started_at_ms
        reaches = run.after_commit(self._known.ends, everything=True).reaches()
        complete = {partition: reach.complete for partition, reach in reaches.items()}
        views = view_topics(run.plans, self._known.held, self._generations, cluster, complete)
        self._generations, notices = drop_and_begin(
            self._generations, views, archive, policy, present=run.present, now=now
        )
        self._note(*notices)
        self._read_generations(archive, choose_shares(self._generations, views, policy, now=now))
        for decide in (note_caught_up, plan_switch):
            if any(topic.building is not None for topic in self._generations.topics.values()):
                # Both look at the rows of the catalog.
                self._commit(archive)
                self._generations, notices = decide(self._generations, views, archive)
                self._note(*notices)

    def _read_generations(self, archive: Archive, shares: Sequence[Share]) -> None:
        """Read wave by wave. The backup itself is committed first: it does not depend on this."""
        plans = {share.plan.state.id: share.plan for share in shares}
        numbers = {share.plan.state.id: share.generation for share in shares}
        run_id = self._run.run_id
        waves = plan_tasks(
            [plan.range for plan in plans.values()],
            parallelism=self._workers.parallelism,
            wave_bytes=self._request.commit_bytes,
        )
        meter = Meter(self._on_progress, waves)
        stopped: frozenset[PartitionId] = frozenset()

        def accepted(proved: Proved) -> frozenset[PartitionId]:
            self._generations, notices, ended = accept(self._generations, proved, numbers)
            self._note(*notices)
            return ended

        accepted(prove_unread(plans.values(), held_by(shares, self._generations), run_id=run_id))
        for planned in waves:
            self._commit(archive)
            if self.stop.is_set():
                self._run = replace(self._run, interrupted=True)
                return
            held = held_by(shares, self._generations)
            wave = still_to_read(planned, held, stopped)
            if not wave:
                meter.wave_done()
                continue
            stopped = stopped.union(accepted(self._read_wave(wave, plans, held, meter)))
