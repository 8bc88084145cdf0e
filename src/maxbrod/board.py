"""The board between the driver of a job and its tasks: each task counts its bytes there, and reads that it is to stop.

No task does so itself: the storages and the Kafka clients that it opens count what they read, and refuse to read on
after a stop. Threads of one process share the board in memory, processes of one machine in a private file, which both
map. Workers of a cluster have none: their driver knows only which tasks have ended, and stops them by ending them.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from maxbrod.errors import StoppedError

Result = TypeVar("Result")

_SLOT_BYTES: Final = 8
_POLL_S: Final = 0.05
_task = threading.local()
_process_stops: list[threading.Event] = []


class Board:
    """A counter for each task of a job, to which only that task writes. The first slot is the driver's word to stop."""

    def __init__(self, slots: memoryview, path: Path | None = None) -> None:
        self._slots = slots.cast("B").cast("q")
        self.path = path
        """The file by which other processes attach to it; None: it is in memory."""

    @classmethod
    def in_memory(cls, tasks: int) -> Board:
        return cls(memoryview(bytearray((tasks + 1) * _SLOT_BYTES)))

    @classmethod
    @contextmanager
    def in_file(cls, tasks: int) -> Iterator[Board]:
        """Yield a board that processes of this user can attach to. Its file is gone at the end of the block."""
        with tempfile.NamedTemporaryFile(prefix="maxbrod-board-") as file:
            file.truncate((tasks + 1) * _SLOT_BYTES)
            yield cls(memoryview(mmap.mmap(file.fileno(), 0)), Path(file.name))

    @classmethod
    def attach(cls, path: Path) -> Board:
        with path.open("r+b") as file:
            return cls(memoryview(mmap.mmap(file.fileno(), 0)), path)

    def bytes_done(self) -> int:
        """Return what all tasks have counted so far."""
        return sum(self._slots[1:])

    def ask_to_stop(self) -> None:
        self._slots[0] = 1

    def is_stopping(self) -> bool:
        return self._slots[0] != 0

    def begin(self, number: int) -> None:
        """Begin a task, perhaps again: an attempt whose worker was lost counts no more."""
        self._slots[number + 1] = 0

    def add(self, number: int, size: int) -> None:
        self._slots[number + 1] += size


class Stop(threading.Event):
    """The stop of a command. A step that changes nothing need not look at it: see `raising`."""

    raises: int = 0
    """Above 0: whoever handles the signal raises KeyboardInterrupt in the main thread."""

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Within the block, which changes nothing and runs no tasks, a signal ends whatever goes on: StoppedError."""
        self.check()
        self.raises += 1
        try:
            yield
        except KeyboardInterrupt:
            self.check()
            raise
        finally:
            self.raises -= 1
        # What was raised may have been taken for a failure.
        self.check()

    def check(self) -> None:
        """StoppedError: it is set."""
        if self.is_set():
            raise StoppedError("stopped on request", hint="run it again")


class TaskStop:
    """The stop of a task, which its driver sets on the board. As far as tasks use one, it is like a threading.Event."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def is_set(self) -> bool:
        return self._board.is_stopping()

    def wait(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self.is_set() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
        return self.is_set()


class Seat:
    """The place of one task at the board. Clients that the task opens take it along into their own threads."""

    def __init__(self, board: Board, number: int) -> None:
        self._board, self._number = board, number
        self._lock = threading.Lock()
        self.stop = TaskStop(board)
        board.begin(number)

    def check(self) -> None:
        """StoppedError: the driver has stopped the task."""
        if self.stop.is_set():
            raise StoppedError("stopped on request", hint="run it again")

    def count(self, size: int) -> None:
        """Count bytes that the task has read."""
        with self._lock:
            self._board.add(self._number, size)


@contextmanager
def seated(board: Board | None, number: int) -> Iterator[None]:
    """Within the block, which is a task, storages and clients that this thread opens count what they read.

    They end soon after the driver says so.
    """
    _task.seat = None if board is None else Seat(board, number)
    try:
        yield
    finally:
        _task.seat = None


@contextmanager
def stopped_by(stop: threading.Event) -> Iterator[None]:
    """Within the block, `stop` is that of the whole process."""
    _process_stops.append(stop)
    try:
        yield
    finally:
        _process_stops.remove(stop)


def is_process_stopped() -> bool:
    """True after a signal: nothing but what ends the work is worth waiting for."""
    return any(stop.is_set() for stop in _process_stops)


def waited_for(call: Callable[[], Result], after_stop_s: float) -> Result:
    """Return what `call` returns, which may wait for a network. StoppedError: a signal came, and it still does.

    Python handles signals in its main thread alone, and not while that is in such a call: another thread makes it then.
    """
    if not _process_stops or threading.current_thread() is not threading.main_thread():
        return call()
    answer: Future[Result] = Future()

    def answered() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            answer.set_exception(error)

    threading.Thread(target=answered, name="waiting", daemon=True).start()
    until: float | None = None
    while not wait([answer], _POLL_S * 4).done:
        if is_process_stopped():
            until = until or time.monotonic() + after_stop_s
            if time.monotonic() > until:
                raise StoppedError("stopped on request", hint="run it again")
    return answer.result()


def seat_of_task() -> Seat | None:
    """Return the seat of the task that this thread runs. Threads that a task starts have none."""
    return getattr(_task, "seat", None)


def stop_of_task() -> TaskStop | None:
    """Return the stop of the task that this thread runs, if it has one."""
    seat = seat_of_task()
    return None if seat is None else seat.stop
