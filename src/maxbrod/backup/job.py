"""The backup job: tasks out to the workers, outcomes back, as JSON. Nothing of the data itself comes this way."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from maxbrod.backup.plan.items import Damage, Failure, FailureKind, Outcome, RangeItem, Task
from maxbrod.backup.task import TaskSettings, run_backup_task
from maxbrod.engine.jobs import run_tasks
from maxbrod.layouts.travelling import decode_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession


def run_backup_job(
    session: SparkSession,
    settings: TaskSettings,
    tasks: Sequence[Task],
    *,
    on_done: Callable[[int], None] | None = None,
) -> list[Outcome]:
    """What became of every item of every task."""
    payloads = [encode_task(task) for task in tasks]
    answers = run_tasks(session, partial(_work, settings), payloads, name=settings.run_id, on_done=on_done)
    return [outcome for answer in answers for outcome in decode_outcomes(answer)]


def _work(settings: TaskSettings, payload: str) -> str:
    return encode_outcomes(run_backup_task(settings, decode_task(payload)))


def encode_task(task: Task) -> str:
    return json.dumps([asdict(item) for item in task.items])


def decode_task(text: str) -> Task:
    return Task(items=tuple(RangeItem(**values) for values in json.loads(text)))


def encode_outcomes(outcomes: Sequence[Outcome]) -> str:
    return json.dumps([asdict(outcome) for outcome in outcomes])


def decode_outcomes(text: str) -> list[Outcome]:
    return [_outcome(values) for values in json.loads(text)]


def _outcome(values: dict[str, Any]) -> Outcome:
    failure = values["failure"]
    return Outcome(
        item=RangeItem(**values["item"]),
        slices=tuple(decode_slice(each) for each in values["slices"]),
        reached=values["reached"],
        log_start_offset=values["log_start_offset"],
        damages=tuple(Damage(**each) for each in values["damages"]),
        failure=failure and Failure(**{**failure, "trouble": FailureKind(failure["trouble"])}),
    )
