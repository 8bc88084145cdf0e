"""Runs the tasks of a verb: in threads of this process, or on Spark. The task code is the same, and so is its answer.

A task is a function of a module, `task(context, items) -> outcomes`. It opens its own clients: the context and the
items are values, which travel pickled. Spark pickles functions to its workers in any case, and only to its own.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, Self, TypeAlias, TypeVar

from maxbrod.board import Board, seated
from maxbrod.config import SparkConfig
from maxbrod.errors import StoppedError
from maxbrod.work.progress import OnProgress, Progress, Watcher, silent
from maxbrod.work.session import Session, is_local, open_configured, parallelism_of

if TYPE_CHECKING:
    from maxbrod.work.reach import Needs

Context = TypeVar("Context")
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Task: TypeAlias = Callable[[Context, Sequence[Item]], Iterable[Outcome]]

LOCAL_BYTES_MAX: Final = 64 << 20
"""Work up to this size is done before a JVM has started, which takes 4 to 10 s."""
GENTLE_S: Final = 10.0
"""How long tasks that notice a stop, and keep what they have, may take to end."""
_ENDING_S: Final = 3.0
"""And those whose outcomes do not count. A request to a store that does not answer cannot be ended from here."""
_POLL_S: Final = 0.2


class Executor(Protocol):
    """Runs tasks somewhere."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at once."""

    @property
    def is_here(self) -> bool:
        """True if tasks run on this machine and see its files."""

    @property
    def in_process(self) -> bool:
        """True if tasks run in threads of this process."""

    def run(
        self,
        task: Task[Context, Item, Outcome],
        context: Context,
        tasks: Sequence[Sequence[Item]],
        *,
        name: str,
        meter: Watcher | None = None,
        stop: threading.Event | None = None,
        gentle: bool = False,
        alone: bool = False,
    ) -> list[Outcome]:
        """Return the outcomes of all items, in the order of the tasks.

        Args:
            task: called once for each of `tasks`, perhaps again if a worker is lost.
            context: what all tasks share.
            tasks: the items of each task.
            name: identifies the job in Spark's own logs and pages.
            meter: is told now and then how many tasks have ended, and what they have read (see `board`).
            stop: when it is set, tasks that have not begun do not begin, and those that run are ended.
            gentle: tasks that run notice the stop, and end soon with outcomes that say how far they came.
            alone: two attempts of one task must never run side by side.

        Raises:
            StoppedError: `stop` was set before all tasks had finished.
            UnavailableError: Spark gave the job up.
        """


class LocalExecutor:
    """Runs tasks in threads of this process."""

    is_here: Final = True
    in_process: Final = True

    def __init__(self, parallelism: int | None = None) -> None:
        self.parallelism: Final = parallelism or os.cpu_count() or 1

    def run(
        self,
        task: Task[Context, Item, Outcome],
        context: Context,
        tasks: Sequence[Sequence[Item]],
        *,
        name: str,
        meter: Watcher | None = None,
        stop: threading.Event | None = None,
        gentle: bool = False,
        alone: bool = False,
    ) -> list[Outcome]:
        del alone
        # Pickled here, too, so that tasks share nothing, as on Spark.
        payloads = [pickle.dumps((context, tuple(items))) for items in tasks]
        if len(payloads) < 2 and stop is None and meter is None:
            return [outcome for payload in payloads for outcome in _answer(task, payload)]
        board = Board.in_memory(len(payloads))
        futures: list[Future[list[Outcome]]] = [Future() for _ in payloads]
        answers = [
            partial(_answer, task, payload, board, number, gentle=gentle) for number, payload in enumerate(payloads)
        ]
        waiting = iter(list(zip(futures, answers, strict=True)))
        # Of the process, not of a pool: nobody waits for a task that does not notice a stop.
        for _ in range(min(self.parallelism, len(payloads))):
            threading.Thread(target=_work, args=(waiting,), name=name, daemon=True).start()
        try:
            return _watch(futures, board, meter, stop, gentle=gentle)
        finally:
            # If the caller was interrupted, tasks that run are left to themselves, as by the end of a process.
            for future in futures:
                future.cancel()


def _work(waiting: Iterator[tuple[Future[list[Outcome]], Callable[[], list[Outcome]]]]) -> None:
    # Each task is taken by one thread: the next one of a list's iterator is taken under the interpreter's lock.
    for future, answer in waiting:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(answer())
            except BaseException as error:  # noqa: BLE001 - whoever waits for the task raises it
                future.set_exception(error)


def _answer(
    task: Task[Context, Item, Outcome],
    payload: bytes,
    board: Board | None = None,
    number: int = 0,
    *,
    gentle: bool = False,
) -> list[Outcome]:
    context, items = pickle.loads(payload)  # noqa: S301 - this process has pickled it
    with seated(board, number):
        outcomes = list(task(context, items))
    # Outcomes of a task that a stop has cut short look like failures, unless it says so itself.
    return outcomes if gentle or board is None or not board.is_stopping() else refuse_stopped()


def refuse_stopped() -> NoReturn:
    """Raise the error of a job that a stop has cut short."""
    raise StoppedError("stopped before all of its tasks had ended", hint="run it again")


def _watch(
    futures: Sequence[Future[list[Outcome]]],
    board: Board,
    meter: Watcher | None,
    stop: threading.Event | None,
    *,
    gentle: bool,
) -> list[Outcome]:
    """Wait for all tasks and return their outcomes. Raises what the first failed one raised, after the others ended."""
    waiting = set(futures)
    failed = False
    until: float | None = None
    while waiting:
        done, waiting = wait(waiting, _POLL_S, FIRST_COMPLETED)
        failed = failed or any(not future.cancelled() and future.exception() is not None for future in done)
        stopping = stop is not None and stop.is_set()
        if stopping:
            board.ask_to_stop()
            until = until or time.monotonic() + (GENTLE_S if gentle else _ENDING_S)
            if waiting and time.monotonic() > until:
                refuse_stopped()
        if failed or (stopping and not gentle):
            for future in waiting:
                future.cancel()
        # Tasks that a stop has ended are not done.
        if meter is not None and not stopping:
            meter.seen(len(futures) - len(waiting), board.bytes_done())
    outcomes = [outcome for future in futures if not future.cancelled() for outcome in future.result()]
    return refuse_stopped() if any(future.cancelled() for future in futures) else outcomes


class Workers:
    """Gives a verb the executor for each piece of its work. Opens Spark when the first large one comes, and closes it.

    With `engine: auto`, work of up to LOCAL_BYTES_MAX runs in this process, unless it has a session already, or the
    master is a cluster: a JVM takes longer to start than the work takes.
    """

    def __init__(
        self,
        config: SparkConfig,
        *,
        needs: Needs | None = None,
        jvm_works: bool = False,
        session: Session | None = None,
        executor: Executor | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
    ) -> None:
        self._config, self._needs, self._given = config, needs, session
        self._executor, self._on_progress, self.stop = executor, on_progress, stop
        self._jvm_works = jvm_works
        self._opened: Session | None = None
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the Spark session, if one was opened. The next large piece of work opens another."""
        self._opened = None
        self._undo.close()

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at once, known before Spark has started."""
        if self._executor is not None:
            return self._executor.parallelism
        return parallelism_of(self._config.master, self.opened)

    @property
    def opened(self) -> Session | None:
        """The Spark session, if there is one: a verb that calls another one hands it on, as a process can have one."""
        return self._opened or self._given

    def for_bytes(self, size: int) -> Executor:
        """Return the executor for work of this size."""
        if self._executor is not None:
            return self._executor
        if self._is_small(size):
            return LocalExecutor(self.parallelism)
        from maxbrod.work.jobs import SparkExecutor  # noqa: PLC0415 - small work does without

        return SparkExecutor(self.session())

    def try_cluster(self) -> None:
        """Open Spark now if all work runs there whatever its size, to see whether its workers do."""
        if self._executor is None and (self._given is not None or not is_local(self._config.master)):
            self.session()

    def session(self) -> Session:
        """Return the Spark session, for work that Spark itself does."""
        if self._opened is None:
            self._on_progress(Progress(phase="starting Spark"))
            opening = open_configured(
                self._config, self._given, jvm_works=self._jvm_works, needs=self._needs, stop=self.stop
            )
            self._opened = self._undo.enter_context(opening)
        return self._opened

    def _is_small(self, size: int) -> bool:
        if self._config.engine != "auto":
            return self._config.engine == "local"
        if self.opened is not None:
            return False
        return size <= LOCAL_BYTES_MAX and is_local(self._config.master)
