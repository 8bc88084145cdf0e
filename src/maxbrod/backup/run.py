"""Backs up a cluster into an archive: observe, plan, read on Spark, prove that nothing is missing, commit.

All state is in the archive. A run commits each wave of tasks as a whole or not at all. If it is killed, it leaves
objects that no row names, and the next run starts where the catalog ends.

Each step is a function over frozen values, and every step has its own module:

    observation.observe    the cluster and the archive's end  → Observed: the state of every partition
    plan/                  Observed                           → plans, ranges, tasks, waves
    truncation             what the archive holds of a log that was cut is replaced
    task                   a wave of tasks                    → Outcome for each range, from Spark's workers
    proof                  Outcomes                           → Proved: rows that cover every offset once, and notices
    generations            compacted topics are read afresh beside all this, if that was asked for
    commits                Proved rows                        → the catalog, beside other writers if there are some

`Backup` only connects them. `BackupState` has the three values that each step replaces: `ArchiveState` and
`KnownGenerations` (what the archive knows, for any number of runs) and `BackupRun` (what this run has done). An error
leaves them at the last step that succeeded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from maxbrod.archive.archive import Archive, open_for_writing
from maxbrod.archive.selection import select_topics
from maxbrod.archive.snapshots import oldest
from maxbrod.backup.archive_state import ArchiveState, read_archive_state
from maxbrod.backup.base import BackupBase
from maxbrod.backup.commits import Commits, Part, PartOfTopics, dropped, own_catalog
from maxbrod.backup.generations import KnownGenerations, policy_of, read_generations
from maxbrod.backup.observation import ChosenTopics, Observations, Observed, observe
from maxbrod.backup.plan.ranges import PartitionBackup, Plans, RollSchedule, plan_partitions, plan_tasks
from maxbrod.backup.proof import Proved, plan_mending, prove_mended, prove_unread
from maxbrod.backup.report import BackupReport, clock_behind, held_back, never_still, not_captured, stopped
from maxbrod.backup.run_state import BackupRun, BackupState, QuietRun, quiet_run
from maxbrod.backup.schemas import SchemaCapture
from maxbrod.backup.truncation import apply_truncation
from maxbrod.backup.waves import advance_generations, read_waves, run_tasks, without_erased
from maxbrod.config import Config, KafkaConfig, StorageConfig, config_with
from maxbrod.errors import EXIT_FAILED, MaxbrodError, RefusedError, StorageFullError, UnavailableError
from maxbrod.kafka.produce.transactions import open_transactions
from maxbrod.kafka.state.cluster_state import ClusterState
from maxbrod.layouts.kafka.format import Compression
from maxbrod.model import MENDABLE, PartitionId, now_ms
from maxbrod.notices import worst_exit_code
from maxbrod.work.jobs import ON_SPARK
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.report import about
from maxbrod.work.session import Session
from maxbrod.work.work import Means

if TYPE_CHECKING:
    from maxbrod.keywords import BackupKeywords

_ROUNDS_MAX: Final = 3
"""A topic that is recreated, or truncated, while it is read is planned again in the same run, this often at most."""


class Backup(BackupBase):
    """A backup into an archive of our own layout."""

    def __init__(self, config: Config, *, take_part: Callable[[], Part] | None = None, **means: Unpack[Means]) -> None:
        """`take_part`, if there may be several writers: what this one backs up in the next run."""
        super().__init__(config, **means)
        # Refuses an invalid pattern or compression.
        select_topics({}, self.request.topics, self.request.exclude, internal=True)
        Compression.parse(self.request.compression)
        self._state = BackupState()
        self._commits = Commits(
            self._state,
            self.archive_url,
            look_again=self._look_again,
            on_progress=self.on_progress,
            take_part=take_part,
        )
        self._narrowing = PartOfTopics()
        self._opened: Archive | None = None
        self._last: Archive | None = None
        """As it was opened last, also if it has to be read again."""
        self._policy = policy_of(self.request)
        self._schemas = SchemaCapture(config)
        self._observations = Observations()
        self._observed: Observed | None = None
        """By the first round of the run, if there was only one."""
        self._quiet: QuietRun | None = None
        """The last run, if this one has observed the same."""

    def run(self, *, demand_topics: bool = True, waiting: RollSchedule | None = None) -> BackupReport:
        """Bring the archive up to date, except for partitions that `waiting` defers.

        UsageError if a named topic does not exist, unless `demand_topics` is false. After an error the next run reads
        the catalog again.
        """
        self._state.run = BackupRun()
        try:
            if self._commits.begin_part():
                self._opened = self._quiet = None
                self._observations.clear()
                self._state.known = ArchiveState()
            return self._run_rounds(demand_topics=demand_topics, waiting=waiting)
        except BaseException as error:
            archive = self._opened
            self._forget(error)
            if isinstance(error, UnavailableError) and self.is_stopped():
                # The run was waiting for something when the stop came, and gave up waiting.
                self._state.run = self._state.run.without_uncommitted().with_notices([stopped()])
                return self._state.run.report(self.archive_url, -1, self.recovery_point_ms)
            if isinstance(error, RefusedError) and archive is not None and self._commits.is_overtaken(archive, error):
                raise dropped(archive, error) from error
            raise
        finally:
            self.put_off = self._state.run.deferred
            self.lags = self._state.run.lags() if self._quiet is None else self._quiet.lags

    def _run_rounds(self, *, demand_topics: bool, waiting: RollSchedule | None) -> BackupReport:
        """One round for all chosen topics, and further ones for topics that changed while they were read."""
        self.tell("planning")
        seen: list[tuple[ClusterState, ChosenTopics]] = []

        def look_first() -> None:
            """A cluster that does not answer, a missing topic, or executors that fail leave no archive behind."""
            seen.append(self.look(demand=demand_topics))
            self._try_executors(seen[0][1])

        archive = self._archive(look_first)
        if self._commits.part is not None:
            own_catalog(archive).claim = self._commits.part.claim
        self._state.note(*clock_behind(self._state.known.newest_run, self._state.run.started_at_ms))
        cluster, chosen = seen[0] if seen else self.look(demand=demand_topics)
        compacted = {topic.topic_id for topic in cluster.topics if topic.compacted}
        self._state.known = replace(self._state.known, compacted=self._state.known.compacted | compacted)
        again: frozenset[str] | None = None
        for _ in range(_ROUNDS_MAX):
            if again is not None:
                chosen = self.choose(demand=False, cluster=cluster)
            others: frozenset[PartitionId] = frozenset()
            if self._commits.part is not None:
                chosen, others = self._narrowing.narrow(chosen, self._commits.part)
            if again is None:
                self._state.run = replace(self._state.run, present=chosen.present, others=others)
                again = self._round(archive, chosen, waiting)
                self._mend(archive)
            else:
                topics = {name: topic for name, topic in chosen.topics.items() if name in again}
                again = self._round(archive, replace(chosen, topics=topics, notices=()), None)
            if not again or self._state.run.interrupted:
                break
            self._commits.commit(archive)
        else:
            self._state.note(*map(never_still, sorted(again or ())))
        if self._policy is not None and not self._state.run.interrupted:
            advance_generations(self, self._commits, archive, cluster, self._policy)
        return self._finish(archive, cluster)

    def _round(self, archive: Archive, chosen: ChosenTopics, waiting: RollSchedule | None) -> frozenset[str]:
        """Observe, plan, read, prove and commit the chosen topics; the last wave is left to the caller to commit.

        Returns the topics to plan again.
        """
        observed = observe(
            self.client,
            archive.catalog,
            chosen,
            held=self._state.known.held,
            compacted=self._state.known.compacted,
            start=self.start,
            patience_s=self.config.patience,
            earlier=self._observations,
        )
        self._state.note(*observed.notices)
        self._observed = observed if not self._state.run.planned else None
        self.observed = self._observed or self.observed
        if self._quiet is not None and observed is self._quiet.observed:
            self._state.run = self._quiet.again(self._state.run)
            return frozenset()
        self._quiet = None
        appeared = self._state.known.appeared(observed.states, divided=bool(self._state.run.others))
        plans = plan_partitions(
            observed.states, self.start, appeared=appeared, offsets_for_time=observed.offsets_for_time
        )
        # Some begin elsewhere than requested.
        self._state.note(*(about(plan.state.where, "start", plan.note) for plan in plans.values() if plan.note))
        self._apply_truncations(archive, plans)
        self._state.known = self._state.known.with_partitions(plans)
        self._state.run = self._state.run.with_plans(observed, plans, self._state.known.ends)
        due = self._defer(plans, waiting)
        self._note_open_transactions(due)
        self._state.accept(prove_unread(due, self._state.known.held, run_id=self._state.run.run_id))
        waves = plan_tasks(
            [plan.range for plan in due if not plan.idle],
            parallelism=self.pool.parallelism,
            wave_bytes=self.request.commit_bytes,
        )
        again: set[str] = set()

        def accept(proved: Proved) -> frozenset[PartitionId]:
            self._state.accept(proved)
            again.update(proved.again)
            return proved.stopped

        planned = self._state.run.plans
        read_waves(self, self._commits, archive, waves, planned, lambda: self._state.known.held, accept, halts=True)
        return frozenset(again)

    # Planning

    def _try_executors(self, chosen: ChosenTopics) -> None:
        """Test the workers of a Spark cluster, which may fail, before the first run creates the archive."""
        if chosen.topics:
            self.pool.try_cluster()

    def _look_again(self) -> tuple[ClusterState, frozenset[str]]:
        """Return the cluster as it is now, and the ids of all its topics."""
        return self.capture(), self.choose(demand=False).present

    def _archive(self, before_creating: Callable[[], object]) -> Archive:
        if self._opened is None:
            options = self.config.storage
            if self._last is not None:
                # Not created again: what has vanished may come back, and what was archived is not archived now.
                own_catalog(self._last).demand_presence()
            opened = open_for_writing(
                self.archive_url,
                options,
                single_writer=self.request.single_writer,
                before_creating=before_creating,
            )
            self._state.known = read_archive_state(opened, before=self._state.known)
            self._state.generations = KnownGenerations() if self._policy is None else read_generations(opened)
            self._opened = self._last = opened
            if self.recovery_point_ms is None and not self._state.known.partial:
                self.recovery_point_ms = oldest(self._state.known.recovery_points_of(self._choose_names))
        return self._opened

    def _forget(self, error: BaseException) -> None:
        """`_known` may be ahead of the catalog by uncommitted rows, or behind a commit whose answer was lost."""
        self._opened = self._quiet = self._captured = None
        self._observations.clear()
        if isinstance(error, UnavailableError) and error.operation == ON_SPARK:
            # Its JVM may have died.
            self.pool.close()

    def _choose_names(self, names: Mapping[str, bool]) -> tuple[str, ...]:
        return select_topics(names, self.request.topics, self.request.exclude, internal=self.request.internal).chosen

    def _apply_truncations(self, archive: Archive, plans: Plans) -> None:
        """Replace rows of logs that were cut. This must come before reading: new rows begin where the old ones end."""
        state, cuts = self._state, {}
        for partition, plan in plans.items():
            if plan.truncated_at is not None:
                cut = cuts[partition] = apply_truncation(archive, plan, plan.truncated_at, run_id=state.run.run_id)
                state.run = replace(state.run, committed=state.run.committed or cut.superseded is None)
        if not cuts:
            return
        state.known = replace(
            state.known.with_held({partition: cut.held for partition, cut in cuts.items()}),
            revisions=archive.catalog.revisions(),
            mendable=tuple(archive.catalog.gaps(MENDABLE)),
        )
        superseded = {partition: cut.superseded for partition, cut in cuts.items() if cut.superseded is not None}
        state.run = replace(state.run, superseded={**state.run.superseded, **superseded})
        state.note(*(cut.notice for cut in cuts.values()))

    def _defer(self, plans: Plans, waiting: RollSchedule | None) -> list[PartitionBackup]:
        """The plans to carry out now; the others wait until more has been written."""
        state = self._state
        if waiting is None:
            return list(plans.values())
        # A new generation becomes active when the archive reaches the end of all partitions of its topic.
        urgent = state.generations.caught_up()
        may_wait = [plan for plan in plans.values() if plan.state.topic_id not in urgent]
        due, deferred = waiting.choose(may_wait, now_ms=state.run.started_at_ms)
        state.run = replace(state.run, deferred=state.run.deferred | {plan.state.id for plan in deferred})
        return [*due, *(plan for plan in plans.values() if plan.state.topic_id in urgent)]

    def _note_open_transactions(self, plans: Sequence[PartitionBackup]) -> None:
        """Open transactions hold the last stable offset back: name them, because the archive waits for them.

        Records beyond the last stable offset without an open transaction were only written since.
        """
        waiting = {plan.state.where: plan.state for plan in plans if plan.state.end < plan.state.high_watermark}
        found = open_transactions(self.client, sorted(waiting)) if waiting else {}
        open_by_partition = {where: found[where] for where in sorted(waiting) if found.get(where)}
        since = {
            waiting[where].id: oldest(transaction.started_at_ms for transaction in transactions)
            for where, transactions in open_by_partition.items()
        }
        self._state.run = replace(self._state.run, held_since_ms={**self._state.run.held_since_ms, **since})
        self._state.note(
            *(
                held_back(waiting[where], transaction, now_ms=now_ms())
                for where, transactions in open_by_partition.items()
                for transaction in transactions
            )
        )

    # Reading and proving

    def _mend(self, archive: Archive) -> None:
        """Read offsets again that were damaged or unexplained in earlier runs: another replica may lead today."""
        state, run = self._state, self._state.run
        retries = plan_mending(state.known.mendable, run.plans)
        if run.interrupted:
            state.run = replace(run, suspect=run.suspect.union(retry.partition for retry in retries))
            return
        waves = plan_tasks([retry.range for retry in retries], parallelism=self.pool.parallelism)
        total = sum(task.bytes_estimate for wave in waves for task in wave)
        ends = state.known.ends
        outcomes = [
            outcome
            for wave in waves
            for outcome in run_tasks(self, run.run_id, without_erased(archive, ends, wave), total)
        ]
        state.accept(prove_mended(outcomes, retries, run.plans, run_id=run.run_id))

    def _finish(self, archive: Archive, cluster: ClusterState) -> BackupReport:
        state = self._state
        if state.run.interrupted:
            state.note(stopped())
        state.note(*not_captured(cluster, state.run.notices))
        part = self._commits.part
        # Of several writers, one captures the registry.
        mine = (part is None or part.leads) and not state.run.interrupted
        schemas = mine and self._schemas.run(archive, state, every_s=self.state_every_s)
        quiet, news = self._quiet, self._has_news(archive, cluster) or schemas
        if not news:
            # Nothing will be written, which would fail if the archive were gone: "complete" is about what it holds.
            own_catalog(archive).demand_presence()
        if quiet is not None and not worst_exit_code(state.run.notices) and not news:
            points = quiet.recovery_points(state.run)
            self._move_on(points, state.run.started_at_ms)
            return quiet.report(state.run, archive.catalog.version)
        self._quiet = None
        before = self._commits.points_before()
        reaches = state.run.reaches()
        if news or state.run.behind(state.known.behind, reaches).keys() != state.known.behind.keys():
            try:
                before = self._commits.record_on_newest(archive, cluster)
            except MaxbrodError as error:
                # A report that says already that the archive cannot be written says more than the error.
                failed = worst_exit_code(state.run.notices) == EXIT_FAILED
                if news and not (failed and isinstance(error, StorageFullError | UnavailableError)):
                    raise
                self._forget(error)
                state.run = state.run.without_uncommitted()
            reaches = state.run.reaches()
        points = state.run.recovery_points(before, reaches)
        self._move_on(points, state.run.recovery_point(points))
        report = state.run.report(self.archive_url, archive.catalog.version, self.recovery_point_ms)
        if self._observed is not None and self._policy is None and not state.known.mendable:
            self._quiet = quiet_run(self._observed, state.run, report, reaches, points)
        return report

    def _move_on(self, points: Mapping[PartitionId, int | None], point: int | None) -> None:
        self.recovery_point_ms = point
        at_ms = self._state.run.started_at_ms
        self._state.known = replace(self._state.known, recovery_points=points, confirmed_at_ms=at_ms)

    def _has_news(self, archive: Archive, cluster: ClusterState) -> bool:
        """A run in which nothing changed writes nothing to the archive."""
        state, run, part = self._state, self._state.run, self._commits.part
        known = state.known.knowledge
        if run.rows or run.superseded or run.committed or state.known.unrecorded or state.generations.pending:
            return True
        if known is None:
            return True
        # One of several writers records changes of the cluster alone.
        changed = cluster is not known.cluster
        changed = changed and replace(cluster, taken_at_ms=known.cluster.taken_at_ms) != known.cluster
        changed = changed or run.partial != state.known.partial
        return (changed and (part is None or part.leads)) or self._commits.are_points_outdated(archive)


def backup(
    *,
    bootstrap: str | None = None,
    archive: str | Path | None = None,
    config: Config | Path | str | None = None,
    kafka: KafkaConfig | Mapping[str, str] | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    stop: threading.Event | None = None,
    **options: Unpack[BackupKeywords],
) -> BackupReport:
    """Bring an archive up to date, with one run.

    Args:
        bootstrap: `host:port`, several separated by commas.
        archive: a folder or a URL.
        config: a configuration, or the path of a configuration file. All other arguments override it.
        kafka: how to reach the cluster, or client properties of Kafka's own tools.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use. It stays open.
        on_progress: called with each step.
        stop: when set, the run ends at its next commit.
        options: the options of `maxbrod backup`, such as `topics` or `compression`; docs/reference has them all.

    Returns:
        The report. Check `.complete`: partitions that could not be read are reported there, not raised.

    Raises:
        MaxbrodError: nothing could be done; `maxbrod.errors` has the kinds.
    """
    whole = config_with(config, "backup", options, archive=archive, bootstrap=bootstrap, kafka=kafka, storage=storage)
    with Backup(whole, session=session, on_progress=on_progress, stop=stop) as work:
        return work.run()
