"""How an interval gets its work done, in this process or on Spark, and what the failure of a piece of work means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import EXIT_CORRUPT, LogTruncatedError, SequenceGapError
from maxbrod.kafka.produce.refusals import OPERATION as PRODUCE
from maxbrod.replicate.link import State
from maxbrod.replicate.view import places_of
from maxbrod.work.executor import Context, Item, Outcome, Task, Workers
from maxbrod.work.progress import OnProgress, Progress
from maxbrod.work.reach import Needs, Place
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from maxbrod.config import Config
    from maxbrod.work.session import Session

_RACE: Final = frozenset({SequenceGapError.__name__, LogTruncatedError.__name__})
"""Another instance has appended the same records, or the destination has lost some: the log end tells how to go on."""


class IngressWorkers:
    """Does the work of intervals: in this process, or on a Spark session that is opened when it is first needed."""

    def __init__(self, config: Config, session: Session | None, on_progress: OnProgress, stop: threading.Event) -> None:
        kafka, url = places_of(config)
        place = Place(url=url, storage=config.storage)
        needs = Needs(clusters=(kafka,), places=(place,), patience_s=config.patience)
        self._on_progress, self._stop = on_progress, stop
        self._workers = Workers(config.spark, needs=needs, session=session, on_progress=on_progress, stop=stop)

    def close(self) -> None:
        self._workers.close()

    def do(
        self,
        name: str,
        items: Sequence[tuple[int, Item]],
        settings: Callable[[int], Context],
        task: Task[Context, Item, Outcome],
        *,
        alone: bool,
    ) -> list[Outcome]:
        """Return the outcomes of all items, which come with their sizes in bytes.

        `settings` depend on the number of tasks; `alone` is as for an executor.
        """
        if not items:
            return []
        size = sum(size for size, _ in items)
        self._on_progress(Progress(phase="appending", bytes_total=size))
        executor = self._workers.for_bytes(size)
        tasks = spread(items, executor.parallelism)
        return executor.run(task, settings(len(tasks)), tasks, name=name, stop=self._stop, alone=alone)


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
