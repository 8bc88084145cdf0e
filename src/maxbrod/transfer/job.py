"""The job that writes archives: partitions go to Spark's workers, and what they wrote comes back, as JSON."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from maxbrod.layouts.registry import NATIVE
from maxbrod.transfer.items import ITEMS, RESULTS
from maxbrod.transfer.task import TransferItem, Transferred, TransferSettings, run_copy_task, run_transfer_task
from maxbrod.work.jobs import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession


def run_transfer_job(
    session: SparkSession,
    settings: TransferSettings,
    tasks: Sequence[Sequence[TransferItem]],
    *,
    on_done: Callable[[int], None] | None = None,
) -> list[Transferred]:
    """The result of every item of every task."""
    payloads = [ITEMS.dump_json(tuple(task)).decode() for task in tasks]
    answers = run_tasks(session, partial(work, settings), payloads, name=settings.run_id, on_done=on_done)
    return [done for answer in answers for done in RESULTS.validate_json(answer)]


def work(settings: TransferSettings, payload: str) -> str:
    """One task, in a worker. Settings travel pickled with the function: JSON would mask their secrets."""
    run = run_copy_task if settings.layout == NATIVE else run_transfer_task
    return RESULTS.dump_json(tuple(run(settings, ITEMS.validate_json(payload)))).decode()
