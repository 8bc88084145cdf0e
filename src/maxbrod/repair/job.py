"""The tasks of a repair: they read objects, and return what those hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.kafka.slices import salvage_slice
from maxbrod.layouts.kafka.writer import PartitionName
from maxbrod.repair.examine import ObjectToExamine, examine, scan_transactions
from maxbrod.repair.plan.found import Examined, FoundSlice, LostRange, SliceTransactions
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.repair.plan.found import Examined, FoundSlice, LostRange, SliceTransactions
    from maxbrod.storage.interface import Storage
    from maxbrod.work.reach import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairContext:
    """What all tasks of a repair share. Contains secrets."""

    place: Place
    run_id: str
    compacted: frozenset[str] = frozenset()
    """Ids of compacted topics."""

    def open(self) -> Storage:
        return open_storage(self.place.url, self.place.storage)


def examine_objects(context: RepairContext, objects: Sequence[ObjectToExamine]) -> list[Examined]:
    """Read all objects, once. A storage error ends the job: nothing is known about an object that was not read."""
    storage = context.open()
    return [examine(storage, item, compacted=context.compacted) for item in objects]


def scan_slices(context: RepairContext, slices: Sequence[FoundSlice]) -> list[SliceTransactions]:
    """Return the transactions of slices of which only the aborted ones were known, in their order."""
    storage = context.open()
    return [scan_transactions(storage, found) for found in slices]


def salvage_slices(context: RepairContext, lost: Sequence[LostRange]) -> list[Slice | None]:
    """Copy the sound batches at the start of damaged slices into new objects, in their order."""
    storage = context.open()
    found = []
    for damaged in lost:
        name = PartitionName(topic=damaged.topic, topic_id=damaged.topic_id, partition=damaged.partition)
        stored = damaged.slice
        found.append(None if stored is None else salvage_slice(storage, stored, name, run_id=context.run_id))
    return found
