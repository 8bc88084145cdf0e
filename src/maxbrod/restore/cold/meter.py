"""How far a restore into log directories is, seen from the driver: how much has been written aside."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from maxbrod.engine.progress import Progress, silent
from maxbrod.layouts.logdir.installing import staged_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from maxbrod.engine.progress import OnProgress

_SHARE: Final = 0.1
"""Of the time: looking at 100,000 folders takes a while."""


class ColdMeter:
    def __init__(self, directories: Sequence[Path], on_progress: OnProgress, *, bytes_total: int, tasks: int) -> None:
        self._directories, self._on_progress = directories, on_progress
        self._bytes_total, self._tasks = bytes_total, tasks
        self._bytes = 0
        self._next = 0.0

    def tasks_done(self, count: int) -> None:
        """From one thread at a time."""
        now = time.monotonic()
        if self._on_progress is not silent and now >= self._next:
            # A task that failed removes what it wrote, perhaps at this moment.
            with suppress(OSError):
                self._bytes = min(sum(map(staged_bytes, self._directories)), self._bytes_total)
            self._next = now + (time.monotonic() - now) / _SHARE
        self._on_progress(
            Progress(
                phase="restoring",
                bytes_done=self._bytes,
                bytes_total=self._bytes_total,
                tasks_done=count,
                tasks_total=self._tasks,
            )
        )
