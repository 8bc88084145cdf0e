"""Runs the verb of a command: with a progress bar, stopped by signals, its report printed, its exit code returned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import typer

from maxbrod.board import Stop
from maxbrod.cli.commands import Call
from maxbrod.cli.log import showing_log
from maxbrod.cli.output import print_json, print_line
from maxbrod.cli.progress import progress_bar
from maxbrod.cli.signals import COMMITTING, ending_by_interrupt, stopping_by_signals
from maxbrod.cli.traces import trace_report

if TYPE_CHECKING:
    from maxbrod.storage.interface import HeldObject
    from maxbrod.work.progress import OnProgress
    from maxbrod.work.report import Report
    from maxbrod.work.work import Work


class Show(Protocol):
    """Prints a report for people. `quiet`: only what went wrong."""

    def __call__(self, report: Any, /, *, quiet: bool) -> None: ...  # noqa: ANN401 - of its own verb


def load(name: str) -> Any:  # noqa: ANN401 - any function
    """Return the function `module:name` of maxbrod. Arrow, Delta and Spark are loaded only now: not for `--help`."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"maxbrod.{module}"), attribute)


def run_verb(call: Call[Any], verb: str, show: Show, *, meanwhile: str = COMMITTING) -> NoReturn:
    """Run the verb `module:function`, a function of a `Work`, and end the command with its report."""
    with at_work(call, meanwhile=meanwhile) as work:
        report: Report = load(verb)(work)
    end(call, report, show)


@contextmanager
def at_work(call: Call[Any], *, meanwhile: str = COMMITTING) -> Iterator[Work]:
    """Yield the work of a call. A signal stops it; `meanwhile` says what is done before it ends."""
    stop = Stop()
    with (
        showing_log(quiet=call.quiet),
        stopping_by_signals(stop, what=meanwhile),
        progress_bar(shown=not call.silent) as on_progress,
    ):
        from maxbrod.work.work import Work  # noqa: PLC0415 - not for `--help`, and not before signals are heard

        with Work(call.config, on_progress=on_progress, stop=stop) as work:
            yield work


@contextmanager
def looking(call: Call[Any], phase: str = "reading the archive") -> Iterator[OnProgress]:
    """Yield whom to tell of progress. Ctrl-C ends the block and the process at once: nothing is left half done."""
    from maxbrod.work.progress import Progress  # noqa: PLC0415 - not for `--help`

    with ending_by_interrupt(), progress_bar(shown=not call.silent) as on_progress:
        on_progress(Progress(phase=phase))
        yield on_progress


def print_held(held: Sequence[HeldObject]) -> None:
    """Print what a verb wanted to delete and the store keeps, if there is anything."""
    for line in load("work.held:held_words")(held) if held else ():
        print_line(line)


def end(call: Call[Any], report: Report, show: Show) -> NoReturn:
    """Print the report as the call asks, and end the command with its exit code."""
    trace_report(report)
    if call.as_json:
        print_json(report.as_dict())
    else:
        show(report, quiet=call.quiet)
    raise typer.Exit(report.exit_code)
