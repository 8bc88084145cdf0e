"""Runs tasks on Spark. Uses DataFrames only, so Spark Connect works too.

There are exactly as many tasks of Spark as the caller has. Items travel inside the function: in a table of them Spark
would decide itself which rows share a task.
"""

from __future__ import annotations

import pickle
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import binary_array, number_array
from maxbrod.board import Board, seated
from maxbrod.errors import EnvironmentMissingError, RefusedError, UnavailableError
from maxbrod.work.executor import GENTLE_S, Context, Item, Outcome, Task, refuse_stopped
from maxbrod.work.progress import Watcher
from maxbrod.work.session import is_local, is_of_spark, parallelism_of
from maxbrod.work.worker_garbage import settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ON_SPARK: Final = "run on Spark"
_POLL_S: Final = 0.2
_KILL_S: Final = 30.0
"""Spark gives a Python worker about 4 s to end, and then ends it."""
_ENDING_S: Final = 6.0
_SCHEMA: Final = "task bigint, answer binary"
_ANSWERS: Final = pa.schema([("task", pa.int64()), ("answer", pa.binary())])

HINT: Final = (
    "give the workers the driver's environment: install it, or send it ('maxbrod cluster pack') and set "
    "spark.pyspark.python; 'maxbrod help cluster' says how"
)
_LOST_TASK: Final = re.compile(r"\(TID \d+\) \(([^\s()]+) executor ([^\s():]+)\)")
_NO_PYTHON: Final = re.compile(r"Cannot run program \"([^\"]+)\"")
_NO_MODULE: Final = re.compile(r"No module named '?([A-Za-z0-9_.]+)'?")
_OTHER_PYTHON: Final = re.compile(
    r"different version:?\s*\(?\[?(?:'?(\d+)'?[.,]\s*'?(\d+)'?)[^0-9]+(?:'?(\d+)'?[.,]\s*'?(\d+)'?)"
)


class SparkExecutor:
    """Runs tasks in the Python workers of a Spark session. See `work.executor.Executor`."""

    in_process: Final = False

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def parallelism(self) -> int:
        return parallelism_of("", self._session)

    @property
    def is_here(self) -> bool:
        with errors_of_spark():
            return is_local(str(self._session.conf.get("spark.master", "")))

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
        count = len(tasks)
        if not count:
            return []
        session = self._session
        if alone and str(session.conf.get("spark.speculation", "false")).lower() == "true":
            raise RefusedError(
                "this Spark session runs tasks speculatively: two tasks would write to one partition",
                operation=name,
                hint="use a session with spark.speculation=false",
            )
        # Each worker unpickles its own items only.
        payloads = tuple(pickle.dumps(tuple(items)) for items in tasks)
        with board_of(session, count) as board:
            path = None if board is None else board.path
            with errors_of_spark():
                work = partial(_answer, task, context, payloads, path)
                job = session.range(0, count, 1, count).mapInArrow(work, _SCHEMA)
            watch = _Watch(board=board, meter=meter, stop=stop, gentle=gentle)
            table = _collect(session, job, name, watch)
            if board is not None and board.is_stopping() and not gentle:
                # Outcomes of tasks that a stop has cut short look like failures.
                refuse_stopped()
        answers = dict(zip(table["task"].to_pylist(), table["answer"].to_pylist(), strict=True))
        # The workers of this job have pickled them.
        return [outcome for number in range(count) for outcome in pickle.loads(answers[number])]  # noqa: S301


def collect(
    session: SparkSession,
    frame: DataFrame,
    *,
    name: str,
    meter: Watcher | None = None,
    stop: threading.Event | None = None,
    board: Board | None = None,
    passed_on: Callable[[Exception], bool] = lambda _: False,
) -> pa.Table:
    """Return the rows of a DataFrame. `meter` and `stop` are as for an executor.

    `board` is where its functions count, if they are `counted`. Errors that are `passed_on` are not translated.
    """
    return _collect(session, frame, name, _Watch(meter=meter, stop=stop, board=board), passed_on)


@contextmanager
def board_of(session: SparkSession, tasks: int) -> Iterator[Board | None]:
    """Yield a board for the tasks of a job. None: workers of another machine see no file of this one."""
    with Board.in_file(tasks) if SparkExecutor(session).is_here else nullcontext() as board:
        yield board


def counted(
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], board: Board | None, first: int = 0
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow`, whose tasks count what they read from the place `first` on."""
    return partial(_counted, function, None if board is None else board.path, first)


def _counted(
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    path: Path | None,
    first: int,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext  # noqa: PLC0415 - in a worker

    task = TaskContext.get()
    board = None if path is None or task is None else Board.attach(path)
    with seated(board, first + (0 if task is None else task.partitionId())):
        yield from function(batches)
    settle()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watch:
    """Whom to tell of the progress of a job, and how it is stopped; see `Executor.run`."""

    meter: Watcher | None = None
    stop: threading.Event | None = None
    gentle: bool = False
    board: Board | None = None

    @property
    def is_stopped(self) -> bool:
        return self.stop is not None and self.stop.is_set()


def _collect(
    session: SparkSession,
    frame: DataFrame,
    name: str,
    watch: _Watch,
    passed_on: Callable[[Exception], bool] = lambda _: False,
) -> pa.Table:
    try:
        with errors_of_spark(passed_on), _watched(session, name, watch):
            return frame.toArrow()
    except UnavailableError:
        if watch.is_stopped:
            refuse_stopped()
        raise


def tasks_running(session: SparkSession) -> int:
    """The number of tasks that occupy the executors, with those of cancelled jobs that have not noticed it yet.

    0 over Spark Connect, which does not tell.
    """
    context = context_of(session)
    with errors_of_spark():
        executors = () if context is None else context._jsc.sc().statusTracker().getExecutorInfos()  # noqa: SLF001
        return sum(executor.numRunningTasks() for executor in executors)


@contextmanager
def telling_tasks(session: SparkSession, tell: Callable[[int, int], None]) -> Iterator[None]:
    """Within the block, call `tell` now and then with the tasks of running jobs that have ended, and with all of them.

    Nothing is told over Spark Connect, which knows only the jobs of one thread.
    """
    context = context_of(session)

    def watch(over: threading.Event) -> None:
        # If Spark exits, the thread that waits for the job reports it.
        with suppress(UnavailableError), errors_of_spark():
            tracker = context.statusTracker()
            while not over.wait(_POLL_S):
                jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
                stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
                known = [stage for stage in stages if stage is not None]
                if known:
                    tell(sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))

    with _watching(None if context is None else watch):
        yield


@contextmanager
def cancelled_by(session: SparkSession, stop: threading.Event) -> Iterator[None]:
    """Within the block, all jobs of the session are cancelled as soon as `stop` is set: they raise UnavailableError."""
    context = context_of(session)
    cancel = session.interruptAll if context is None else context.cancelAllJobs

    def watch(over: threading.Event) -> None:
        while not over.is_set():
            if stop.wait(_POLL_S) and not over.is_set():
                # Repeated, because the next job may be about to start.
                with suppress(UnavailableError), errors_of_spark():
                    cancel()
                over.wait(_POLL_S)

    with _watching(watch):
        yield


@contextmanager
def _watching(watch: Callable[[threading.Event], None] | None) -> Iterator[None]:
    """Within the block, `watch` runs in another thread, until the event is set that it gets. None: nothing does."""
    if watch is None:
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(target=watch, args=(over,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _answer(
    task: Task[Context, Item, Outcome],
    context: Context,
    payloads: Sequence[bytes],
    path: Path | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    board = None if path is None else Board.attach(path)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            items = pickle.loads(payloads[number])  # noqa: S301 - the driver has pickled it
            with seated(board, number):
                answer = np.frombuffer(pickle.dumps(list(task(context, items))), np.uint8)
            # Not by `pa.array`, which loads pandas.
            answers = binary_array(np.array([0, answer.size], np.int32), answer, None)
            yield pa.RecordBatch.from_arrays([number_array(np.array([number])), answers], schema=_ANSWERS)
    settle()


@contextmanager
def errors_of_spark(passed_on: Callable[[Exception], bool] = lambda _: False) -> Iterator[None]:
    """Translate what Spark raises, classic or Connect: a task failed as often as it may, or Spark has exited."""
    try:
        yield
    except Exception as error:
        if not is_of_spark(error) or passed_on(error):
            raise
        if trouble := trouble_of(str(error)):
            raise trouble from error
        raise UnavailableError(
            f"Spark gave the job up: {_reason(error)}",
            operation=ON_SPARK,
            hint="nothing was committed; run it again, and set MAXBROD_SPARK_LOG to a file to keep Spark's log",
        ) from error


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Lines of a Java stack contain class names such as "…Exception", too.
    messages = [line for line in lines if ("Error" in line or "Exception" in line) and not line.startswith("at ")]
    return (messages or lines or [type(error).__name__])[-1][:500]


@contextmanager
def _watched(session: SparkSession, name: str, watch: _Watch) -> Iterator[None]:
    """Watch the job from another thread, and stop it from there."""
    job = _job(session, name)
    job.begin()
    try:
        with _watching(None if watch == _Watch() else partial(_watch, job, watch)):
            yield
    finally:
        if watch.is_stopped:
            _await_tasks(job)
        job.end()


def _watch(job: _Job, watch: _Watch, ended: threading.Event) -> None:
    cancel_at: float | None = None
    # If Spark exits, the thread that waits for the job reports it.
    with suppress(UnavailableError), errors_of_spark():
        while not ended.wait(_POLL_S):
            if watch.is_stopped:
                now = time.monotonic()
                cancel_at = cancel_at or now + (GENTLE_S if watch.gentle and watch.board is not None else 0)
                if watch.board is not None:
                    watch.board.ask_to_stop()
                if now >= cancel_at:
                    # Repeated, because the job may not have begun yet.
                    job.cancel()
            if watch.meter is not None and not watch.is_stopped:
                watch.meter.seen(job.tasks_done(), 0 if watch.board is None else watch.board.bytes_done())


def _await_tasks(job: _Job) -> None:
    """Wait for the tasks of a cancelled job: it ends before they do, and the next step must not run beside them."""
    until = time.monotonic() + _KILL_S
    with suppress(UnavailableError), errors_of_spark():
        while job.tasks_running() and time.monotonic() < until:
            time.sleep(_POLL_S)


class _ClassicJob:
    def __init__(self, context: Any, name: str) -> None:  # noqa: ANN401 - a SparkContext
        self._context, self._name = context, name
        self._tracker = context.statusTracker()

    def begin(self) -> None:
        self._context.setJobGroup(self._name, self._name)

    def end(self) -> None:
        """Nothing to do: the group belongs to this thread, and the next job sets another."""

    def cancel(self) -> None:
        self._context.cancelJobGroup(self._name)

    def tasks_done(self) -> int:
        return sum(stage.numCompletedTasks for stage in self._stages())

    def tasks_running(self) -> int:
        return sum(stage.numActiveTasks for stage in self._stages())

    def _stages(self) -> list[Any]:
        tracker = self._tracker
        return [
            stage
            for job in tracker.getJobIdsForGroup(self._name)
            for stage in map(tracker.getStageInfo, getattr(tracker.getJobInfo(job), "stageIds", ()))
            if stage is not None
        ]


class _ConnectJob:
    """A job over Spark Connect, known by its tag. The server reports its tasks to the thread that waits for the job."""

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session, self._name = session, name
        self._thread = threading.get_ident()
        self._done = 0
        self._cancelled_at: float | None = None

    def begin(self) -> None:
        self._session.addTag(self._name)
        self._session.registerProgressHandler(self._see)

    def end(self) -> None:
        self._session.removeProgressHandler(self._see)
        self._session.removeTag(self._name)

    def cancel(self) -> None:
        self._session.interruptTag(self._name)
        self._cancelled_at = self._cancelled_at or time.monotonic()

    def tasks_done(self) -> int:
        return self._done

    def tasks_running(self) -> int:
        """The server says no more about a job that is cancelled: as long as Spark may need to end its tasks, 1."""
        return int(self._cancelled_at is not None and time.monotonic() < self._cancelled_at + _ENDING_S)

    def _see(self, stages: Iterable[Any] | None, **_: Any) -> None:  # noqa: ANN401 - PySpark's call
        # A session has one list of handlers for the jobs of all threads.
        if threading.get_ident() == self._thread:
            self._done = sum(stage.num_completed_tasks for stage in stages or ())


_Job: TypeAlias = _ClassicJob | _ConnectJob


def _job(session: SparkSession, name: str) -> _Job:
    context = context_of(session)
    return _ConnectJob(session, name) if context is None else _ClassicJob(context, name)


def context_of(session: SparkSession) -> Any:  # noqa: ANN401 - a SparkContext
    """None: the session is one of Spark Connect."""
    try:
        return session.sparkContext
    except Exception as error:
        if type(error).__module__.startswith("pyspark"):
            return None
        raise


def trouble_of(text: str) -> EnvironmentMissingError | None:
    """The error for Spark's message; None: the job failed for another reason."""
    host = found[1] if (found := _LOST_TASK.search(text)) else None
    where = f"the Spark workers on {host}" if host else "a Spark worker"
    if found := _NO_PYTHON.search(text):
        return _error(f"{where} cannot start the Python {found[1]}")
    if "PYTHON_VERSION_MISMATCH" in text or "Python in worker has different version" in text:
        versions = _OTHER_PYTHON.search(text)
        which = f" ({versions[1]}.{versions[2]}, not {versions[3]}.{versions[4]})" if versions else ""
        return _error(f"the Python of {where} is not of the driver's version{which}")
    if found := _NO_MODULE.search(text):
        return _error(f"the Python of {where} has no module {found[1]}")
    return None


def _error(message: str) -> EnvironmentMissingError:
    return EnvironmentMissingError(message, operation="run on Spark", hint=HINT)
