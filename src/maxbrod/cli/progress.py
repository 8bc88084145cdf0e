"""A progress bar on a terminal, and nothing in a pipe."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from maxbrod.cli.log import log_step
from maxbrod.cli.output import err
from maxbrod.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.work.progress import OnProgress, Progress

_MEASURED: Final = frozenset({"reading", "restoring", "comparing", "merging", "packing"})


_observers: list[OnProgress] = []


@contextmanager
def observing(observer: OnProgress) -> Iterator[None]:
    """Within the block, call `observer` with each step of every bar, shown or not."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[OnProgress]:
    """Yield a function to call with each step. The bar disappears when the block ends."""
    logged = _Logged()
    if not shown or not err.is_terminal:
        yield logged
        return
    with Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        # If standard output is a pipe, what is printed goes there, not to the terminal of the bar.
        redirect_stdout=sys.stdout.isatty(),
    ) as bar:
        yield _both(logged, _Steps(bar))


class _Logged:
    """Logs each phase when it begins, and calls those who observe."""

    def __init__(self) -> None:
        self._phase = ""

    def __call__(self, step: Progress) -> None:
        for observer in _observers:
            observer(step)
        if step.phase != self._phase:
            self._phase = step.phase
            log_step(step.phase)


def _both(first: OnProgress, second: OnProgress) -> OnProgress:
    def call(step: Progress) -> None:
        first(step)
        second(step)

    return call


class _Steps:
    """Updates the bar. Steps come from several threads, which rich allows."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, detail="")
        self._reading_since: float | None = None

    def __call__(self, step: Progress) -> None:
        if step.phase not in _MEASURED:
            self._reading_since = None
            self._bar.update(self._task, description=step.phase, detail="")
            return
        if self._reading_since is None or not step.bytes_done:
            # Spark starts with the first task, and its start must not count as reading time.
            self._reading_since = time.monotonic()
        detail = describe(step, time.monotonic() - self._reading_since)
        done, total = step.bytes_done, step.bytes_total or None
        self._bar.update(self._task, description=step.phase, completed=done, total=total, detail=detail)


def describe(step: Progress, took_s: float) -> str:
    """Bytes, records, rate, and the remaining time at this rate."""
    words = [f"{human_bytes(step.bytes_done)} of {human_bytes(step.bytes_total)}"]
    if step.records_done:
        words.append(f"{step.records_done:,} records")
    if step.bytes_done and took_s > 0:
        rate = step.bytes_done / took_s
        left_s = round(max(step.bytes_total - step.bytes_done, 0) / rate)
        words += [f"{human_bytes(rate)}/s", f"{timedelta(seconds=left_s)} left"]
    return ", ".join(words)
