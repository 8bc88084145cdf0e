"""The restore job: partitions out to the workers, where their logs end now back, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from maxbrod.batch.provenance import Provenance
from maxbrod.engine.jobs import run_tasks
from maxbrod.errors import RefusedError
from maxbrod.layouts.travelling import decode_slice
from maxbrod.model import TopicPartition
from maxbrod.restore.items import decode_shared, is_shared
from maxbrod.restore.task import Restored, RestoreItem, RestoreSettings, run_restore_task

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from maxbrod.restore.items import SharedItem


def run_restore_job(
    session: SparkSession,
    settings: RestoreSettings,
    tasks: Sequence[Sequence[RestoreItem | SharedItem]],
    *,
    on_done: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> list[Restored]:
    """What became of every item of every task. UnavailableError where `stop` was set before they were done."""
    if str(session.conf.get("spark.speculation", "false")).lower() == "true":
        raise RefusedError(
            "this Spark session speculates: two tasks would write to one partition",
            operation="restore",
            hint="restore in a session with spark.speculation=false",
        )
    payloads = [json.dumps([asdict(item) for item in task]) for task in tasks]
    name = f"restore-{settings.restore_id}"
    answers = run_tasks(session, partial(_work, settings), payloads, name=name, on_done=on_done, stop=stop)
    return [_restored(values) for answer in answers for values in json.loads(answer)]


def _work(settings: RestoreSettings, payload: str) -> str:
    values = json.loads(payload)
    items = [_item(each) for each in values if not is_shared(each)]
    restored = run_restore_task(settings, items) if items else []
    for each in values:
        if is_shared(each):
            restored += _work_shared(settings, each)
    return json.dumps([asdict(each) for each in restored])


def _work_shared(settings: RestoreSettings, values: dict[str, Any]) -> list[Restored]:
    # Numba, which a restore that changes no record's partition has no use for.
    from maxbrod.restore.repartition.task import run_shared_task  # noqa: PLC0415

    return run_shared_task(settings, decode_shared(values))


def _item(values: dict[str, Any]) -> RestoreItem:
    slices = tuple(decode_slice(each) for each in values["slices"])
    provenance = values["provenance"] and Provenance(**values["provenance"])
    where = TopicPartition(**values["where"])
    return RestoreItem(**{**values, "where": where, "slices": slices, "provenance": provenance})


def _restored(values: dict[str, Any]) -> Restored:
    return Restored(**{**values, "where": TopicPartition(**values["where"])})
