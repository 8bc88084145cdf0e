"""Runs jobs at their times until it is stopped: the loop around the pure plan.

One thread decides, and each run has a thread of its own, so that a job that fails or hangs stops no other. A slot is
taken in the archive before its run begins. A job that follows is started again when it ends, later each time.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from maxbrod.cli.health import notify, serving, watched_by_systemd
from maxbrod.cli.metrics import check_writable, write_textfile
from maxbrod.errors import MaxbrodError, RefusedError, UsageError
from maxbrod.model import now_ms
from maxbrod.schedule.health import JobsCollector, ScheduleHealth, registry_of
from maxbrod.schedule.jobs import ScheduledJob, read_jobs
from maxbrod.schedule.notifier import Notifier
from maxbrod.schedule.plan import DueRun, KnownJob, next_start_ms, plan_runs
from maxbrod.schedule.report import ScheduleReport, list_jobs
from maxbrod.schedule.runs import JobRun
from maxbrod.schedule.state import JobOutcome, JobState, ScheduleLease, ScheduleState, read_state
from maxbrod.storage.stores import open_storage, probe_conditional_puts
from maxbrod.text import human_time
from maxbrod.work.intervals import pause_after
from maxbrod.work.shared_session import SharedSession, lending

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.work.work import Work

_LOG: Final = logging.getLogger(__name__)
_TICK_S: Final = 0.5
_RESTART_S: Final = 2.0
_RESTART_MAX_S: Final = 300.0
_STEADY_S: Final = 600.0
"""A job that has followed for so long and ends is started again at once, as if it had never ended before."""
_STANDBY_S: Final = 2.0
_PING_EVERY_S: Final = 60.0

OnRun = Callable[[ScheduledJob, JobOutcome], None]


@dataclass(frozen=True, slots=True)
class Reload:
    """Asks the loop to read the configuration again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    run: JobRun
    outcome: JobOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalEnded:
    run: JobRun
    outcome: JobOutcome


def list_schedule(work: Work) -> ScheduleReport:
    """Return the jobs of the configuration, with what the archive knows of each. Changes nothing."""
    jobs = read_jobs(work.config)
    url = work.config.archive_url
    state = read_state(open_storage(url, work.config.storage))
    return list_jobs(url, jobs, state, now_ms=now_ms())


def run_once(work: Work, job: ScheduledJob) -> JobOutcome:
    """Run a job now and return how it ended. It takes no slot, and the archive's schedule is not changed."""
    ended: queue.Queue[JobOutcome] = queue.Queue()
    with ExitStack() as undo:
        undo.enter_context(lending(SharedSession(idle_s=0)))
        notifier = undo.enter_context(Notifier(work.config))
        run = JobRun(job, slot_ms=None, on_end=lambda _, outcome: ended.put(outcome))
        notifier.begun(job)
        run.start()
        while not run.join(_TICK_S):
            if work.is_stopped():
                run.stop()
        outcome = notifier.masked(ended.get())
        notifier.ended(job, outcome)
    return outcome


def run_jobs(
    work: Work,
    *,
    reload: Callable[[], Config],
    inbox: queue.Queue[object],
    on_run: OnRun,
    on_serving: Callable[[int], None] = lambda _: None,
) -> ScheduleReport:
    """Run the jobs of the configuration until `work` is stopped.

    Args:
        work: its configuration and its stop.
        reload: reads the configuration again. It raises what is wrong with it.
        inbox: put a `Reload` into it to ask for that.
        on_run: called at the end of each run.
        on_serving: called with the port on which metrics and health are served, if they are.
    """
    if not read_jobs(work.config):
        raise UsageError("the configuration has no jobs", hint="add a section 'jobs'; see 'maxbrod help schedule'")
    options = work.config.run
    storage = open_storage(work.config.archive_url, work.config.storage)
    if not options.single_writer and not probe_conditional_puts(storage):
        raise RefusedError(
            "the store ignores conditional puts: two schedulers could run the same job at once",
            object_name=storage.url,
            hint="use another store, or make sure that one scheduler runs and pass --single-writer",
        )
    if options.metrics_file is not None:
        check_writable(options.metrics_file)
    lease = ScheduleLease(storage, takeover_s=options.takeover)
    with ExitStack() as undo:
        shared = SharedSession(idle_s=options.idle)
        undo.enter_context(lending(shared))
        notifier = undo.enter_context(Notifier(work.config))
        scheduler = Scheduler(work, lease, notifier, shared, inbox, reload=reload, on_run=on_run)
        if options.metrics_port is not None:
            serve = serving(
                scheduler.registry, scheduler.health, options.metrics_port, options.metrics_host, options.metrics_names
            )
            on_serving(undo.enter_context(serve))
        undo.enter_context(watched_by_systemd(scheduler.health))
        scheduler.run()
    return list_jobs(work.config.archive_url, scheduler.jobs.values(), scheduler.state, now_ms=now_ms())


class Scheduler:
    """The loop. One thread calls it; runs talk to it through the inbox."""

    def __init__(
        self,
        work: Work,
        lease: ScheduleLease,
        notifier: Notifier,
        shared: SharedSession,
        inbox: queue.Queue[object],
        *,
        reload: Callable[[], Config],
        on_run: OnRun,
    ) -> None:
        self._work, self._lease, self._notifier, self._shared = work, lease, notifier, shared
        self._config = work.config
        self._inbox, self._reload, self._on_run = inbox, reload, on_run
        self.jobs: dict[str, ScheduledJob] = {job.name: job for job in read_jobs(work.config)}
        self.state = ScheduleState()
        self._leads = False
        self._started_ms = now_ms()
        self._runs: dict[str, JobRun] = {}
        self._ends: dict[str, int] = {}
        """For each job that follows, how often it has ended in a row."""
        self._not_before: dict[str, float] = {}
        self._pinged: dict[str, float] = {}
        self._waiting: Mapping[str, str] = {}
        self._file_problem: str | None = None
        self._told = ""
        """What was last logged about the archive that cannot be used."""
        self._looked_at = -_STANDBY_S
        deadline_s = work.config.storage.deadline_s
        self.health = ScheduleHealth(loop_s=2 * deadline_s + 60)
        self.registry = registry_of(JobsCollector(self._figures))

    def run(self) -> None:
        """Loop until the work is stopped; then stop all runs, wait for them, and give the lease back."""
        while not self._work.is_stopped():
            self.health.beat()
            try:
                self._tick()
                self._told = ""
            except MaxbrodError as error:
                # The store may answer again. Until then nothing begins: a slot could not be taken.
                problem = f"the archive cannot be used: {error}"
                if self._told != problem:
                    _LOG.error("nothing can begin: %s", problem)
                self._told = problem
                self._tell_health(problem)
            self._take_in(_TICK_S)
        self._end()

    def _tick(self) -> None:
        if self._hold():
            self._follow()
            self._begin()
            self._tell_people()
        self._shared.close_if_idle()
        self._tell_health()

    def _hold(self) -> bool:
        """True if this scheduler looks after the archive: take the lease if it is free, renew it if it is due."""
        if self._leads and self._lease.due and not self._save():
            return False
        if self._leads:
            return True
        if time.monotonic() - self._looked_at < min(_STANDBY_S, self._lease_pause_s()):
            return False
        self._looked_at = time.monotonic()
        found = self._lease.take()
        if found is None:
            return False
        now = now_ms()
        # What this scheduler knows is newer than what it could write. Another one's runs have ended with it.
        mine = found.instance == self._lease.instance
        known = self.state.jobs if mine else {name: state.interrupted() for name, state in found.jobs.items()}
        self._started_ms = now
        self.state = replace(found, started_ms=now, jobs=self._adopt(known, now))
        self._leads = True
        if self._save():
            _LOG.info("%s: looking after %d jobs", self._lease.instance, len(self.jobs))
        return self._leads

    def _lease_pause_s(self) -> float:
        return self._config.run.takeover / 4

    def _adopt(self, known: Mapping[str, JobState], now: int) -> dict[str, JobState]:
        """The states of the jobs of the configuration. What is known of a job that is gone, goes."""
        adopted = {}
        for name, job in self.jobs.items():
            before = known.get(name) or JobState(verb=job.verb, since_ms=now)
            # Another schedule is another set of slots: those before now were none of it.
            since_ms = before.since_ms if before.when in {"", job.when} else now
            slot_ms = before.slot_ms if before.when in {"", job.when} else None
            adopted[name] = replace(
                before, verb=job.verb, follows=job.follows, when=job.when, since_ms=since_ms, slot_ms=slot_ms
            )
        return adopted

    def _save(self) -> bool:
        """Write the state. False: another scheduler has taken over, and all runs are told to stop."""
        now = now_ms()
        jobs = {name: replace(state, next_ms=self._next_ms(name, now)) for name, state in self.state.jobs.items()}
        self.state = replace(self.state, jobs=jobs)
        if self._lease.save(self.state):
            return True
        self._leads = False
        _LOG.error("another scheduler looks after the archive now: all jobs here are stopped")
        for run in self._runs.values():
            run.stop()
        return False

    def _next_ms(self, name: str, now: int) -> int | None:
        job = self.jobs[name]
        if not job.enabled:
            return None
        return next_start_ms(job.times, self._known(name), now_ms=now, started_ms=self._started_ms)

    def _known(self, name: str) -> KnownJob:
        state = self.state.jobs[name]
        return KnownJob(since_ms=state.since_ms, slot_ms=state.slot_ms)

    def _begin(self) -> None:
        """Begin what is due. The slots of all are taken first, in one write."""
        enabled = [job.times for job in self.jobs.values() if job.enabled]
        now = now_ms()
        plan = plan_runs(
            enabled,
            {times.name: self._known(times.name) for times in enabled},
            self._runs,
            now_ms=now,
            started_ms=self._started_ms,
            parallel=self._config.run.parallel,
        )
        for name in plan.clock_wrong:
            _LOG.error("the job %s took a slot in the future: the clock was wrong; it goes on from now", name)
            self._change(name, slot_ms=now, since_ms=now)
        for name, why in plan.waiting.items():
            if self._waiting.get(name) != why:
                _LOG.info("the job %s is due and waits: %s", name, why)
        self._waiting = plan.waiting
        if not plan.begin:
            return
        before = self.state
        for due in plan.begin:
            self._change(due.job, slot_ms=due.slot_ms, running_since_ms=now)
        try:
            taken = self._save()
        except MaxbrodError:
            # Whether it was written is unknown. None of these runs has begun, so their slots are not taken.
            self.state, self._leads = before, False
            raise
        if taken:
            for due in plan.begin:
                self._start(self.jobs[due.job], due)

    def _follow(self) -> None:
        """Start the jobs that follow, and those again that have ended."""
        for job in self.jobs.values():
            due = job.enabled and job.follows and job.name not in self._runs
            if due and time.monotonic() >= self._not_before.get(job.name, 0.0):
                self._change(job.name, running_since_ms=now_ms())
                self._start(job, None)

    def _start(self, job: ScheduledJob, due: DueRun | None) -> None:
        late = ", for slots that were missed" if due is not None and due.missed else ""
        slot = "" if due is None else f" for {human_time(due.slot_ms)}"
        _LOG.info("the job %s begins%s%s", job.name, slot, late)
        run = JobRun(
            job,
            slot_ms=None if due is None else due.slot_ms,
            on_end=lambda run, outcome: self._inbox.put(RunEnded(run=run, outcome=outcome)),
            on_interval=lambda run, outcome: self._inbox.put(IntervalEnded(run=run, outcome=outcome)),
        )
        self._runs[job.name] = run
        self._notifier.begun(job)
        run.start()

    def _take_in(self, seconds: float) -> None:
        """Wait for the next event, and take in all that have come."""
        try:
            event = self._inbox.get(timeout=seconds)
            while True:
                self._take(event)
                event = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _take(self, event: object) -> None:
        match event:
            case RunEnded(run=run, outcome=outcome):
                self._ended(run, self._notifier.masked(outcome))
            case IntervalEnded(run=run, outcome=outcome):
                self._interval(run, self._notifier.masked(outcome))
            case Reload():
                self._read_again()

    def _ended(self, run: JobRun, outcome: JobOutcome) -> None:
        name, job = run.job.name, run.job
        if self._runs.get(name) is run:
            del self._runs[name]
        if name in self.state.jobs:
            self._set(name, self.state.jobs[name].ended(outcome))
        if job.follows and not run.stopping:
            steady = time.monotonic() - run.began_at >= _STEADY_S
            ends = self._ends[name] = 1 if steady else self._ends.get(name, 0) + 1
            pause_s = pause_after(ends + 1, _RESTART_S, _RESTART_MAX_S)
            self._not_before[name] = time.monotonic() + pause_s
            _LOG.warning("the job %s follows and has ended: it is started again in %.0f s", name, pause_s)
        why = "" if outcome.error is None else f": {outcome.error}"
        level = logging.INFO if outcome.good or outcome.stopped else logging.ERROR
        _LOG.log(level, "the job %s has ended: %s, exit code %d%s", name, outcome.verdict, outcome.exit_code, why)
        self._notifier.ended(job, outcome)
        self._on_run(job, outcome)
        self._keep()

    def _interval(self, run: JobRun, outcome: JobOutcome) -> None:
        name = run.job.name
        if name not in self.state.jobs or run.stopping:
            return
        before = self.state.jobs[name]
        self._set(name, replace(before.ended(outcome), running_since_ms=before.running_since_ms))
        changed = before.last is None or before.last.exit_code != outcome.exit_code
        # A dead man's switch wants to hear again and again that all is well, but not each second.
        if changed or time.monotonic() - self._pinged.get(name, 0.0) >= _PING_EVERY_S:
            self._pinged[name] = time.monotonic()
            self._notifier.ended(run.job, outcome)
        if changed:
            self._keep()

    def _keep(self) -> None:
        """Write what has changed now. If the store does not answer, the next renewal does it."""
        if not self._leads:
            return
        try:
            self._save()
        except MaxbrodError as error:
            _LOG.warning("the schedule's state could not be written: %s", error)
        if self._config.run.metrics_file is not None:
            write_textfile(self._config.run.metrics_file, self.registry)

    def _read_again(self) -> None:
        """Read the configuration again. If it is wrong, the old one stays in force, and everybody is told."""
        stamp = time.monotonic_ns() // 1000
        notify(f"RELOADING=1\nMONOTONIC_USEC={stamp}")
        try:
            config = self._reload()
            jobs = {job.name: job for job in read_jobs(config)}
            self._refuse_other_place(config)
            self._notifier.reload(config)
        except MaxbrodError as error:
            self._file_problem = f"the configuration is wrong, and the old one stays in force: {error}"
            _LOG.error("%s", self._file_problem)
        else:
            self._file_problem = None
            self._config = config
            changed = [name for name, job in self.jobs.items() if jobs.get(name) != job]
            self.jobs = jobs
            self.state = replace(self.state, jobs=self._adopt(self.state.jobs, now_ms()))
            # What follows by other options than the new ones is started again; a run at its time ends as it began.
            for name in changed:
                if (run := self._runs.get(name)) is not None and run.job.follows:
                    run.stop()
                self._not_before.pop(name, None)
            _LOG.warning("the configuration was read again: %d jobs, %d changed or gone", len(jobs), len(changed))
            self._keep()
        notify("READY=1")
        self._tell_health()

    def _refuse_other_place(self, config: Config) -> None:
        if config.archive_url != self._work.config.archive_url:
            raise UsageError("the archive is another one, and its schedule too", hint="restart 'maxbrod run'")

    def _tell_people(self) -> None:
        enabled = {name: state for name, state in self.state.jobs.items() if self.jobs[name].enabled}
        now = now_ms()
        if news := self._notifier.tell(enabled, now):
            for name, told in news.items():
                self._change(name, told=told, told_ms=None if told is None else now)
            self._keep()

    def _tell_health(self, problem: str | None = None) -> None:
        problems = [problem] if problem else []
        if not self._leads:
            holder = self._lease.holder
            problems.append(f"standing by: {holder} looks after the archive" if holder else "no lease yet")
        elif self._lease.doubtful:
            problems.append("the lease could not be renewed: another scheduler may have taken over")
        problems += [self._file_problem] if self._file_problem else []
        self.health.runs = tuple(self._runs.values())
        self.health.jobs = {
            name: state for name, state in self.state.jobs.items() if name in self.jobs and self.jobs[name].enabled
        }
        self.health.problems = tuple(problems)

    def _end(self) -> None:
        """Stop all runs in order and wait for them: each commits what it has. A second signal ends the process."""
        for run in self._runs.values():
            run.stop()
        while self._runs:
            self.health.beat()
            self._take_in(_TICK_S)
            if self._lease.due:
                self._keep()
        if self._leads:
            try:
                self._lease.release(self.state)
            except MaxbrodError as error:
                _LOG.warning("the lease could not be given back, and ends by itself: %s", error)

    def _figures(self) -> tuple[Mapping[str, JobState], bool, tuple[int, int, int]]:
        return self.state.jobs, self._leads, (*self._notifier.counts, self._shared.opened)

    def _set(self, name: str, state: JobState) -> None:
        self.state = replace(self.state, jobs={**self.state.jobs, name: state})

    def _change(self, name: str, **changes: object) -> None:
        self._set(name, replace(self.state.jobs[name], **changes))  # type: ignore[arg-type] # of its own fields
