"""Runs tasks on Spark. Uses DataFrames only, so Spark Connect works too.

There are exactly as many tasks of Spark as the caller has. Items travel inside the function: in a table of them Spark
would decide itself which rows share a task.
"""

from __future__ import annotations

import pickle
import re
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import binary_array, number_array
from maxbrod.errors import EnvironmentMissingError, RefusedError, UnavailableError
from maxbrod.work.session import is_local, parallelism_of
from maxbrod.work.settling import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from maxbrod.work.executor import Context, Item, Outcome, Task, TasksDone


ON_SPARK: Final = "run on Spark"
_POLL_S: Final = 0.2
_KILL_S: Final = 30.0
"""Spark gives a Python worker about 4 s to end, and then ends it."""
_ENDING_S: Final = 6.0
_SCHEMA: Final = "task bigint, answer binary"
_ANSWERS: Final = pa.schema([("task", pa.int64()), ("answer", pa.binary())])

HINT: Final = (
    "give the workers the driver's environment: install it, or send it ('maxbrod cluster pack') and set "
    "spark.pyspark.python; docs/cluster.md says how"
)
_LOST_TASK: Final = re.compile(r"\(TID \d+\) \(([^\s()]+) executor ([^\s():]+)\)")
_NO_PYTHON: Final = re.compile(r"Cannot run program \"([^\"]+)\"")
_NO_MODULE: Final = re.compile(r"No module named '?([A-Za-z0-9_.]+)'?")
_OTHER_PYTHON: Final = re.compile(
    r"different version:?\s*\(?\[?(?:'?(\d+)'?[.,]\s*'?(\d+)'?)[^0-9]+(?:'?(\d+)'?[.,]\s*'?(\d+)'?)"
)


class SparkExecutor:
    """Runs tasks in the Python workers of a Spark session. See `work.executor.Executor`."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def parallelism(self) -> int:
        return parallelism_of("", self._session)

    @property
    def is_here(self) -> bool:
        return is_local(str(self._session.conf.get("spark.master", "")))

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
        with errors_of_spark():
            job = session.range(0, count, 1, count).mapInArrow(partial(_answer, task, context, payloads), _SCHEMA)
        table = collect(session, job, name=name, on_done=on_done, stop=stop)
        answers = dict(zip(table["task"].to_pylist(), table["answer"].to_pylist(), strict=True))
        # The workers of this job have pickled them.
        return [outcome for number in range(count) for outcome in pickle.loads(answers[number])]  # noqa: S301


def collect(
    session: SparkSession,
    frame: DataFrame,
    *,
    name: str,
    on_done: TasksDone | None = None,
    stop: threading.Event | None = None,
    passed_on: Callable[[Exception], bool] = lambda _: False,
) -> pa.Table:
    """Return the rows of a DataFrame. `on_done` and `stop` are as for an executor.

    Errors that are `passed_on` are not translated.
    """
    with errors_of_spark(passed_on), _watched(session, name, on_done, stop):
        return frame.toArrow()


def tasks_running(session: SparkSession) -> int:
    """How many tasks occupy the executors, with those of cancelled jobs that have not noticed it yet.

    0 over Spark Connect, which does not tell.
    """
    context = context_of(session)
    with errors_of_spark():
        executors = () if context is None else context._jsc.sc().statusTracker().getExecutorInfos()  # noqa: SLF001
        return sum(executor.numRunningTasks() for executor in executors)


@contextmanager
def cancelled_by(session: SparkSession, stop: threading.Event) -> Iterator[None]:
    """Within the block, all jobs of the session are cancelled as soon as `stop` is set: they raise UnavailableError."""
    context = context_of(session)
    cancel = session.interruptAll if context is None else context.cancelAllJobs
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if stop.wait(_POLL_S) and not over.is_set():
                # Repeated, because the next job may be about to start.
                with suppress(UnavailableError), errors_of_spark():
                    cancel()
                over.wait(_POLL_S)

    watcher = threading.Thread(target=watch, daemon=True)
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
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            items = pickle.loads(payloads[number])  # noqa: S301 - the driver has pickled it
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
        if not _is_of_spark(error) or passed_on(error):
            raise
        if trouble := trouble_of(str(error)):
            raise trouble from error
        raise UnavailableError(
            f"Spark gave the job up: {_reason(error)}",
            operation=ON_SPARK,
            hint="nothing was committed; run it again, and set MAXBROD_SPARK_LOG to a file to keep Spark's log",
        ) from error


def _is_of_spark(error: Exception) -> bool:
    # If the JVM died, connections to its port are refused.
    return isinstance(error, ConnectionError) or type(error).__module__.startswith(("pyspark", "py4j"))


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Lines of a Java stack contain class names such as "…Exception", too.
    messages = [line for line in lines if ("Error" in line or "Exception" in line) and not line.startswith("at ")]
    return (messages or lines or [type(error).__name__])[-1][:500]


@contextmanager
def _watched(
    session: SparkSession, name: str, on_done: TasksDone | None, stop: threading.Event | None
) -> Iterator[None]:
    """Watch the job from another thread, and cancel it from there."""
    job = _job(session, name)
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(job, on_done, stop, ended), daemon=True)
    watched = on_done is not None or stop is not None
    job.begin()
    if watched:
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if watched:
            watcher.join()
        if stop is not None and stop.is_set():
            _await_tasks(job)
        job.end()


def _watch(job: _Job, on_done: TasksDone | None, stop: threading.Event | None, ended: threading.Event) -> None:
    # If Spark exits, the thread that waits for the job reports it.
    with suppress(UnavailableError), errors_of_spark():
        while not ended.wait(_POLL_S):
            if stop is not None and stop.is_set():
                # Repeated, because the job may not have begun yet.
                job.cancel()
            if on_done is not None:
                on_done(job.tasks_done())


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
