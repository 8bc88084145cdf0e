"""The two tasks of a compaction by key, in workers. Both work on Arrow columns, never on single records.

The first reads groups and returns the last record of each key, as far as it sees: Spark finds the newest of all. The
second gets the offsets of the newest ones, reads the groups again and writes these records, and those without a key.
Records of aborted transactions take no part. A damaged slice is an answer, not an error: its partition stays as it is.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.fillers import emptied
from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders, walk
from maxbrod.batch.transactions import committed_batches
from maxbrod.config import StorageConfig
from maxbrod.errors import CorruptDataError, MaxbrodError
from maxbrod.layouts.kafka.format import Compression, SegmentLimits, Slice
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.layouts.reader import decode_portions, read_logs
from maxbrod.model import Codec
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORD, NOTE = 0, 1
"""Kinds of rows: the newest record of a key so far, and what the reader of a group says of it."""
FOUND: Final = pa.schema(
    [
        pa.field("place", pa.int32()),
        pa.field("kind", pa.int8()),
        pa.field("key", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("mark", pa.int64()),
    ]
)
"""Rows of the first task. `place` numbers partitions; `mark` is twice the number of the group, plus 1 for a tombstone
that goes if it is the newest. Both are numbers, so that Spark aggregates in a hash table. A note is in `key`."""
FOUND_SPARK: Final = "place int, kind tinyint, key binary, offset bigint, mark bigint"
ANSWERS: Final = pa.schema([("answer", pa.binary())])
_READ: Final = ("offset", "timestamp_ms", "key", "value")
_KEPT: Final = ("offset", "timestamp_ms", "timestamp_type", "key", "value", "headers", "leader_epoch")
"""Without producer, sequence and transaction: what is left of a transaction needs no marker."""
_HELD_BYTES: Final = 16 << 20
"""Rows of this size are reduced together before they leave the worker."""
_PACKED_BYTES: Final = 4 << 20
"""Anything smaller shares objects, as in a backup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupItem:
    """A group as workers get it. Tombstones below `tombstones_end` that are older than `horizon_ms` may go."""

    number: int
    place: int
    topic: str
    topic_id: str
    partition: int
    slices: tuple[Slice, ...]
    last: bool
    tombstones_end: int
    horizon_ms: int

    @property
    def records(self) -> int:
        return sum(part.records for part in self.slices)

    @property
    def raw_bytes(self) -> int:
        return sum(part.raw_bytes for part in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """The slices that were written of a group; none, if all its records went, or none."""

    number: int
    written: tuple[Slice, ...] = ()
    kept: int = 0
    changed: bool = True
    failure: MaxbrodError | None = None


class GroupNote(NamedTuple):
    """What the first task says of a group to the second one: how many records have no key, or why it is unreadable."""

    number: int
    unkeyed: int = 0
    failure: MaxbrodError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByKeySettings:
    """The settings of every task. Holds secrets."""

    archive_url: str
    storage: StorageConfig = field(repr=False)
    run_id: str
    compression: Compression
    hole_offsets_min: int
    """A hole of this width gets a row of its own."""


def read_groups(
    settings: ByKeySettings,
    items: Sequence[bytes],
    tasks: Sequence[Sequence[int]],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The rows `FOUND` of each task. Each group ends with a note."""
    storage = open_storage(settings.archive_url, settings.storage)
    for batch in batches:
        for task in batch.column(0).to_pylist():
            for number in tasks[task]:
                yield from _read_group(storage, pickle.loads(items[number]))  # noqa: S301 - the driver has pickled it


def _read_group(storage: Storage, item: GroupItem) -> Iterator[pa.RecordBatch]:
    unkeyed = 0
    held: list[pa.RecordBatch] = []
    try:
        for stored in item.slices:
            for records in _visible(storage, stored, _READ):
                unkeyed += records.column("key").null_count
                held.append(_newest(_found(item, records)))
                if sum(batch.nbytes for batch in held) >= _HELD_BYTES:
                    yield _joined(held)
                    held = []
        if held:
            yield _joined(held)
        note = GroupNote(item.number, unkeyed)
    except MaxbrodError as error:
        # Passed on, not raised: Spark would run the task again, and the other partitions would not go on.
        note = GroupNote(item.number, failure=error)
    row = {"place": item.place, "kind": NOTE, "key": pickle.dumps(note), "offset": -1, "mark": 2 * item.number}
    yield pa.RecordBatch.from_pylist([row], schema=FOUND)


def _visible(
    storage: Storage, stored: Slice, columns: Sequence[str], winners: NDArray[np.int64] | None = None
) -> Iterator[pa.RecordBatch]:
    """Committed records; with `winners` only of batches that may have one of these offsets."""
    for data, headers in read_logs(storage, stored):
        chosen = committed_batches(headers, stored.aborted)
        if winners is not None:
            chosen &= _may_have(headers, winners)
        yield from decode_portions(
            data, headers.take(chosen), columns=columns, object_name=storage.name_of(stored.path)
        )


def _may_have(headers: BatchHeaders, winners: NDArray[np.int64]) -> NDArray[np.bool_]:
    first = np.searchsorted(winners, headers["base_offset"])
    after = np.searchsorted(winners, headers.last_offset, side="right")
    # The offset in the header of an old compressed message is that of its last record.
    found: NDArray[np.bool_] = (first < after) | (headers["magic"] < NEWEST_MAGIC)
    return found


def _found(item: GroupItem, records: pa.RecordBatch) -> pa.RecordBatch:
    keyed = records.filter(records.column("key").is_valid())
    offsets, times = (number_column(keyed.column(name)) for name in ("offset", "timestamp_ms"))
    dead = number_column(keyed.column("value").is_null())
    # A tombstone without a time may be of any age: it stays.
    expired = dead & (times >= 0) & (times < item.horizon_ms) & (offsets < item.tombstones_end)
    count = keyed.num_rows
    return pa.RecordBatch.from_arrays(
        [
            number_array(np.full(count, item.place, np.int32)),
            number_array(np.full(count, RECORD, np.int8)),
            keyed.column("key"),
            keyed.column("offset"),
            number_array(2 * item.number + expired.astype(np.int64)),
        ],
        schema=FOUND,
    )


def _joined(held: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else _newest(pa.concat_batches(held))


def _newest(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The last row of each key. Rows are of one group, in order of offsets."""
    if not rows.num_rows:
        return rows
    numbered = pa.table({"key": rows.column("key"), "row": number_array(np.arange(rows.num_rows))})
    last = numbered.group_by("key").aggregate([("row", "max")])["row_max"]
    return rows if len(last) == rows.num_rows else rows.take(number_array(np.sort(last.to_numpy())))


def write_groups(
    settings: ByKeySettings, items: Sequence[bytes], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The outcomes of the groups of one task, as one row of JSON.

    Rows come by group and offset, the note of a group first. The groups share objects, so an error in one fails all.
    """
    storage = open_storage(settings.archive_url, settings.storage)
    numbers: list[int] = []
    outcomes: list[GroupOutcome] = []
    parts: list[_KeptRecords] = []
    try:
        with ArchiveWriter(
            storage,
            run_id=settings.run_id,
            compression=settings.compression,
            limits=SegmentLimits(hole_offsets_min=settings.hole_offsets_min),
        ) as archive:
            for note, winners in _by_group(batches):
                numbers.append(note.number)
                item = pickle.loads(items[note.number])  # noqa: S301 - as above
                part = _KeptRecords(storage, archive, item, note, winners)
                part.write()
                parts.append(part)
        outcomes = [part.outcome() for part in parts]
    except MaxbrodError as error:
        outcomes = [GroupOutcome(number=number, failure=error) for number in numbers]
    yield pa.RecordBatch.from_pylist([{"answer": pickle.dumps(outcomes)}], schema=ANSWERS)


def _by_group(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[GroupNote, NDArray[np.int64]]]:
    """The note of each group and the offsets of its newest records."""
    note: GroupNote | None = None
    offsets: list[NDArray[np.int64]] = []
    for batch in batches:
        group = number_column(batch.column("group"))
        edges = (np.flatnonzero(np.diff(group)) + 1).tolist()
        for first, end in zip([0, *edges], [*edges, batch.num_rows], strict=True):
            if first == end:
                continue
            rows = batch.slice(first, end - first)
            if note is None or group[first] != note.number:
                if note is not None:
                    yield note, np.concatenate(offsets)
                offsets = []
                note = pickle.loads(rows.column("note")[0].as_py())  # noqa: S301 - the first task has pickled it
                rows = rows.slice(1)
            offsets.append(number_column(rows.column("offset")).astype(np.int64))
    if note is not None:
        yield note, np.concatenate(offsets)


class _KeptRecords:
    """Writes what stays of one group."""

    def __init__(
        self,
        storage: Storage,
        archive: ArchiveWriter,
        item: GroupItem,
        note: GroupNote,
        winners: NDArray[np.int64],
    ) -> None:
        self._storage, self._archive, self._item = storage, archive, item
        self._winners = winners
        self._unkeyed, self._failure = note.unkeyed, note.failure
        self._slices: tuple[Slice, ...] = ()
        self._last_offset = -1

    @property
    def _kept(self) -> int:
        return len(self._winners) + self._unkeyed

    @property
    def _changed(self) -> bool:
        """Records that no application sees count too: they go."""
        return self._kept != self._item.records

    def outcome(self) -> GroupOutcome:
        return GroupOutcome(
            number=self._item.number,
            written=self._slices,
            kept=self._kept,
            changed=self._changed,
            failure=self._failure,
        )

    def write(self) -> None:
        epoch = self._item.slices[-1].last_leader_epoch if self._item.last else -1
        if self._failure is not None or not self._changed or not (self._kept or epoch >= 0):
            return
        from maxbrod.layouts.kafka.records import append_records  # noqa: PLC0415 - numba, which readers load themselves

        item = self._item
        part = self._archive.partition(
            topic=item.topic,
            topic_id=item.topic_id,
            partition=item.partition,
            packed=item.raw_bytes * self._kept < _PACKED_BYTES * max(item.records, 1),
        )
        written = 0
        for stored in item.slices if self._kept else ():
            for records in _visible(self._storage, stored, _KEPT, None if self._unkeyed else self._winners):
                kept = records.filter(number_array(self._stay(records)))
                if kept.num_rows:
                    append_records(part, kept, codec=Codec[stored.codec.upper()])
                    written += kept.num_rows
                    self._last_offset = kept.column("offset")[-1].as_py()
        if written != self._kept:
            raise CorruptDataError(
                f"{written:,} records were read where there were {self._kept:,} before",
                object_name=f"{item.topic}-{item.partition}",
                offset=item.slices[0].base_offset,
                hint="run it again; if it persists, 'maxbrod check --deep' finds the damage",
            )
        end = item.slices[-1].end_offset
        if epoch >= 0 and self._last_offset < end - 1:
            # A later backup detects by it whether the log was truncated.
            data = emptied(end - 1, leader_epoch=epoch)
            part.append(data, walk(data, check_crc=False))
        part.close()
        self._slices = part.slices

    def _stay(self, records: pa.RecordBatch) -> NDArray[np.bool_]:
        offsets = number_column(records.column("offset"))
        stay = number_column(records.column("key").is_null()).astype(np.bool_)
        if len(self._winners):
            at = np.minimum(np.searchsorted(self._winners, offsets), len(self._winners) - 1)
            stay = stay | (self._winners[at] == offsets)
        return stay
