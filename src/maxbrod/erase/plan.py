"""Plans an erasure: what to look at, which objects are written anew, and the rows that take the place of others. Pure.

A row keeps its offsets: what was erased leaves a hole in it, with the reason `erased`. A row without any record left
becomes a gap. Objects are written anew as a whole, so that the old one can go: slices of other partitions in a pack are
carried over. A row may be live, retired, or of a generation under construction; all of them are treated alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from maxbrod.batch.erased import ErasedPart, ErasedRecords, Ranges
from maxbrod.catalog.generations import as_active
from maxbrod.catalog.replaced import merge, revive
from maxbrod.catalog.rows import SLICE_FIELDS, Segment, decode_rows, slice_of
from maxbrod.catalog.schema import SCHEMA, Kind
from maxbrod.layouts.kafka.format import PartitionName, Slice
from maxbrod.model import GapReason, PartitionId

SliceKey = tuple[str, int, int, int]
"""A slice of an object: path, position, first offset, and the offset behind its last."""
ByEpoch = Mapping[int, Ranges]
"""Offsets of records, by their leader epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """A row of any kind that names a slice."""

    values: Mapping[str, Any]
    """As the catalog stores it, by column."""
    segment: Segment

    @property
    def key(self) -> SliceKey:
        return key_of(self.segment)

    @property
    def name(self) -> PartitionName:
        row = self.segment
        return PartitionName(topic=row.topic, topic_id=row.topic_id, partition=row.partition)


def key_of(row: Segment | Slice) -> SliceKey:
    return row.path, row.position, row.base_offset, row.end_offset


def stored_rows(table: pa.Table) -> list[StoredRow]:
    """Return rows of kind data, replaced and building, as the catalog stores them, that name a slice."""
    found: list[StoredRow] = []
    own = {Kind.REPLACED: revive, Kind.BUILDING: as_active}
    for kind in (Kind.DATA, *own):
        rows = table.filter(pa.compute.equal(table["kind"], str(kind)))
        rows = rows.filter(pa.compute.is_valid(rows["path"]))
        if not rows.num_rows:
            continue
        segments = decode_rows(own[kind](rows) if kind in own else rows)
        found += [
            StoredRow(values=values, segment=segment)
            for values, segment in zip(rows.select(SCHEMA.names).to_pylist(), segments, strict=True)
            if isinstance(segment, Segment)
        ]
    return found


def table_of(rows: Iterable[StoredRow]) -> pa.Table:
    return pa.Table.from_pylist([dict(row.values) for row in rows], schema=SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """What an erasure looks for: keys, by their hashes, or offsets."""

    salt: bytes = b""
    hashes: bytes = b""
    offsets: Mapping[PartitionId, Mapping[int | None, Ranges]] | None = None
    """By leader epoch; None: of any."""

    def within(self, place: PartitionId, base: int, end: int) -> ErasedRecords | None:
        """Return what to look for in the offsets [base, end) of a partition; None: nothing."""
        if base >= end:
            return None
        if self.offsets is None:
            part = ErasedPart(unseen=((base, end),), salt=self.salt, hashes=self.hashes)
            return ErasedRecords(parts=(part,))
        parts = tuple(
            ErasedPart(offsets=ranges, offsets_epoch=epoch)
            for epoch, known in self.offsets.get(place, {}).items()
            if (ranges := _clip(known, base, end))
        )
        return ErasedRecords(parts=parts) if parts else None


def _clip(ranges: Ranges, base: int, end: int) -> Ranges:
    return tuple((max(first, base), min(stop, end)) for first, stop in ranges if first < end and stop > base)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlan:
    """An object that is written anew, with all rows that name it and what is erased from each."""

    path: str
    rows: tuple[StoredRow, ...]
    erased: Mapping[SliceKey, ByEpoch]

    @property
    def bytes(self) -> int:
        return sum(row.segment.bytes for row in self.rows)

    @property
    def row_count(self) -> int:
        return len(self.rows)

    @property
    def slices(self) -> tuple[tuple[PartitionName, Slice], ...]:
        """The slices of the object in their order, each once: a live and a retired row may share one."""
        found: dict[SliceKey, tuple[PartitionName, Slice]] = {}
        for row in sorted(self.rows, key=lambda row: (row.segment.position, row.segment.base_offset)):
            stored, epochs = slice_of(row.segment), self.erased.get(row.key)
            if epochs is not None:
                parts = (ErasedPart(offsets=ranges, offsets_epoch=epoch) for epoch, ranges in epochs.items())
                stored = replace(stored, erased=ErasedRecords(parts=tuple(parts)))
            found.setdefault(row.key, (row.name, stored))
        return tuple(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsPlan:
    objects: tuple[ObjectPlan, ...]
    held: Mapping[str, str]
    """Objects that stay because a hold protects a row with erased records, and the hold."""


def plan_objects(
    rows: Sequence[StoredRow], erased: Mapping[SliceKey, ByEpoch], held: Mapping[SliceKey, str]
) -> ObjectsPlan:
    """Plan what to write anew. `rows` are all rows that name one of the objects; `held` names the hold of a slice."""
    by_path: dict[str, list[StoredRow]] = {}
    for row in rows:
        by_path.setdefault(row.segment.path, []).append(row)
    objects, kept = [], {}
    for path, named in sorted(by_path.items()):
        mine = {row.key: erased[row.key] for row in named if row.key in erased}
        holder = next((held[key] for key in mine if key in held), None)
        if holder is not None:
            kept[path] = holder
        elif mine:
            objects.append(ObjectPlan(path=path, rows=tuple(named), erased=mine))
    return ObjectsPlan(objects=tuple(objects), held=kept)


_PLACE: Final = tuple(
    name for name in SLICE_FIELDS if name not in {"base_offset", "end_offset", "aborted", "codec", "details"}
)


def new_rows(
    plan: ObjectPlan, written: Mapping[SliceKey, Slice], last: Collection[SliceKey], *, run_id: str, now_ms: int
) -> list[dict[str, Any]]:
    """Return rows in place of those of an object, in the same order. `last` are slices whose row must stay one of data.

    The row of a slice that was only carried over changes nothing but its place.
    """
    found = []
    for row in plan.rows:
        values, new = dict(row.values), written[row.key]
        values |= {name: getattr(new, name) for name in _PLACE}
        if row.key in plan.erased:
            values |= {"reason": values["reason"] or str(GapReason.ERASED), "run_id": run_id, "written_at": now_ms}
            if not new.records and values["kind"] == Kind.DATA and row.key not in last:
                names = ("topic", "topic_id", "partition", "base_offset", "end_offset", "run_id", "written_at")
                gap = {name: values[name] for name in names}
                values = {**gap, "kind": str(Kind.GAP), "reason": str(GapReason.ERASED)}
        found.append(values)
    return found


def last_rows(rows: Iterable[StoredRow]) -> set[SliceKey]:
    """Return the last slice of each partition: the leader epoch at the end of a log must stay known."""
    found: dict[PartitionId, StoredRow] = {}
    for row in rows:
        before = found.get(row.segment.id)
        if before is None or row.segment.end_offset > before.segment.end_offset:
            found[row.segment.id] = row
    return {row.key for row in found.values()}


def erased_by_partition(
    rows: Iterable[StoredRow], found: Mapping[SliceKey, ByEpoch]
) -> dict[PartitionId, dict[int, Ranges]]:
    """Return the offsets that were found, each once, however many rows have it."""
    spans: dict[PartitionId, dict[int, list[tuple[int, int]]]] = {}
    for row in rows:
        for epoch, ranges in found.get(row.key, {}).items():
            spans.setdefault(row.segment.id, {}).setdefault(epoch, []).extend(ranges)
    return {
        place: {epoch: tuple(merge(ranges)) for epoch, ranges in sorted(epochs.items())}
        for place, epochs in spans.items()
    }


def seen_by_partition(rows: Iterable[StoredRow]) -> dict[PartitionId, Ranges]:
    """Return the offsets that these rows cover."""
    spans: dict[PartitionId, list[tuple[int, int]]] = {}
    for row in rows:
        spans.setdefault(row.segment.id, []).append((row.segment.base_offset, row.segment.end_offset))
    return {place: tuple(merge(ranges)) for place, ranges in spans.items()}


def count_offsets(epochs: Iterable[ByEpoch]) -> int:
    return sum(end - first for by_epoch in epochs for ranges in by_epoch.values() for first, end in ranges)
