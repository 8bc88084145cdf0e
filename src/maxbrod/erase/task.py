"""The two tasks of an erasure, in workers: one looks for records, the other writes objects without them.

Both work on whole batches and Arrow columns. A slice that cannot be read is an answer, not an error: the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.erased import ErasedRecords, Ranges
from maxbrod.batch.erasure import as_ranges, epochs_of, find_erased
from maxbrod.errors import CorruptDataError, MaxbrodError
from maxbrod.layouts.kafka.format import PartitionName, Slice
from maxbrod.layouts.kafka.slices import copy_slices
from maxbrod.layouts.reader import read_logs
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from maxbrod.work.reach import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanItem:
    """A slice, as it is stored or as readers get it, and what to look for in it."""

    number: int
    stored: Slice
    sought: ErasedRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOutcome:
    number: int
    found: Mapping[int, Ranges] = field(default_factory=dict)
    """By leader epoch."""
    failure: MaxbrodError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteItem:
    """An object: its slices, in order, each with what is erased from it."""

    number: int
    path: str
    slices: tuple[tuple[PartitionName, Slice], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOutcome:
    number: int
    written: tuple[Slice, ...] = ()
    """In the order of the item's slices."""
    failure: MaxbrodError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseContext:
    """The context that all tasks share. Contains secrets."""

    place: Place
    run_id: str


def scan_slices(context: EraseContext, items: Sequence[ScanItem]) -> Iterator[ScanOutcome]:
    """Look for records, slice by slice."""
    storage = open_storage(context.place.url, context.place.storage)
    for item in items:
        yield _scan(storage, item)


def _scan(storage: Storage, item: ScanItem) -> ScanOutcome:
    offsets, epochs = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    try:
        for data, headers in read_logs(storage, item.stored):
            offsets.append(find_erased(data, headers, item.sought))
            epochs.append(epochs_of(headers, offsets[-1]))
    except MaxbrodError as error:
        return ScanOutcome(number=item.number, failure=error)
    found, of = np.concatenate(offsets), np.concatenate(epochs)
    return ScanOutcome(
        number=item.number, found={epoch: as_ranges(found[of == epoch]) for epoch in np.unique(of).tolist()}
    )


def rewrite_objects(context: EraseContext, items: Sequence[RewriteItem]) -> Iterator[RewriteOutcome]:
    """Write objects anew, without what is erased from their slices."""
    storage = open_storage(context.place.url, context.place.storage)
    for item in items:
        yield _rewrite(storage, item, context.run_id)


def _rewrite(storage: Storage, item: RewriteItem, run_id: str) -> RewriteOutcome:
    try:
        written = copy_slices(storage, item.path, item.slices, run_id=run_id, read=read_logs)
        for (name, before), after in zip(item.slices, written, strict=True):
            _demand_all(name, before, after)
    except MaxbrodError as error:
        return RewriteOutcome(number=item.number, failure=error)
    return RewriteOutcome(number=item.number, written=tuple(written))


def _demand_all(name: PartitionName, before: Slice, after: Slice) -> None:
    """The old object goes: nothing but what is erased may be missing from the new one."""
    parts = () if before.erased is None else before.erased.parts
    gone = sum(end - first for part in parts for first, end in part.offsets)
    inside = before.base_offset <= after.base_offset and after.end_offset <= before.end_offset
    if after.records != before.records - gone or not inside:
        raise CorruptDataError(
            f"{after.records:,} records were written where {before.records:,} less {gone:,} were expected",
            object_name=str(name),
            offset=before.base_offset,
            hint="nothing was changed; 'maxbrod check --deep' finds damage",
        )
