"""A progress bar on a terminal, and nothing in a pipe."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from maxbrod.cli.log import log_step
from maxbrod.cli.output import err
from maxbrod.cli.supervised import supervisor
from maxbrod.text import counted, human_bytes

if TYPE_CHECKING:
    from maxbrod.work.progress import OnProgress, Progress

_LINE_S: Final = 1.0
_RATE_S: Final = 15.0
"""The rate is that of the last seconds: a store or a broker that slows down must show."""
_SHOWN_AFTER_S: Final = 0.4
"""A command that ends sooner shows no bar, which would only flicker."""
_BAR_COLUMNS: Final = 10
_ECHO_COLUMNS: Final = 3


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
def progress_lines(*, shown: bool) -> Iterator[None]:
    """Within the block, print the progress of every bar as JSON to standard error, for programs that wait for us."""
    if not shown:
        yield
        return
    pace, printed_at = _Pace(), 0.0

    def tell(step: Progress) -> None:
        nonlocal printed_at
        now = time.monotonic()
        if pace.see(step, now):
            printed_at = 0.0
        ended = step.bytes_total and step.bytes_done >= step.bytes_total
        if now - printed_at < _LINE_S and not ended:
            return
        printed_at = now
        line = {
            "event": "progress",
            **asdict(step),
            "seconds": round(now - pace.began_at, 1),
            "bytes_per_s": round(pace.bytes_per_s),
            "seconds_left": pace.left_s(step),
        }
        err.print(Text(json.dumps(line)), soft_wrap=True)

    with observing(tell):
        yield


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[OnProgress]:
    """Yield a function to call with each step. The bar disappears when the block ends."""
    if (by := supervisor()) is not None:
        yield by.on_progress
        return
    logged = _Logged()
    if not shown or not err.is_terminal:
        yield logged
        return
    line = _Line()
    live = Live(
        line,
        console=err,
        transient=True,
        refresh_per_second=5,
        # If standard output is a pipe, what is printed goes there, not to the terminal of the bar.
        redirect_stdout=sys.stdout.isatty(),
    )
    with _started_late(live):
        yield _both(logged, line.see)


@contextmanager
def _started_late(live: Live) -> Iterator[None]:
    over = threading.Event()

    def start() -> None:
        if not over.wait(_SHOWN_AFTER_S):
            live.start(refresh=True)

    starter = threading.Thread(target=start, name="progress", daemon=True)
    starter.start()
    try:
        yield
    finally:
        over.set()
        starter.join()
        live.stop()


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


class _Pace:
    """How long a phase has lasted, and how fast it is now."""

    def __init__(self) -> None:
        self._phase = ""
        self._seen: deque[tuple[float, int]] = deque()
        self.began_at = time.monotonic()

    def see(self, step: Progress, now: float) -> bool:
        """Take in a step; True if a phase begins with it."""
        begins = step.phase != self._phase
        if begins:
            self._phase, self.began_at = step.phase, now
            self._seen.clear()
        if not step.bytes_done or (self._seen and step.bytes_done < self._seen[-1][1]):
            # Spark starts with the first task, and its start must not count as reading time.
            self._seen.clear()
        self._seen.append((now, step.bytes_done))
        while now - self._seen[1 if len(self._seen) > 1 else 0][0] > _RATE_S:
            self._seen.popleft()
        return begins

    @property
    def bytes_per_s(self) -> float:
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0

    def left_s(self, step: Progress) -> int | None:
        """Return the time that the rest takes at this rate; None: unknown."""
        rate = self.bytes_per_s
        known = rate > 0 and step.bytes_total
        return round(max(step.bytes_total - step.bytes_done, 0) / rate) if known else None


class _Line:
    """The last step as one line: what goes on, how far it is, how fast, and how long it takes yet.

    Steps come from several threads, and rich asks for the line from another one.
    """

    def __init__(self) -> None:
        self._pace, self._spinner = _Pace(), Spinner("dots")
        self._step: Progress | None = None
        self._lock = threading.Lock()

    def see(self, step: Progress) -> None:
        with self._lock:
            self._pace.see(step, time.monotonic())
            self._step = step

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            step, took_s = self._step, time.monotonic() - self._pace.began_at
            detail = "" if step is None else describe(step, self._pace.bytes_per_s, self._pace.left_s(step))
        if step is None:
            return
        # A terminal echoes Ctrl-C as two characters behind the line: they must not wrap it.
        width = options.max_width - _ECHO_COLUMNS
        row = Table.grid(padding=(0, 1))
        row.width = width
        cells: list[RenderableType] = [self._spinner, Text(step.phase)]
        row.add_column(no_wrap=True)
        row.add_column(no_wrap=True, overflow="ellipsis")
        room = width - len(step.phase) - len(detail) - 5
        if step.bytes_total and room > _BAR_COLUMNS:
            row.add_column(ratio=1)
            cells.append(ProgressBar(total=step.bytes_total, completed=step.bytes_done))
            row.add_column(no_wrap=True)
        else:
            row.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
        cells.append(Text(detail or str(timedelta(seconds=int(took_s)))))
        row.add_row(*cells)
        yield row


def describe(step: Progress, bytes_per_s: float, left_s: int | None) -> str:
    """Bytes, records, rate, and the remaining time at this rate; without bytes, tasks; without those, nothing."""
    words = []
    if step.bytes_total:
        words.append(f"{human_bytes(step.bytes_done)} of {human_bytes(step.bytes_total)}")
    elif step.bytes_done:
        words.append(human_bytes(step.bytes_done))
    elif step.tasks_total:
        words.append(f"{step.tasks_done:,} of {counted(step.tasks_total, 'task')}")
    if step.bytes_done:
        words.append(f"{human_bytes(bytes_per_s)}/s")
    if left_s is not None:
        words.append(f"{timedelta(seconds=left_s)} left")
    return ", ".join(words)
