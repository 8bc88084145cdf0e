"""The restore job on Spark: sends items to the workers as JSON, and returns where the logs of their partitions end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from maxbrod.errors import RefusedError
from maxbrod.restore.repartition.items import SharedItem
from maxbrod.restore.task import Restored, RestoreItem, RestoreSettings, run_restore_task
from maxbrod.work.jobs import run_tasks

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class _Payload:
    """The items of one task, by kind."""

    items: tuple[RestoreItem, ...]
    shared: tuple[SharedItem, ...]


@cache
def _payloads() -> TypeAdapter[_Payload]:
    return TypeAdapter(_Payload)


@cache
def _answers() -> TypeAdapter[list[Restored]]:
    return TypeAdapter(list[Restored])


def run_restore_job(
    session: SparkSession,
    settings: RestoreSettings,
    tasks: Sequence[Sequence[RestoreItem | SharedItem]],
    *,
    on_done: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> list[Restored]:
    """The outcome of every item of every task. UnavailableError: `stop` was set before the tasks had finished."""
    # Each partition has one writer. Two attempts side by side would not duplicate records, which have sequence
    # numbers, but they would duplicate the markers in holes, which have none.
    if str(session.conf.get("spark.speculation", "false")).lower() == "true":
        raise RefusedError(
            "this Spark session runs tasks speculatively: two tasks would write to one partition",
            operation="restore",
            hint="restore in a session with spark.speculation=false",
        )
    name = f"restore-{settings.restore_id}"
    payloads = [encode_task(task) for task in tasks]
    answers = run_tasks(session, partial(work, settings), payloads, name=name, on_done=on_done, stop=stop)
    return [each for answer in answers for each in decode_answer(answer)]


def encode_task(task: Sequence[RestoreItem | SharedItem]) -> str:
    payload = _Payload(
        items=tuple(each for each in task if isinstance(each, RestoreItem)),
        shared=tuple(each for each in task if isinstance(each, SharedItem)),
    )
    return _payloads().dump_json(payload).decode()


def decode_answer(answer: str) -> list[Restored]:
    return _answers().validate_json(answer)


def work(settings: RestoreSettings, payload: str) -> str:
    """What a worker does with one task: JSON in, JSON out."""
    task = _payloads().validate_json(payload)
    restored = run_restore_task(settings, task.items) if task.items else []
    for item in task.shared:
        # Loads numba, which a restore that keeps every record's partition does not need.
        from maxbrod.restore.repartition.task import run_shared_task  # noqa: PLC0415

        restored += run_shared_task(settings, item)
    return _answers().dump_json(restored).decode()
