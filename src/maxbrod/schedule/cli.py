"""`maxbrod run`: jobs of the configuration file at their times."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from maxbrod.board import Stop
from maxbrod.cli.commands import Call, call_of, command
from maxbrod.cli.log import showing_log
from maxbrod.cli.output import out as console
from maxbrod.cli.output import print_json_line, print_line, table
from maxbrod.cli.signals import stopping_by_signals
from maxbrod.cli.verbs import end
from maxbrod.errors import EXIT_DONE
from maxbrod.options import PLACE, ClusterOptions, JsonOption, QuietOption, SparkOptions, declared
from maxbrod.schedule.options import RunOptions
from maxbrod.text import counted, human_time

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.schedule.jobs import ScheduledJob
    from maxbrod.schedule.report import JobRunReport, ScheduleReport
    from maxbrod.schedule.state import JobOutcome
    from maxbrod.work.work import Work

_ENDING: Final = "jobs commit what they have first"
_FLAGS: Final = tuple(flag.name for flag in declared(RunOptions))


@command("run", RunOptions, before=(*PLACE, ClusterOptions), after=(SparkOptions, QuietOption, JsonOption))
def run(call: Call[RunOptions]) -> None:
    """Run the jobs of the configuration file at their times, in one process, until it is stopped.

    A job is a verb with its options and a cron expression or an interval; one that follows, such as 'backup --follow',
    runs all the time. A job that fails stops no other. Slots that were missed are caught up once, and no slot is taken
    twice, also after a restart: the state is in the archive. If several schedulers are started for one archive, one
    works, and another takes over if it is lost. SIGTERM ends it in order, SIGHUP reads the file again.

    For example:

      maxbrod run -c maxbrod.yaml --metrics-port 9464

      maxbrod run -c maxbrod.yaml --list

      maxbrod run -c maxbrod.yaml --once nightly --json
    """
    if call.options.list:
        _list(call)
    if call.options.once is not None:
        _once(call, call.options.once)
    _run(call)


def _list(call: Call[RunOptions]) -> NoReturn:
    from maxbrod.schedule.verb import list_schedule  # noqa: PLC0415 - not for `--help`

    with _work(call, Stop()) as work:
        report = list_schedule(work)
    end(call, report, _print_list)


def _once(call: Call[RunOptions], name: str) -> NoReturn:
    from maxbrod.schedule.jobs import find_job, read_jobs  # noqa: PLC0415 - as above
    from maxbrod.schedule.report import run_report  # noqa: PLC0415
    from maxbrod.schedule.verb import run_once  # noqa: PLC0415

    job = find_job(read_jobs(call.config), name)
    stop = Stop()
    with showing_log(quiet=call.quiet), stopping_by_signals(stop, what=_ENDING), _work(call, stop) as work:
        outcome = run_once(work, job)
    end(call, run_report(job, outcome), _print_run)


def _run(call: Call[RunOptions]) -> NoReturn:
    from maxbrod.schedule.verb import Reload, run_jobs  # noqa: PLC0415 - as above

    stop, inbox = Stop(), queue.Queue[object]()

    def reload() -> Config:
        # Flags stay over the file, as when it was read first.
        return call_of("run", _FLAGS, call.given, RunOptions).config

    with (
        showing_log(quiet=call.quiet),
        stopping_by_signals(stop, what=_ENDING, on_hangup=lambda: inbox.put(Reload())),
        _work(call, stop) as work,
    ):
        run_jobs(work, reload=reload, inbox=inbox, on_run=lambda job, outcome: _tell(call, job, outcome))
    raise typer.Exit(EXIT_DONE)


def _work(call: Call[Any], stop: Stop) -> Work:
    from maxbrod.work.work import Work  # noqa: PLC0415 - as above

    return Work(call.config, stop=stop)


def _tell(call: Call[RunOptions], job: ScheduledJob, outcome: JobOutcome) -> None:
    from maxbrod.schedule.report import run_report  # noqa: PLC0415 - as above

    report = run_report(job, outcome)
    if call.as_json:
        print_json_line(report.as_dict())
    elif not call.quiet or report.exit_code:
        _print_run(report, quiet=call.quiet)


def _print_run(report: JobRunReport, *, quiet: bool) -> None:
    if quiet and not report.exit_code:
        return
    took_s = (report.finished_ms - report.started_ms) / 1000
    why = "" if report.error is None else f": {report.error}"
    when = human_time(report.finished_ms)
    print_line(f"{when}  {report.job}: {report.verdict}, exit code {report.exit_code}, {took_s:,.1f} s{why}")
    if report.hint is not None and report.exit_code:
        print_line(f"  {report.hint}")


def _print_list(report: ScheduleReport, *, quiet: bool) -> None:
    del quiet
    shown = table("", "*job", "*verb", "*when", "next", "last", "")
    shown.title = None
    for job in report.jobs:
        upcoming = human_time(job.next_ms, to="minute") or ("now" if job.follows else "never")
        state = "running" if job.running_since_ms is not None else upcoming if job.enabled else "off"
        last = human_time(job.last_finished_ms, to="minute")
        shown.add_row(job.name, job.verb, job.when, state, last, job.last_verdict or "")
    console.print(shown)
    for job in report.jobs:
        if job.failures:
            print_line(f"{job.name}: {counted(job.failures, 'failure')} in a row: {job.last_error or job.last_verdict}")
    seen = human_time(report.scheduler_seen_ms)
    who = f"{report.scheduler}, seen {seen}" if report.scheduler else f"none{f' since {seen}' if seen else ''}"
    print_line(f"scheduler of {report.archive}: {who}")
