"""The means of a verb: its configuration, who runs its tasks, how it tells its progress, and how it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Self, TypedDict

from maxbrod.board import Stop
from maxbrod.config import Config
from maxbrod.model import now_ms
from maxbrod.work.executor import Executor, Workers
from maxbrod.work.progress import Meter, OnProgress, Progress, silent
from maxbrod.work.session import Session

if TYPE_CHECKING:
    from maxbrod.work.reach import Needs


class Means(TypedDict, total=False):
    """What a caller may give to any verb, by keyword: see `Work`."""

    session: Session | None
    on_progress: OnProgress
    stop: threading.Event | None


class Work:
    """One call of a verb. Use it in a `with`, which closes a Spark session that was opened for it.

    Any thread may set `stop`: the verb then ends at its next commit, and its report says so.
    """

    def __init__(
        self,
        config: Config,
        *,
        session: Session | None = None,
        executor: Executor | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
        clock_ms: int | None = None,
    ) -> None:
        """`clock_ms` is the time by which ages are judged; None: that of the clock."""
        self.config = config
        self.on_progress = on_progress
        self.stop = stop or Stop()
        self.started_at_ms = now_ms()
        self.clock_ms = self.started_at_ms if clock_ms is None else clock_ms
        self.session = session
        """The Spark session to use, if one is open. A verb may set it."""
        self._executor = executor
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def is_stopped(self) -> bool:
        return self.stop.is_set()

    def tell(self, phase: str) -> None:
        """Report that a phase begins."""
        self.on_progress(Progress(phase=phase))

    @contextmanager
    def looking(self, phase: str) -> Iterator[None]:
        """Within the block, a phase that changes nothing and runs no tasks, a signal ends at once: StoppedError."""
        self.tell(phase)
        with self.stop.raising() if isinstance(self.stop, Stop) else nullcontext():
            yield

    def meter(self, phase: str, bytes_total: int = 0, *, tasks: int | None = None) -> Meter:
        """Return a meter for the jobs of this phase, which read so many bytes; 0: unknown.

        With `tasks` there is one wave of so many, which begins now.
        """
        meter = Meter(self.on_progress, phase, bytes_total)
        if tasks is not None:
            meter.begin(tasks, bytes_total)
        return meter

    def workers(self, needs: Needs, *, jvm_works: bool = False) -> Workers:
        """Return who runs tasks, until the end of this work. `needs` is tested on the workers of a Spark cluster."""
        return self._undo.enter_context(
            Workers(
                self.config.spark,
                needs=needs,
                jvm_works=jvm_works,
                session=self.session,
                executor=self._executor,
                on_progress=self.on_progress,
                stop=self.stop,
            )
        )
