"""The Spark job that transforms records: workers read partitions, Spark applies the expressions, workers write the
result and return what they wrote as JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from maxbrod import strict_json
from maxbrod.transform.columns import schema_of
from maxbrod.transform.frame import is_mistake, mistakes, transformed
from maxbrod.transform.task import Transformed, TransformSettings, read_rows, write_rows
from maxbrod.work.jobs import collect
from maxbrod.work.settling import settled

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from maxbrod.transfer.task import TransferItem
    from maxbrod.transform.plan import Transform


def run_transform_job(
    session: SparkSession,
    settings: TransformSettings,
    transform: Transform,
    tasks: Sequence[Sequence[TransferItem]],
    *,
    on_done: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> list[Transformed]:
    """The outcome of every item of every task. UsageError: an expression fails on a record.

    Reading, expressions and writing are one stage: Spark neither shuffles nor stores records in between.
    """
    payloads = tuple(json.dumps([asdict(item) for item in task]) for task in tasks)
    if not payloads:
        return []
    with mistakes("an expression fails"):
        rows = session.range(0, len(payloads), 1, len(payloads)).mapInArrow(
            partial(settled, partial(read_rows, settings, payloads)), schema_of(settings.shown)
        )
        answers = transformed(rows, transform).mapInArrow(
            partial(settled, partial(write_rows, settings, payloads)), "answer string"
        )
        table = collect(session, answers, name=settings.run_id, on_done=on_done, stop=stop, passed_on=is_mistake)
    return [_transformed(values) for answer in table["answer"].to_pylist() for values in strict_json.parse(answer)]


def _transformed(values: dict[str, Any]) -> Transformed:
    return Transformed(**{**values, "segments": tuple(values["segments"])})
