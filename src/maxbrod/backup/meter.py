"""Turns tasks that are done into bytes that are done, for whoever watches a backup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.engine.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maxbrod.backup.plan.items import Outcome
    from maxbrod.backup.plan.tasks import Wave
    from maxbrod.engine.progress import OnProgress


class Meter:
    """Bytes are estimates while a wave is read, and what they really were afterwards."""

    def __init__(self, on_progress: OnProgress, waves: Sequence[Wave]) -> None:
        self._on_progress = on_progress
        self._waves = [(len(wave), sum(task.bytes_estimate for task in wave)) for wave in waves]
        self._wave = 0
        self._bytes = self._records = self._tasks = 0
        if waves:
            self.tasks_done(0)

    def tasks_done(self, count: int) -> None:
        """Of the wave under way."""
        left = self._waves[self._wave :]
        tasks, size = left[0] if left else (0, 0)
        count = min(count, tasks)
        self._on_progress(
            Progress(
                phase="reading",
                bytes_done=self._bytes + (size * count // tasks if tasks else 0),
                bytes_total=self._bytes + sum(each for _, each in left),
                records_done=self._records,
                tasks_done=self._tasks + count,
                tasks_total=self._tasks + sum(each for each, _ in left),
            )
        )

    def wave_done(self, outcomes: Iterable[Outcome] = ()) -> None:
        self._tasks += self._waves[self._wave][0]
        for outcome in outcomes:
            self._bytes += sum(each.raw_bytes for each in outcome.slices)
            self._records += sum(each.records for each in outcome.slices)
        self._wave += 1
        self.tasks_done(0)
