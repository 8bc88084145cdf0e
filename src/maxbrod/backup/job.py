"""The backup job: tasks go to Spark's workers and outcomes come back, as JSON. No data travels this way."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter

from maxbrod.backup.plan.items import Outcome, Task
from maxbrod.backup.task import TaskSettings, run_backup_task
from maxbrod.work.jobs import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

TASK: Final = TypeAdapter(Task)
OUTCOMES: Final = TypeAdapter(tuple[Outcome, ...])


def run_backup_job(
    session: SparkSession,
    settings: TaskSettings,
    tasks: Sequence[Task],
    *,
    on_done: Callable[[int], None] | None = None,
) -> list[Outcome]:
    """The outcome of every item of every task."""
    payloads = [TASK.dump_json(task).decode() for task in tasks]
    answers = run_tasks(session, partial(work, settings), payloads, name=settings.run_id, on_done=on_done)
    return [outcome for answer in answers for outcome in OUTCOMES.validate_json(answer)]


def work(settings: TaskSettings, payload: str) -> str:
    """One task, in a worker. Settings travel pickled with the function: JSON would mask their secrets."""
    return OUTCOMES.dump_json(run_backup_task(settings, TASK.validate_json(payload))).decode()
