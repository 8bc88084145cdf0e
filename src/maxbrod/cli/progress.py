"""A progress bar on a terminal, and nothing in a pipe."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    DownloadColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bar

from maxbrod.cli.output import err

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.api.progress import OnProgress, Progress


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[OnProgress]:
    """What to call with each step. The bar is gone when the block ends: what stays is the summary."""
    if not shown or not err.is_terminal:
        yield _ignore
        return
    with Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TextColumn("{task.fields[records]}"),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        # A pipe gets what is printed, not the terminal that standard error is.
        redirect_stdout=sys.stdout.isatty(),
    ) as bar:
        yield _Steps(bar)


class _Steps:
    """Moves the bar. Steps come from more than one thread, which rich allows."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, records="")

    def __call__(self, step: Progress) -> None:
        if not step.bytes_total:
            self._bar.reset(self._task, description=step.phase, total=None, records="")
            return
        self._bar.update(
            self._task,
            description=step.phase,
            completed=step.bytes_done,
            total=step.bytes_total or None,
            records=f"{step.records_done:,} records" if step.records_done else "",
        )


def _ignore(_step: Progress) -> None:
    """Nobody is there to look."""
