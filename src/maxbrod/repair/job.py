"""The jobs of a repair on Spark: objects go to workers, and what they hold comes back, as JSON."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter

from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.kafka.slices import salvage_slice
from maxbrod.layouts.kafka.writer import PartitionName
from maxbrod.repair.examine import ObjectToExamine, examine, scan_transactions
from maxbrod.repair.plan.found import Examined, FoundSlice, LostRange, SliceTransactions
from maxbrod.storage.stores import open_storage
from maxbrod.work.jobs import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import SparkSession

    from maxbrod.config import StorageConfig

_OBJECTS: Final = TypeAdapter(list[ObjectToExamine])
_EXAMINED: Final = TypeAdapter(list[Examined])
_FOUND: Final = TypeAdapter(list[FoundSlice])
_TRANSACTIONS: Final = TypeAdapter(list[SliceTransactions])
_LOST: Final = TypeAdapter(list[LostRange])
_SLICES: Final = TypeAdapter(list[Slice | None])


def examine_objects(
    session: SparkSession,
    url: str,
    storage: StorageConfig,
    tasks: Sequence[list[ObjectToExamine]],
    *,
    compacted: Collection[str],
    name: str,
    on_done: Callable[[int], None] | None = None,
) -> list[Examined]:
    """Read all objects, once. A storage error ends the job: nothing is known about an object that was not read."""
    payloads = [_OBJECTS.dump_json(task).decode() for task in tasks]
    function = partial(_examine, url, storage, frozenset(compacted))
    answers = run_tasks(session, function, payloads, name=name, on_done=on_done)
    return [each for answer in answers for each in _EXAMINED.validate_json(answer)]


def scan_slices(
    session: SparkSession, url: str, storage: StorageConfig, slices: Sequence[FoundSlice], *, name: str
) -> list[SliceTransactions]:
    """The transactions of slices of which only the aborted ones were known, in their order."""
    payloads = [_FOUND.dump_json([each]).decode() for each in slices]
    answers = run_tasks(session, partial(_scan, url, storage), payloads, name=name)
    return [each for answer in answers for each in _TRANSACTIONS.validate_json(answer)]


def salvage_slices(
    session: SparkSession, url: str, storage: StorageConfig, lost: Sequence[LostRange], *, run_id: str
) -> list[Slice | None]:
    """Copy the sound batches at the start of damaged slices into new objects, in their order."""
    payloads = [_LOST.dump_json([each]).decode() for each in lost]
    answers = run_tasks(session, partial(_salvage, url, storage, run_id), payloads, name=run_id)
    return [each for answer in answers for each in _SLICES.validate_json(answer)]


def _examine(url: str, options: StorageConfig, compacted: frozenset[str], payload: str) -> str:
    storage = open_storage(url, options)
    found = [examine(storage, item, compacted=compacted) for item in _OBJECTS.validate_json(payload)]
    return _EXAMINED.dump_json(found).decode()


def _scan(url: str, options: StorageConfig, payload: str) -> str:
    storage = open_storage(url, options)
    return _TRANSACTIONS.dump_json(
        [scan_transactions(storage, each) for each in _FOUND.validate_json(payload)]
    ).decode()


def _salvage(url: str, options: StorageConfig, run_id: str, payload: str) -> str:
    storage = open_storage(url, options)
    found = []
    for each in _LOST.validate_json(payload):
        name = PartitionName(topic=each.topic, topic_id=each.topic_id, partition=each.partition)
        found.append(None if each.slice is None else salvage_slice(storage, each.slice, name, run_id=run_id))
    return _SLICES.dump_json(found).decode()
