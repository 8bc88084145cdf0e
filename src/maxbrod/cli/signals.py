"""SIGTERM and Ctrl-C: the first one asks the work to end well, the second ends it at once.

Ending at once loses nothing that is committed: an archive stands any `kill -9`.
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
COMMITTING: Final = "what is being read is finished and committed first"
_SHOW_CURSOR: Final = b"\x1b[?25h"


@contextmanager
def stopping_by_signals(stop: threading.Event, *, what: str = COMMITTING) -> Iterator[None]:
    """Within the block, the first signal sets `stop`. `what` is done before it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            _end_at_once(number)
        stop.set()
        _say(f"\nstopping: {what}; once more ends it at once\n".encode())

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending_by_interrupt() -> Iterator[None]:
    """Within the block, Ctrl-C ends the process at once, and Spark with it: for what changes nothing.

    PySpark's own way is to cancel its jobs over the connection on which the interrupted call still waits for its
    answer: it then waits for the job, or prints tracebacks.
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
        _say(_SHOW_CURSOR)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _say(text: bytes) -> None:
    # Not through Python's own streams: the signal may have come while they were being written.
    with suppress(OSError):
        os.write(2, text)
