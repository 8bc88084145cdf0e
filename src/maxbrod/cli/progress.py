"""A progress bar on a terminal, and nothing in a pipe."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from maxbrod.cli.output import err, human_bytes
from maxbrod.engine.progress import silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.engine.progress import OnProgress, Progress

_MEASURED: Final = frozenset({"reading", "restoring", "comparing"})


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[OnProgress]:
    """What to call with each step. The bar is gone when the block ends: what stays is the summary."""
    if not shown or not err.is_terminal:
        yield silent
        return
    with Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
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
        self._task = bar.add_task("", total=None, told="")
        self._reading_since: float | None = None

    def __call__(self, step: Progress) -> None:
        if step.phase not in _MEASURED:
            self._reading_since = None
            self._bar.update(self._task, description=step.phase, told="")
            return
        if self._reading_since is None or not step.bytes_done:
            # Spark starts when the first task is there to run, and its start is not what reading takes.
            self._reading_since = time.monotonic()
        told = describe(step, time.monotonic() - self._reading_since)
        done, total = step.bytes_done, step.bytes_total or None
        self._bar.update(self._task, description=step.phase, completed=done, total=total, told=told)


def describe(step: Progress, took_s: float) -> str:
    """Bytes, records, rate, and the time that is left if it goes on like this."""
    words = [f"{human_bytes(step.bytes_done)} of {human_bytes(step.bytes_total)}"]
    if step.records_done:
        words.append(f"{step.records_done:,} records")
    if step.bytes_done and took_s > 0:
        rate = step.bytes_done / took_s
        left_s = round(max(step.bytes_total - step.bytes_done, 0) / rate)
        words += [f"{human_bytes(rate)}/s", f"{timedelta(seconds=left_s)} left"]
    return ", ".join(words)
