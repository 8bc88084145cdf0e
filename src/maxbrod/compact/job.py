"""Compaction as Spark jobs. A task opens its own storage; only descriptions travel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter

from maxbrod.compact.task import MergeItem, MergeOutcome, merge_group
from maxbrod.compact.tree import TreeItem, TreeOutcome, merge_folder
from maxbrod.storage.stores import open_storage
from maxbrod.work.jobs import run_tasks

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from maxbrod.config import StorageConfig
    from maxbrod.layouts.kafka.format import Compression


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """Where the work is done. Contains secrets."""

    archive_url: str
    storage: StorageConfig
    name: str
    on_done: Callable[[int], None] | None = None
    stop: threading.Event | None = None


_ITEMS: Final = TypeAdapter(tuple[MergeItem, ...])
_OUTCOMES: Final = TypeAdapter(list[MergeOutcome])
_FOLDERS: Final = TypeAdapter(tuple[TreeItem, ...])
_MERGED: Final = TypeAdapter(list[TreeOutcome])


def merge_groups(
    session: SparkSession, place: JobPlace, tasks: Sequence[Sequence[MergeItem]], compression: Compression
) -> list[MergeOutcome]:
    """Merge the groups of each task one after the other."""
    payloads = [_ITEMS.dump_json(tuple(task)).decode() for task in tasks]
    function = partial(_merge_groups, place.archive_url, place.storage, compression)
    answers = run_tasks(session, function, payloads, name=place.name, on_done=place.on_done, stop=place.stop)
    return [each for answer in answers for each in _OUTCOMES.validate_json(answer)]


def _merge_groups(archive_url: str, options: StorageConfig, compression: Compression, payload: str) -> str:
    storage = open_storage(archive_url, options)
    outcomes = [merge_group(storage, item, compression) for item in _ITEMS.validate_json(payload)]
    return _OUTCOMES.dump_json(outcomes).decode()


def merge_folders(session: SparkSession, place: JobPlace, tasks: Sequence[Sequence[TreeItem]]) -> list[TreeOutcome]:
    """The same for partitions of a tree of the layout parquet."""
    payloads = [_FOLDERS.dump_json(tuple(task)).decode() for task in tasks]
    function = partial(_merge_folders, place.archive_url, place.storage)
    answers = run_tasks(session, function, payloads, name=place.name, on_done=place.on_done, stop=place.stop)
    return [each for answer in answers for each in _MERGED.validate_json(answer)]


def _merge_folders(archive_url: str, options: StorageConfig, payload: str) -> str:
    storage = open_storage(archive_url, options)
    return _MERGED.dump_json([merge_folder(storage, item) for item in _FOLDERS.validate_json(payload)]).decode()
