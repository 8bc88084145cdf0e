"""The tasks of compaction. A task opens its own storage; only descriptions travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.compact.task import MergeItem, MergeOutcome, merge_group
from maxbrod.compact.tree import TreeItem, TreeOutcome, merge_folder
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.kafka.format import Compression
    from maxbrod.work.reach import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeContext:
    """What all tasks share. Contains secrets."""

    place: Place
    compression: Compression


def merge_groups(context: MergeContext, items: Sequence[MergeItem]) -> list[MergeOutcome]:
    """Merge groups one after the other."""
    storage = open_storage(context.place.url, context.place.storage)
    return [merge_group(storage, item, context.compression) for item in items]


def merge_folders(place: Place, items: Sequence[TreeItem]) -> list[TreeOutcome]:
    """Merge partitions of a tree of the layout parquet."""
    storage = open_storage(place.url, place.storage)
    return [merge_folder(storage, item) for item in items]
