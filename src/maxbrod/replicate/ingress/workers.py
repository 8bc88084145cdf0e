"""How an interval gets its work done, in this process or on Spark, and what the failure of a piece of work means."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from maxbrod.errors import EXIT_CORRUPT, LogTruncatedError, SequenceGapError
from maxbrod.kafka.produce.refusals import OPERATION as PRODUCE
from maxbrod.replicate.link import State
from maxbrod.replicate.view import places_of
from maxbrod.work.progress import OnProgress, Progress
from maxbrod.work.reach import Needs, Place
from maxbrod.work.session import Session, open_configured, parallelism_of
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.config import Config

SPARK_FROM_BYTES: Final = 64 << 20
"""Less than this is appended by this process: a Spark job takes longer to start than to append it."""
_RACE: Final = frozenset({SequenceGapError.__name__, LogTruncatedError.__name__})
"""Another instance has appended the same records, or the destination has lost some: the log end tells how to go on."""

Item = TypeVar("Item")
Settings = TypeVar("Settings")
Outcome = TypeVar("Outcome")


class Workers:
    """The threads of this process, and a Spark session that is opened when it is first needed."""

    def __init__(self, config: Config, session: Session | None, on_progress: OnProgress, stop: threading.Event) -> None:
        self._config, self._session, self._on_progress, self._stop = config, session, on_progress, stop
        self._undo = ExitStack()

    def close(self) -> None:
        self._undo.close()

    def do(
        self,
        archive: Archive,
        items: Sequence[tuple[int, Item]],
        settings: Callable[[int], Settings],
        task: Callable[[Settings, Sequence[Item]], list[Outcome]],
        job: Callable[..., list[Outcome]],
    ) -> list[Outcome]:
        """The outcomes of all items, which come with their sizes in bytes. `settings` depend on the number of tasks.

        `task` runs here, `job` runs such tasks on Spark.
        """
        if not items:
            return []
        size = sum(size for size, _ in items)
        self._on_progress(Progress(phase="appending", bytes_total=size))
        tasks = spread(items, parallelism_of(self._config.spark.master, self._session))
        if size < SPARK_FROM_BYTES:
            with ThreadPoolExecutor(len(tasks)) as pool:
                answers = pool.map(partial(task, settings(len(tasks))), tasks)
                return [each for answer in answers for each in answer]
        return job(self._spark(archive), settings(len(tasks)), tasks, stop=self._stop)

    def _spark(self, archive: Archive) -> Session:
        if self._session is None:
            self._on_progress(Progress(phase="starting Spark"))
            kafka, _ = places_of(self._config)
            place = Place(url=archive.url, storage=self._config.storage)
            needs = Needs(clusters=(kafka,), places=(place,), patience_s=self._config.patience)
            self._session = self._undo.enter_context(open_configured(self._config.spark, needs=needs, stop=self._stop))
        return self._session


def judge_failure(failure: Mapping[str, Any]) -> tuple[State, str]:
    """The state of a partition that could not be appended to, and why."""
    message, name = str(failure["message"]), str(failure["error"])
    why = f"{message} ({failure['object_name']})" if failure.get("object_name") else message
    if failure["retryable"] or name in _RACE:
        return State.CATCHING_UP, why
    if failure["exit_code"] == EXIT_CORRUPT and failure.get("operation") != PRODUCE:
        # While a bucket is copied here, an object that is missing or cut off may still arrive.
        return State.LATE_SEGMENT, why
    return State.FAULTED, why
