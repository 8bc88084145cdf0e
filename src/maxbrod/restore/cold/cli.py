"""`maxbrod restore --to-logdir`: writes the archive's logs directly to the disks of stopped brokers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from rich.text import Text

from maxbrod.cli.log import showing_log
from maxbrod.cli.output import err, out, print_json, print_line
from maxbrod.cli.progress import progress_bar
from maxbrod.cli.signals import stopping_by_signals
from maxbrod.errors import EXIT_DONE
from maxbrod.restore.cold.plan import parse_leader_epochs
from maxbrod.restore.cold.run import ColdRestore
from maxbrod.restore.summary import (
    decide,
    gaps_in,
    print_failures,
    print_gaps,
    print_known_from,
    print_left_out,
    print_retention,
    print_topics,
)
from maxbrod.text import counted, human_bytes

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.restore.cold.run import ColdReport
    from maxbrod.restore.options import RestoreOptions
    from maxbrod.restore.plan.request import RestoreRequest

_MEANWHILE: Final = "the directories stay unchanged"


def restore_logdirs(
    settings: Config, request: RestoreRequest, options: RestoreOptions, *, quiet: bool, as_json: bool
) -> int:
    """Return the exit code."""
    stop = threading.Event()
    with showing_log(quiet=quiet):
        with progress_bar(shown=not quiet) as on_progress:
            work = ColdRestore(
                settings,
                request,
                options.to_logdir,
                leader_epochs=parse_leader_epochs(options.leader_epochs),
                on_progress=on_progress,
                stop=stop,
            )
            plan = work.plan()
        code = decide(plan, dry_run=options.dry_run, yes=options.yes, quiet=quiet, as_json=as_json)
        if code is not None:
            return code
        with progress_bar(shown=not quiet) as on_progress, stopping_by_signals(stop, what=_MEANWHILE):
            work.on_progress = on_progress
            report = work.run(plan)
    _show(report, quiet=quiet, as_json=as_json)
    return report.exit_code


def _show(report: ColdReport, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json(report.as_dict())
        return
    print_failures(report.restore, err if quiet else out)
    restored = report.restore
    if quiet:
        print_retention(restored.retention, err)
        return
    if restored.exit_code == EXIT_DONE:
        print_topics(restored)
    print_gaps(restored)
    took_s = max((restored.finished_at_ms - restored.started_at_ms) / 1000, 0.001)
    resumed = ", resumed" if restored.resumed else ""
    print_line(
        f"{counted(restored.records, 'record')}, {counted(report.segments, 'segment')}, {human_bytes(report.bytes)} of "
        f"log, {took_s:,.1f} s; restore {restored.restore_id}{resumed}"
    )
    if report.batches_lowered:
        print_line(f"batches with a lower leader epoch than before: {report.batches_lowered:,}")
    print_known_from(restored.known_from)
    print_left_out(restored.left_out)
    print_retention(restored.retention, out)
    out.print(_verdict(report), soft_wrap=True)


def _verdict(report: ColdReport) -> Text:
    if report.exit_code != EXIT_DONE:
        return Text.assemble(("not complete", "bold red"), "; the directories are unchanged")
    groups = f"then groups: maxbrod groups apply --restore {report.restore.restore_id}" if report.remembered else ""
    if not report.complete:
        what = f": restored {gaps_in(report.restore)}; start the brokers; {groups}"
        return Text.assemble(("incomplete", "bold yellow"), what.rstrip("; "))
    return Text.assemble(("complete", "bold green"), f": start the brokers; {groups}".rstrip("; "))
