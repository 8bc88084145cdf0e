"""The job that writes partitions into log directories of this machine: items out to the workers, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from maxbrod.engine.jobs import run_tasks
from maxbrod.errors import RefusedError
from maxbrod.layouts.logdir.log_writing import WrittenLog
from maxbrod.layouts.travelling import decode_slice
from maxbrod.model import TopicPartition
from maxbrod.restore.cold.task import ColdItem, ColdSettings, ColdWritten, run_cold_task

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession


def run_cold_job(
    session: SparkSession,
    settings: ColdSettings,
    tasks: Sequence[Sequence[ColdItem]],
    *,
    on_done: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> list[ColdWritten]:
    """What became of every item of every task. UnavailableError where `stop` was set before they were done.

    RefusedError: the session's workers may stand on other machines, which do not have these directories.
    """
    if not str(session.conf.get("spark.master", "")).startswith("local"):
        raise RefusedError(
            "this Spark session runs elsewhere, and log directories are on this machine",
            operation="restore",
            hint="leave out --master, or say --master 'local[*]'",
        )
    payloads = [json.dumps([asdict(item) for item in task]) for task in tasks]
    name = f"restore-{settings.restore_id}"
    answers = run_tasks(session, partial(_work, settings), payloads, name=name, on_done=on_done, stop=stop)
    return [_written(values) for answer in answers for values in json.loads(answer)]


def _work(settings: ColdSettings, payload: str) -> str:
    items = [_item(values) for values in json.loads(payload)]
    return json.dumps([asdict(each) for each in run_cold_task(settings, items)])


def _item(values: dict[str, Any]) -> ColdItem:
    slices = tuple(decode_slice(each) for each in values["slices"])
    directories = tuple(values["directories"])
    where = TopicPartition(**values["where"])
    return ColdItem(**{**values, "where": where, "slices": slices, "directories": directories})


def _written(values: dict[str, Any]) -> ColdWritten:
    log = values["log"] and WrittenLog(**values["log"])
    return ColdWritten(**{**values, "where": TopicPartition(**values["where"]), "log": log})
