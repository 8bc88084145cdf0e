"""Runs the tasks of a verb: in threads of this process, or on Spark. The task code is the same, and so is its answer.

A task is a function of a module, `task(context, items) -> outcomes`. It opens its own clients: the context and the
items are values, which travel pickled. Spark pickles functions to its workers in any case, and only to its own.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, Self, TypeAlias, TypeVar

from maxbrod.errors import UnavailableError
from maxbrod.kafka.wire.deadline import stopped_by
from maxbrod.work.progress import OnProgress, Progress, silent
from maxbrod.work.session import Session, is_local, open_configured, parallelism_of

if TYPE_CHECKING:
    import threading

    from maxbrod.config import SparkConfig
    from maxbrod.work.reach import Needs

Context = TypeVar("Context")
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Task: TypeAlias = Callable[[Context, Sequence[Item]], Iterable[Outcome]]
TasksDone: TypeAlias = Callable[[int], None]

LOCAL_BYTES_MAX: Final = 64 << 20
"""Work up to this size is done before a JVM has started, which takes 4 to 10 s."""
_POLL_S: Final = 0.2


class Executor(Protocol):
    """Runs tasks somewhere."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at once."""

    @property
    def is_here(self) -> bool:
        """True if tasks run on this machine and see its files."""

    def run(
        self,
        task: Task[Context, Item, Outcome],
        context: Context,
        tasks: Sequence[Sequence[Item]],
        *,
        name: str,
        on_done: TasksDone | None = None,
        stop: threading.Event | None = None,
        alone: bool = False,
    ) -> list[Outcome]:
        """Return the outcomes of all items, in the order of the tasks.

        Args:
            task: called once for each of `tasks`, perhaps again if a worker is lost.
            context: what all tasks share.
            tasks: the items of each task.
            name: identifies the job in Spark's own logs and pages.
            on_done: called now and then with the number of finished tasks.
            stop: when it is set, tasks that have not begun do not begin, and those that run are ended.
            alone: two attempts of one task must never run side by side.

        Raises:
            UnavailableError: `stop` was set before all tasks had finished, or Spark gave the job up.
        """


class LocalExecutor:
    """Runs tasks in threads of this process."""

    is_here: Final = True

    def __init__(self, parallelism: int | None = None) -> None:
        self.parallelism: Final = parallelism or os.cpu_count() or 1

    def run(
        self,
        task: Task[Context, Item, Outcome],
        context: Context,
        tasks: Sequence[Sequence[Item]],
        *,
        name: str,
        on_done: TasksDone | None = None,
        stop: threading.Event | None = None,
        alone: bool = False,
    ) -> list[Outcome]:
        del alone
        # Pickled here, too, so that tasks share nothing, as on Spark.
        payloads = [pickle.dumps((context, tuple(items))) for items in tasks]
        if len(payloads) < 2 and stop is None and on_done is None:
            return [outcome for payload in payloads for outcome in _answer(task, payload, None)]
        pool = ThreadPoolExecutor(max(1, min(self.parallelism, len(payloads))), name)
        try:
            futures = [pool.submit(_answer, task, payload, stop) for payload in payloads]
            return _watch(futures, on_done, stop)
        finally:
            # If the caller was interrupted, tasks that run are left to themselves, as by the end of a process.
            pool.shutdown(wait=False, cancel_futures=True)


def _answer(task: Task[Context, Item, Outcome], payload: bytes, stop: threading.Event | None) -> list[Outcome]:
    context, items = pickle.loads(payload)  # noqa: S301 - this process has pickled it
    with stopped_by(stop):
        outcomes = list(task(context, items))
    # Outcomes of a task that a stop has cut short look like failures.
    return outcomes if stop is None or not stop.is_set() else _refuse_stopped()


def _refuse_stopped() -> NoReturn:
    raise UnavailableError("stopped before all of its tasks had ended", hint="run it again")


def _watch(
    futures: Sequence[Future[list[Outcome]]], on_done: TasksDone | None, stop: threading.Event | None
) -> list[Outcome]:
    """Wait for all tasks and return their outcomes. Raises what the first failed one raised, after the others ended."""
    waiting = set(futures)
    failed = False
    while waiting:
        done, waiting = wait(waiting, _POLL_S, FIRST_COMPLETED)
        failed = failed or any(not future.cancelled() and future.exception() is not None for future in done)
        if failed or (stop is not None and stop.is_set()):
            for future in waiting:
                future.cancel()
        if on_done is not None:
            on_done(len(futures) - len(waiting))
    outcomes = [outcome for future in futures if not future.cancelled() for outcome in future.result()]
    return _refuse_stopped() if any(future.cancelled() for future in futures) else outcomes


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
