"""Reads archives of other layouts through on Spark: every record of every segment, and every checksum that there is."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.columns import number_column
from maxbrod.engine.jobs import run_tasks
from maxbrod.errors import MaxbrodError
from maxbrod.layouts.foreign import BatchLayout, Fault
from maxbrod.layouts.registry import layout_of
from maxbrod.layouts.travelling import segment_of
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from maxbrod.config import StorageConfig
    from maxbrod.layouts.foreign import ForeignSegment
    from maxbrod.storage.interface import Storage


def run_foreign_check(
    session: SparkSession,
    url: str,
    storage: StorageConfig,
    tasks: Sequence[Sequence[str]],
    *,
    on_done: Callable[[int], None] | None = None,
) -> list[Fault]:
    """What is wrong with segments, each described as `travelling.describe` does it."""
    payloads = [json.dumps(list(task)) for task in tasks]
    answers = run_tasks(session, partial(_work, url, storage), payloads, name="check", on_done=on_done)
    return [Fault(**values) for answer in answers for values in json.loads(answer)]


def _work(url: str, options: StorageConfig, payload: str) -> str:
    storage = open_storage(url, options)
    found = [_check(storage, *segment_of(details)) for details in json.loads(payload)]
    return json.dumps([asdict(fault) for fault in found if fault is not None])


def _check(storage: Storage, layout: str, segment: ForeignSegment) -> Fault | None:
    records, last = 0, segment.base_offset - 1
    try:
        for batch in layout_of(layout).read(storage, segment, columns=["offset"]):
            offsets = number_column(batch.column(0))
            wrong = np.flatnonzero(np.diff(offsets, prepend=np.int64(last)) <= 0)
            if wrong.size:
                return Fault(path=segment.path, message="offsets do not rise", offset=int(offsets[wrong[0]]))
            records += offsets.size
            last = int(offsets[-1]) if offsets.size else last
    except MaxbrodError as error:
        return Fault(path=segment.path, message=error.message, offset=error.offset)
    # Batches count what an application does not see, and their own checksums have vouched for them.
    counted = not isinstance(layout_of(layout), BatchLayout)
    if counted and segment.records is not None and records != segment.records:
        message = f"it has {records} records, {segment.records} are announced"
        return Fault(path=segment.path, message=message, offset=segment.base_offset)
    if records and last >= segment.end_offset:
        return Fault(path=segment.path, message="it has records beyond its end", offset=last)
    return None
