"""The deep check as a Spark job: each task reads slices whole, and tells what does not hold of them. Writes nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from maxbrod.engine.jobs import run_tasks
from maxbrod.layouts.kafka.verifying import verify_slice
from maxbrod.layouts.travelling import decode_slice
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from maxbrod.config import StorageConfig
    from maxbrod.layouts.kafka.slices import Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceProblem:
    """What is wrong with a slice, which is named by its place in the list that was given."""

    number: int
    offset: int
    message: str


def verify_slices(
    session: SparkSession,
    archive_url: str,
    storage: StorageConfig,
    tasks: Sequence[Sequence[tuple[int, Slice]]],
    *,
    name: str,
    on_done: Callable[[int], None] | None = None,
) -> list[SliceProblem]:
    """Each task is numbered slices. An error of the storage ends the job: what was not read may be sound or not."""
    payloads = [json.dumps([(number, asdict(each)) for number, each in task]) for task in tasks]
    answers = run_tasks(session, partial(_work, archive_url, storage), payloads, name=name, on_done=on_done)
    return [SliceProblem(**each) for answer in answers for each in json.loads(answer)]


def _work(archive_url: str, options: StorageConfig, payload: str) -> str:
    storage = open_storage(archive_url, options)
    return json.dumps(
        [
            asdict(SliceProblem(number=number, offset=problem.offset, message=problem.message))
            for number, values in json.loads(payload)
            for problem in verify_slice(storage, decode_slice(values))
        ]
    )
