"""Progress of a long operation, reported to a callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`bytes` and `records` are estimates until a wave of tasks is done, and exact then. A total of 0 is unknown."""

    phase: str
    bytes_done: int = 0
    bytes_total: int = 0
    records_done: int = 0
    tasks_done: int = 0
    tasks_total: int = 0


OnProgress: TypeAlias = "Callable[[Progress], None]"


def silent(_progress: Progress) -> None:
    """Report nothing."""


class Watcher(Protocol):
    """Is told of the progress of a job, by whoever runs it."""

    def seen(self, tasks: int, size: int) -> None:
        """Called several times a second: so many tasks have ended, and all have read so many bytes.

        Workers on other machines cannot tell what they have read: 0.
        """


@dataclass(slots=True)
class Meter:
    """Turns what is seen of the tasks of one wave after the other into progress: estimates, and exact between waves."""

    on_progress: OnProgress
    phase: str
    total: int = 0
    """The bytes of all waves, as planned; 0: unknown."""
    tasks_total: int = 0
    _bytes: int = 0
    _records: int = 0
    _tasks: int = 0
    """Of the waves that have ended."""
    _wave: tuple[int, int] = (0, 0)
    _planned: int = 0
    """The planned bytes of all waves that have begun."""
    _seen: tuple[int, int] = (0, 0)

    def begin(self, tasks: int, size: int) -> None:
        """Begin a wave of so many tasks and planned bytes. The wave before it has ended."""
        self.end()
        self._wave, self._seen = (tasks, size), (0, 0)
        self._planned += size
        self._tell()

    def seen(self, tasks: int, size: int) -> None:
        self._seen = tasks, size
        self._tell()

    def end(self, size: int | None = None, records: int = 0) -> None:
        """End the wave, if one is under way: it has read so many bytes, or as many as planned."""
        tasks, planned = self._wave
        if tasks:
            self._wave, self._seen = (0, 0), (0, 0)
            self._tasks += tasks
            self._bytes += planned if size is None else size
            self._records += records
            self._tell()

    def _tell(self) -> None:
        tasks, planned = self._wave
        ended, size = min(self._seen[0], tasks), self._seen[1]
        # Where tasks count, they know better than an estimate, which may be far from the truth. A task may read less
        # than planned, because it needs no more, or more, because it reads some of it twice.
        done = planned * ended // max(tasks, 1) if not size or ended == tasks else size
        if self.total:
            done = min(done, planned)
        left = max(self.total - self._planned, 0)
        self.on_progress(
            Progress(
                phase=self.phase,
                bytes_done=self._bytes + done,
                bytes_total=self._bytes + planned + left if self.total else 0,
                records_done=self._records,
                tasks_done=self._tasks + ended,
                tasks_total=max(self.tasks_total, self._tasks + tasks),
            )
        )
