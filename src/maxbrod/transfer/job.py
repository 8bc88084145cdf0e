"""The job that writes archives in other layouts: partitions out to the workers, what they wrote back, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from maxbrod.engine.jobs import run_tasks
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import TopicPartition
from maxbrod.transfer.copy_task import run_copy_task
from maxbrod.transfer.items import decode_item
from maxbrod.transfer.task import Transferred, TransferSettings, run_transfer_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from maxbrod.transfer.task import TransferItem


def run_transfer_job(
    session: SparkSession,
    settings: TransferSettings,
    tasks: Sequence[Sequence[TransferItem]],
    *,
    on_done: Callable[[int], None] | None = None,
) -> list[Transferred]:
    """What became of every item of every task."""
    payloads = [json.dumps([asdict(item) for item in task]) for task in tasks]
    answers = run_tasks(session, partial(_work, settings), payloads, name=settings.run_id, on_done=on_done)
    return [_transferred(values) for answer in answers for values in json.loads(answer)]


def _work(settings: TransferSettings, payload: str) -> str:
    items = [decode_item(values) for values in json.loads(payload)]
    run = run_copy_task if settings.layout == NATIVE else run_transfer_task
    return json.dumps([asdict(each) for each in run(settings, items)])


def _transferred(values: dict[str, Any]) -> Transferred:
    return Transferred(**{**values, "where": TopicPartition(**values["where"]), "segments": tuple(values["segments"])})
