"""Runs tasks on Spark: one work item in, one answer out, as text. DataFrames only, so that Spark Connect works too.

The number of tasks is the number of payloads: Spark neither splits nor merges them. Payloads travel with the function,
because where Spark would cut a table of them is Spark's to choose.
"""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from maxbrod.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    TasksDone = Callable[[int], None]

ON_SPARK: Final = "run on Spark"
_POLL_S: Final = 0.2
_SCHEMA: Final = "task bigint, answer string"
_ANSWERS: Final = pa.schema([("task", pa.int64()), ("answer", pa.string())])


def run_tasks(
    session: SparkSession,
    function: Callable[[str], str],
    payloads: Sequence[str],
    *,
    name: str,
    on_done: TasksDone | None = None,
) -> list[str]:
    """The answer to each payload, in their order. `on_done` hears now and then how many tasks are done.

    `function` is importable by its name, or a `functools.partial` of such: it is called in Python workers.
    """
    count = len(payloads)
    if not count:
        return []
    with _errors_of_spark():
        job = session.range(0, count, 1, count).mapInArrow(partial(_answer, function, tuple(payloads)), _SCHEMA)
        with _watched(session, name, on_done):
            table = job.toArrow()
    answers = dict(zip(table["task"].to_pylist(), table["answer"].to_pylist(), strict=True))
    return [answers[number] for number in range(count)]


@contextmanager
def cancelled_by(session: SparkSession, stop: threading.Event) -> Iterator[None]:
    """Within the block, all jobs of the session end as soon as `stop` is set: with UnavailableError, where they run.

    Spark Connect has no way to do so: there, a job that runs comes to its end.
    """
    context = _context(session)
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if stop.wait(_POLL_S) and not over.is_set():
                # Again and again: the next job may be about to start.
                with suppress(UnavailableError), _errors_of_spark():
                    context.cancelAllJobs()
                over.wait(_POLL_S)

    watcher = threading.Thread(target=watch, daemon=True)
    if context is not None:
        watcher.start()
    try:
        yield
    finally:
        over.set()
        if context is not None:
            watcher.join()


def _answer(
    function: Callable[[str], str], payloads: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            answer = {"task": number, "answer": function(payloads[number])}
            yield pa.RecordBatch.from_pylist([answer], schema=_ANSWERS)
    _settle()


@cache
def _settle() -> None:
    """Once in the life of a worker, when all modules are loaded: nothing of them ever becomes garbage.

    PySpark's workers collect garbage after every task; looking through the modules took 45 ms each time.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def _errors_of_spark() -> Iterator[None]:
    """Whatever Spark raises, classic or Connect, means that a task failed as often as it may, or that Spark is gone."""
    try:
        yield
    except Exception as error:
        if not _is_of_spark(error):
            raise
        raise UnavailableError(
            f"Spark gave the job up: {_reason(error)}",
            operation=ON_SPARK,
            hint="nothing was committed; run it again, and set MAXBROD_SPARK_LOG to a file to keep Spark's log",
        ) from error


def _is_of_spark(error: Exception) -> bool:
    # A JVM that died leaves a port at which nobody answers.
    return isinstance(error, ConnectionError) or type(error).__module__.startswith(("pyspark", "py4j"))


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    return (telling or lines or [type(error).__name__])[-1][:500]


@contextmanager
def _watched(session: SparkSession, name: str, on_done: TasksDone | None) -> Iterator[None]:
    """Looks at the job from another thread. Spark Connect has no tracker: nothing is heard of its tasks."""
    context = _context(session)
    if context is None:
        yield
        return
    context.setJobGroup(name, name)
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context, name, on_done, stop), daemon=True)
    if on_done is not None:
        watcher.start()
    try:
        yield
    finally:
        stop.set()
        if on_done is not None:
            watcher.join()


def _context(session: SparkSession) -> Any:  # noqa: ANN401 - a SparkContext
    try:
        return session.sparkContext
    except Exception as error:
        if type(error).__module__.startswith("pyspark"):
            return None
        raise


def _watch(context: Any, group: str, on_done: TasksDone, stop: threading.Event) -> None:  # noqa: ANN401
    # If Spark goes away, the thread that waits for the job will say so.
    with suppress(UnavailableError), _errors_of_spark():
        tracker = context.statusTracker()
        while not stop.wait(_POLL_S):
            stages = [
                stage
                for job in tracker.getJobIdsForGroup(group)
                for stage in map(tracker.getStageInfo, getattr(tracker.getJobInfo(job), "stageIds", ()))
                if stage is not None
            ]
            on_done(sum(stage.numCompletedTasks for stage in stages))
