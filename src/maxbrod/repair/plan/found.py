"""Findings of a repair in objects: slices with all that a row needs, and ranges that are lost. Values that travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.layouts.kafka.format import Slice  # noqa: TC001 - pydantic reads the types of what travels
from maxbrod.model import PartitionId

if TYPE_CHECKING:
    from maxbrod.catalog.ledger import SliceKey


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTransactions:
    """The transactions of a slice, as its batches alone tell."""

    aborted: tuple[tuple[int, int, int], ...] = ()
    """Those that begin and end in the slice: producer id, first offset, offset of the marker."""
    heads: tuple[tuple[int, int | None, int, bool], ...] = ()
    """The first marker of each producer: producer id, its first records in the slice before it, if there are any,
    the offset of the marker, and whether it aborts. The transaction may have begun before the slice."""
    tails: tuple[tuple[int, int], ...] = ()
    """Transactions without a marker in the slice: producer id and first offset in the slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSlice:
    """A slice whose stored bytes are sound."""

    topic: str
    topic_id: str
    partition: int
    slice: Slice
    epochs: tuple[tuple[int, int], ...]
    """Where leader epochs begin: offset and epoch."""
    modified_ms: int
    """When the store got the object."""
    run_id: str | None = None
    """The run that wrote it, if the object says so."""
    written_at: int | None = None
    level: int = 0
    reason: str | None = None
    """Why it has fewer records than offsets, if a row of the old catalog says so."""
    transactions: SliceTransactions | None = None
    """None: `slice.aborted` is known to be complete."""

    @property
    def id(self) -> PartitionId:
        return PartitionId(topic_id=self.topic_id, partition=self.partition)

    @property
    def key(self) -> SliceKey:
        return self.slice.path, self.slice.position, self.base, self.end

    @property
    def base(self) -> int:
        return self.slice.base_offset

    @property
    def end(self) -> int:
        return self.slice.end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRange:
    """Offsets whose bytes are damaged or gone. `end` None: up to the next offset that is there."""

    topic: str
    topic_id: str
    partition: int
    base: int
    end: int | None
    path: str
    message: str
    slice: Slice | None = None
    """The damaged slice, if it is known: its first batches may be sound."""
    missing: bool = False
    """Whether there is no object at all."""

    @property
    def id(self) -> PartitionId:
        return PartitionId(topic_id=self.topic_id, partition=self.partition)


@dataclass(frozen=True, slots=True)
class PrunedRange:
    """Offsets that a prune took out of the archive."""

    id: PartitionId
    topic: str
    base: int
    end: int
    at_ms: int | None
    """When. What was written before and overlaps is not the archive any more. None: only older runs saw the offsets,
    and what replaced them stays."""

    def takes(self, each: FoundSlice) -> bool:
        written = each.modified_ms if each.written_at is None else each.written_at
        return self.at_ms is not None and self.base < each.end and each.base < self.end and written <= self.at_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One object."""

    path: str
    bytes: int
    slices: tuple[FoundSlice, ...] = ()
    lost: tuple[LostRange, ...] = ()
    unknown: str | None = None
    """Why nothing can be said about the object: whose batches it holds is not known."""
