"""The job that writes partitions into log directories of this machine, and how far it is."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError
from maxbrod.layouts.logdir.installation import staged_bytes
from maxbrod.restore.cold.task import ColdItem, ColdSettings, ColdWritten, run_cold_task
from maxbrod.work.progress import OnProgress, Progress, silent

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from pathlib import Path

    from maxbrod.work.executor import Executor, TasksDone


_LOOKING_SHARE: Final = 0.1
"""The part of the time that is spent on looking how far it is: 100,000 folders take a while."""


def run_cold_tasks(
    executor: Executor,
    settings: ColdSettings,
    tasks: Sequence[Sequence[ColdItem]],
    *,
    on_done: TasksDone | None = None,
    stop: threading.Event | None = None,
) -> list[ColdWritten]:
    """Return the outcome of every item. UnavailableError: `stop` was set before the tasks had finished.

    RefusedError: the tasks may run on other machines, which do not have these directories.
    """
    if not executor.is_here:
        raise RefusedError(
            "this Spark session runs elsewhere, and log directories are on this machine",
            operation="restore",
            hint="leave out --master, or say --master 'local[*]'",
        )
    return executor.run(
        run_cold_task, settings, tasks, name=f"restore-{settings.restore_id}", on_done=on_done, stop=stop
    )


class ColdMeter:
    """How far the job is, seen from the driver: how many bytes the tasks have staged in the directories."""

    def __init__(self, directories: Sequence[Path], on_progress: OnProgress, *, bytes_total: int, tasks: int) -> None:
        self._directories, self._on_progress = directories, on_progress
        self._bytes_total, self._tasks = bytes_total, tasks
        self._bytes = 0
        self._next = 0.0

    def tasks_done(self, count: int) -> None:
        """Called from one thread at a time."""
        now = time.monotonic()
        if self._on_progress is not silent and now >= self._next:
            # A task that failed removes what it wrote, perhaps at this moment.
            with suppress(OSError):
                self._bytes = min(sum(map(staged_bytes, self._directories)), self._bytes_total)
            self._next = now + (time.monotonic() - now) / _LOOKING_SHARE
        self._on_progress(
            Progress(
                phase="restoring",
                bytes_done=self._bytes,
                bytes_total=self._bytes_total,
                tasks_done=count,
                tasks_total=self._tasks,
            )
        )
