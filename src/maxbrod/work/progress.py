"""Progress of a long operation, reported to a callback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`bytes` and `records` are estimates until a wave of tasks is done, and exact then."""

    phase: str
    bytes_done: int = 0
    bytes_total: int = 0
    records_done: int = 0
    tasks_done: int = 0
    tasks_total: int = 0


OnProgress: TypeAlias = "Callable[[Progress], None]"


def silent(_progress: Progress) -> None:
    """Report nothing."""


@dataclass(slots=True)
class Meter:
    """Turns finished tasks into finished bytes: an estimate while a wave runs, and exact when it has ended."""

    on_progress: OnProgress
    phase: str
    total: int
    _before: int = 0
    _size: int = 0
    _tasks: int = 1

    def begin(self, tasks: int, size: int) -> None:
        """Begin a wave of so many tasks and bytes. The wave before it has ended."""
        self._before += self._size
        self._tasks, self._size = max(tasks, 1), size
        self.tasks_done(0)

    def tasks_done(self, count: int) -> None:
        """Report that `count` tasks of the wave have ended."""
        done = self._before + self._size * min(count, self._tasks) // self._tasks
        self.on_progress(Progress(phase=self.phase, bytes_done=done, bytes_total=self.total))
