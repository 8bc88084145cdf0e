"""The Spark job that writes partitions into log directories of this machine, and how far it is."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter

from maxbrod.errors import RefusedError
from maxbrod.layouts.logdir.installation import staged_bytes
from maxbrod.restore.cold.task import ColdItem, ColdSettings, ColdWritten, run_cold_task
from maxbrod.work.jobs import run_tasks
from maxbrod.work.progress import OnProgress, Progress, silent

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession


_LOOKING_SHARE: Final = 0.1
"""The part of the time that is spent on looking how far it is: 100,000 folders take a while."""


@cache
def _payloads() -> TypeAdapter[list[ColdItem]]:
    return TypeAdapter(list[ColdItem])


@cache
def _answers() -> TypeAdapter[list[ColdWritten]]:
    return TypeAdapter(list[ColdWritten])


def run_cold_job(
    session: SparkSession,
    settings: ColdSettings,
    tasks: Sequence[Sequence[ColdItem]],
    *,
    on_done: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> list[ColdWritten]:
    """The outcome of every item of every task. UnavailableError: `stop` was set before the tasks had finished.

    RefusedError: the session's workers may run on other machines, which do not have these directories.
    """
    if not str(session.conf.get("spark.master", "")).startswith("local"):
        raise RefusedError(
            "this Spark session runs elsewhere, and log directories are on this machine",
            operation="restore",
            hint="leave out --master, or say --master 'local[*]'",
        )
    name = f"restore-{settings.restore_id}"
    payloads = [encode_task(task) for task in tasks]
    answers = run_tasks(session, partial(work, settings), payloads, name=name, on_done=on_done, stop=stop)
    return [each for answer in answers for each in decode_answer(answer)]


def encode_task(task: Sequence[ColdItem]) -> str:
    return _payloads().dump_json(list(task)).decode()


def decode_answer(answer: str) -> list[ColdWritten]:
    return _answers().validate_json(answer)


def work(settings: ColdSettings, payload: str) -> str:
    """What a worker does with one task: JSON in, JSON out."""
    return _answers().dump_json(run_cold_task(settings, _payloads().validate_json(payload))).decode()


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
