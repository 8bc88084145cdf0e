"""SIGTERM and Ctrl-C: the first signal stops the work in an orderly way, the second one ends the process at once.

Ending at once loses nothing that is committed: an archive survives any `kill -9`.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
COMMITTING: Final = "records being read are committed first"
_SHOW_CURSOR: Final = b"\x1b[?25h"


@contextmanager
def stopping_by_signals(stop: threading.Event, *, what: str = COMMITTING) -> Iterator[None]:
    """Within the block, the first signal sets `stop`. The message about it contains `what`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            _end_at_once(number)
        stop.set()
        _write(f"\nstopping: {what}; a second signal ends it at once\n".encode())

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending_by_interrupt() -> Iterator[None]:
    """Within the block, Ctrl-C ends the process at once, and Spark with it. For commands that change nothing.

    PySpark itself cancels its jobs over the connection on which the interrupted call still waits for a response: it
    then waits for the job, or prints tracebacks.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, _frame: _end_at_once(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_at_once(number: int) -> None:
    if os.isatty(2):
        _write(_SHOW_CURSOR)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _write(text: bytes) -> None:
    # Not through Python's streams: the signal may have interrupted a write to them.
    with suppress(OSError):
        os.write(2, text)
