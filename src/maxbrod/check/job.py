"""The deep checks as Spark jobs: each task reads slices or segments whole and returns what is wrong. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from pydantic import TypeAdapter

from maxbrod.batch.columns import number_column
from maxbrod.errors import BatchLimitError, MaxbrodError
from maxbrod.layouts.foreign import Fault, ForeignSegment
from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.layouts.registry import layout_of
from maxbrod.layouts.travelling import segment_of
from maxbrod.storage.stores import open_storage
from maxbrod.work.jobs import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from maxbrod.config import StorageConfig
    from maxbrod.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceProblem:
    """What is wrong with a slice. `number` is its index in the list that was given."""

    number: int
    offset: int
    message: str
    limit: bool = False
    """It is sound, but larger than what is looked into."""


_SLICES: Final = TypeAdapter(list[tuple[int, Slice]])
_PROBLEMS: Final = TypeAdapter(list[SliceProblem])
_SEGMENTS: Final = TypeAdapter(list[str])
_FAULTS: Final = TypeAdapter(list[Fault])


def verify_slices(
    session: SparkSession,
    archive_url: str,
    storage: StorageConfig,
    tasks: Sequence[list[tuple[int, Slice]]],
    *,
    name: str,
    on_done: Callable[[int], None] | None = None,
) -> list[SliceProblem]:
    """Verify numbered slices. A storage error ends the job: a slice that was not read may be sound or damaged."""
    payloads = [_SLICES.dump_json(task).decode() for task in tasks]
    answers = run_tasks(session, partial(_verify_slices, archive_url, storage), payloads, name=name, on_done=on_done)
    return [each for answer in answers for each in _PROBLEMS.validate_json(answer)]


def check_segments(
    session: SparkSession,
    url: str,
    storage: StorageConfig,
    tasks: Sequence[list[str]],
    *,
    on_done: Callable[[int], None] | None = None,
) -> list[Fault]:
    """Read segments of another layout: every record, every checksum. `travelling.describe` makes their descriptions."""
    payloads = [_SEGMENTS.dump_json(task).decode() for task in tasks]
    answers = run_tasks(session, partial(_check_segments, url, storage), payloads, name="check", on_done=on_done)
    return [each for answer in answers for each in _FAULTS.validate_json(answer)]


def _verify_slices(archive_url: str, options: StorageConfig, payload: str) -> str:
    storage = open_storage(archive_url, options)
    problems = [
        SliceProblem(number=number, offset=problem.offset, message=problem.message, limit=problem.limit)
        for number, each in _SLICES.validate_json(payload)
        for problem in verify_slice(storage, each)
    ]
    return _PROBLEMS.dump_json(problems).decode()


def _check_segments(url: str, options: StorageConfig, payload: str) -> str:
    storage = open_storage(url, options)
    faults = [_check_segment(storage, *segment_of(details)) for details in _SEGMENTS.validate_json(payload)]
    return _FAULTS.dump_json([fault for fault in faults if fault is not None]).decode()


def _check_segment(storage: Storage, layout: str, segment: ForeignSegment) -> Fault | None:
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
        # Larger than what is decoded is no damage.
        fatal = not isinstance(error, BatchLimitError)
        return Fault(path=segment.path, message=error.message, offset=error.offset, fatal=fatal)
    # Batches also count control records, which readers do not return; their own checksums cover them.
    counted = layout_of(layout).read_batches is None
    if counted and segment.records is not None and records != segment.records:
        message = f"it has {records} records, its metadata says {segment.records}"
        return Fault(path=segment.path, message=message, offset=segment.base_offset)
    if records and last >= segment.end_offset:
        return Fault(path=segment.path, message="it has records beyond its end", offset=last)
    return None
