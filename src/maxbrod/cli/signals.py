"""SIGTERM and Ctrl-C: the first signal stops the work in an orderly way, the second one ends the process at once.

A thread of its own hears them: the main thread may be in a call that returns only when a store or a JVM answers. Ending
at once loses nothing that is committed: an archive survives any `kill -9`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from rich.text import Text

from maxbrod.board import Stop, stopped_by
from maxbrod.cli.output import err
from maxbrod.cli.supervised import supervisor

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
COMMITTING: Final = "records being read are committed first"
_SHOW_CURSOR: Final = b"\x1b[?25h"
_DEFAULT: Final = 0  # SIG_DFL


@contextmanager
def stopping_by_signals(
    stop: threading.Event, *, what: str = COMMITTING, on_hangup: Callable[[], None] | None = None
) -> Iterator[None]:
    """Within the block, the first signal sets `stop`. The message about it contains `what`.

    Under a supervisor, who hears the signals, the supervisor sets it. SIGHUP calls `on_hangup`, if there is one.
    """
    if (by := supervisor()) is not None:
        with by.stopping(stop):
            yield
        return
    heard = 0

    def hear(number: int) -> None:
        nonlocal heard
        if number == signal.SIGHUP:
            (on_hangup or stop.set)()
            return
        heard += 1
        if heard > 1:
            _end_at_once(number)
        stop.set()
        # Above a progress bar, if there is one.
        err.print(Text(f"stopping: {what}; a second signal ends it at once", style="yellow"), soft_wrap=True)

    def handle(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            return
        stop.set()
        if isinstance(stop, Stop) and stop.raises:
            raise KeyboardInterrupt

    numbers = _SIGNALS if on_hangup is None else (*_SIGNALS, signal.SIGHUP)
    with stopped_by(stop), _hearing(numbers, hear, handle):
        yield


@contextmanager
def ending_by_interrupt() -> Iterator[None]:
    """Within the block, Ctrl-C ends the process at once, and Spark with it. For commands that change nothing.

    PySpark itself cancels its jobs over the connection on which the interrupted call still waits for a response: it
    then waits for the job, or prints tracebacks.
    """
    with _hearing((signal.SIGINT,), _end_at_once, lambda _number, _frame: None):
        yield


@contextmanager
def _hearing(
    numbers: tuple[int, ...], hear: Callable[[int], None], handle: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Within the block, call `hear` in a thread as soon as a signal comes, and `handle` when the main thread is free.

    Signals belong to the main thread: in any other one, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    incoming, outgoing = socket.socketpair()
    outgoing.setblocking(False)

    def listen() -> None:
        while received := incoming.recv(1):
            if received[0] in numbers:
                hear(received[0])

    listener = threading.Thread(target=listen, name="signals", daemon=True)
    listener.start()
    wakeup_before = signal.set_wakeup_fd(outgoing.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup_before)
        outgoing.close()
        listener.join()
        incoming.close()


def _end_at_once(number: int) -> None:
    if os.isatty(2):
        # Not through Python's streams: whoever writes to them now may never finish.
        with suppress(OSError):
            os.write(2, _SHOW_CURSOR)
    # Python lets only the main thread reset a handler.
    ctypes.CDLL(None).signal(number, _DEFAULT)
    os.kill(os.getpid(), number)
