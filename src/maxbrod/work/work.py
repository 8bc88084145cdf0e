"""What a verb works with: its configuration, who runs its tasks, how it tells its progress, and how it is stopped."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from maxbrod.errors import UsageError
from maxbrod.model import now_ms
from maxbrod.work.executor import Executor, Workers
from maxbrod.work.progress import Meter, OnProgress, Progress, silent

if TYPE_CHECKING:
    from maxbrod.config import Config, KafkaConfig
    from maxbrod.work.reach import Needs
    from maxbrod.work.session import Session


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
        self.stop = stop or threading.Event()
        self.started_at_ms = now_ms()
        self.clock_ms = self.started_at_ms if clock_ms is None else clock_ms
        self._session, self._executor = session, executor
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def archive_url(self) -> str:
        """The archive. UsageError: none is named."""
        if self.config.archive is None:
            raise UsageError(
                "no archive is named", hint="give --archive URL, or 'archive: URL' in the configuration file"
            )
        return self.config.archive

    @property
    def kafka(self) -> KafkaConfig:
        """The cluster. UsageError: none is named."""
        if self.config.kafka is None:
            raise UsageError("no cluster is named", hint="give --bootstrap, or kafka.bootstrap in the configuration")
        return self.config.kafka

    def is_stopped(self) -> bool:
        return self.stop.is_set()

    def tell(self, phase: str) -> None:
        """Report that a phase begins."""
        self.on_progress(Progress(phase=phase))

    def meter(self, phase: str, bytes_total: int = 0) -> Meter:
        """Return a meter that turns finished tasks of this phase into finished bytes."""
        return Meter(self.on_progress, phase, bytes_total)

    def workers(self, needs: Needs, *, jvm_works: bool = False) -> Workers:
        """Return who runs tasks, until the end of this work. `needs` is tested on the workers of a Spark cluster."""
        return self._undo.enter_context(
            Workers(
                self.config.spark,
                needs=needs,
                jvm_works=jvm_works,
                session=self._session,
                executor=self._executor,
                on_progress=self.on_progress,
                stop=self.stop,
            )
        )
