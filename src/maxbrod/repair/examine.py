"""The tasks of a repair: each reads objects and returns what slices they hold. Only a salvage writes.

A table of contents, or a row of the old catalog, says what the slices are: then their digests are compared. A plain
segment says it by its name and its batches.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.headers import LOG_OVERHEAD_BYTES, BatchHeaders, walk
from maxbrod.batch.transactions import transaction_events
from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.layouts.kafka.contents import read_contents
from maxbrod.layouts.kafka.described_batches import SliceTally, describe
from maxbrod.layouts.kafka.format import (
    LogName,
    PartitionName,
    SegmentLimits,
    Slice,
    is_framed,
    parse_segment_path,
    run_of_pack,
)
from maxbrod.layouts.kafka.frames import SliceDigest
from maxbrod.layouts.kafka.reader import REQUEST_BYTES, log_bytes_max, read_logs, read_object
from maxbrod.layouts.kafka.slices import salvage_slice
from maxbrod.layouts.kafka.writer import at_holes
from maxbrod.repair.plan.slices import FoundSlice, LostRange, SliceTransactions, place_of
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from maxbrod.work.executor import Workers
    from maxbrod.work.reach import Place
    from maxbrod.work.work import Work


_DAMAGES: Final = (CorruptDataError, UnsupportedFormatError, ObjectNotFoundError)
_NO_CONTENTS: Final = (
    "it has no table of contents, and no row of the old catalog names it: an older release wrote it, or it was cut"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairContext:
    """The settings that all tasks of a repair share. Contains secrets."""

    place: Place
    run_id: str
    compacted: frozenset[str] = frozenset()
    """Ids of compacted topics."""

    def open(self) -> Storage:
        return open_storage(self.place.url, self.place.storage)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairWork:
    """A repair under way: the archive, and who runs its tasks."""

    work: Work
    storage: Storage
    workers: Workers
    context: RepairContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectToExamine:
    path: str
    size: int
    modified_ms: int
    known: tuple[FoundSlice, ...] = ()
    """Slices that rows of the old catalog name in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One object."""

    path: str
    bytes: int
    slices: tuple[FoundSlice, ...] = ()
    lost: tuple[LostRange, ...] = ()
    unknown: str | None = None
    """The reason why nothing can be said about the object: whose batches it holds is not known."""


def examine_objects(context: RepairContext, objects: Sequence[ObjectToExamine]) -> list[Examined]:
    """Read every byte of objects, once. A storage error ends the job: nothing is known about an object not read."""
    storage = context.open()
    return [_examine(storage, item, context.compacted) for item in objects]


def scan_slices(context: RepairContext, slices: Sequence[FoundSlice]) -> list[SliceTransactions]:
    """Return the transactions of slices of which only the aborted ones were known, and whose digests were compared."""
    storage, results = context.open(), []
    for found in slices:
        scan = TransactionScan()
        for data, headers in read_logs(storage, found.slice, check_crc=False):
            scan.add(data, headers)
        results.append(scan.result())
    return results


def salvage_slices(context: RepairContext, lost: Sequence[LostRange]) -> list[Slice | None]:
    """Copy the sound batches at the start of damaged slices into new objects, in their order."""
    storage = context.open()
    return [
        None
        if damaged.slice is None
        else salvage_slice(storage, damaged.slice, PartitionName(**place_of(damaged)), run_id=context.run_id)
        for damaged in lost
    ]


def _examine(storage: Storage, item: ObjectToExamine, compacted: Collection[str]) -> Examined:
    """Return the slices of an object. In `compacted` topics narrow holes do not end a slice."""
    try:
        known = _known_slices(storage, item)
    except _DAMAGES as error:
        if not item.known:
            return _from_batches(storage, item, compacted, why=error.message)
        known = item.known
    if known:
        return _compare(storage, item, known)
    return _from_batches(storage, item, compacted, why=_NO_CONTENTS)


def _known_slices(storage: Storage, item: ObjectToExamine) -> tuple[FoundSlice, ...]:
    """Rows of the old catalog go first: they have more than a table of contents."""
    contents = read_contents(storage, item.path, item.size)
    if contents is None:
        return item.known
    rows = {(row.slice.position, row.slice.digest): row for row in item.known}
    found = []
    for entry in contents.entries:
        row = rows.get((entry.slice.position, entry.slice.digest)) or FoundSlice(
            **place_of(entry),
            slice=entry.slice,
            epochs=entry.epochs,
            modified_ms=item.modified_ms,
            run_id=contents.run_id,
            written_at=contents.written_at,
            level=contents.level,
        )
        found.append(replace(row, epochs=entry.epochs, modified_ms=item.modified_ms))
    return tuple(found)


# Slices that are known: are their bytes what was written?


def _compare(storage: Storage, item: ObjectToExamine, known: Sequence[FoundSlice]) -> Examined:
    window = _ObjectWindow(storage, item.path, item.size)
    slices: list[FoundSlice] = []
    lost: list[LostRange] = []
    for found in sorted(known, key=lambda found: found.slice.position):
        stored = found.slice
        end = stored.position + stored.bytes
        digest, problem = None, f"the object has {item.size} bytes, the slice ends at {end}"
        if end <= item.size:
            try:
                digest = window.digest(stored.position, stored.bytes, like=stored.digest)
                problem = f"the bytes have the digest {digest}, but {stored.digest} was written"
            except CorruptDataError as error:
                problem = error.message
        if digest == stored.digest:
            slices.append(found)
            continue
        lost.append(
            LostRange(
                **place_of(found), base=found.base, end=found.end, path=item.path, message=problem, slice=found.slice
            )
        )
    return Examined(path=item.path, bytes=item.size, slices=tuple(slices), lost=tuple(lost))


class _ObjectWindow:
    """Reads an object from start to end in large parts, for slices of any size."""

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        self._storage, self._path, self._size = storage, path, size
        self._start, self._data = 0, np.empty(0, np.uint8)

    def digest(self, position: int, size: int, *, like: str) -> str:
        digest, end = SliceDigest.like(like), position + size
        while position < end:
            if not self._start <= position < self._start + self._data.size:
                part = self._read(position, min(REQUEST_BYTES, self._size - position), end - position)
                self._start, self._data = position, np.frombuffer(part, np.uint8)
            here = self._data[position - self._start : end - self._start]
            digest.add(here)
            position += here.size
        return str(digest)

    def _read(self, position: int, size: int, needed: int) -> memoryview:
        """A large part, or what is needed of it if the storage finds damage in it."""
        try:
            return self._storage.get_range(self._path, position, size)
        except CorruptDataError:
            return self._storage.get_range(self._path, position, min(needed, size))


# Segments of which only the name is known.


def _from_batches(storage: Storage, item: ObjectToExamine, compacted: Collection[str], *, why: str) -> Examined:
    name = parse_segment_path(item.path)
    if name is None:
        return Examined(path=item.path, bytes=item.size, unknown=why)
    limits = SegmentLimits() if name.topic_id in compacted else SegmentLimits(hole_offsets_min=1)
    author = _SliceAuthor(storage, item, name, limits)
    if is_framed(item.path):
        author.read_frames()
    else:
        position = 0
        while position < item.size:
            position = author.read_on(position)
        author.end_slice()
    return Examined(path=item.path, bytes=item.size, slices=tuple(author.slices), lost=tuple(author.lost))


class TransactionScan:
    """Collects the transactions of a slice from its own batches."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._heads: dict[int, tuple[int | None, int, bool]] = {}
        self._aborted: list[tuple[int, int, int]] = []

    def add(self, data: NDArray[np.uint8], headers: BatchHeaders) -> None:
        for producer, offset, ends in transaction_events(data, headers):
            if ends is None:
                self._open.setdefault(producer, offset)
                continue
            first = self._open.pop(producer, None)
            if producer not in self._heads:
                self._heads[producer] = (first, offset, ends)
            elif ends and first is not None:
                self._aborted.append((producer, first, offset))

    def result(self) -> SliceTransactions:
        return SliceTransactions(
            aborted=tuple(self._aborted),
            heads=tuple((producer, *head) for producer, head in self._heads.items()),
            tails=tuple(self._open.items()),
        )


@dataclass(slots=True)
class _OpenSlice:
    position: int
    digest: SliceDigest
    tally: SliceTally = field(default_factory=SliceTally)
    scan: TransactionScan = field(default_factory=TransactionScan)


class _SliceAuthor:
    """Makes slices of the batches of a segment, as the writer did."""

    def __init__(self, storage: Storage, item: ObjectToExamine, name: LogName, limits: SegmentLimits) -> None:
        self._storage, self._item, self._name, self._limits = storage, item, name, limits
        self.slices: list[FoundSlice] = []
        self.lost: list[LostRange] = []
        self._position = 0
        """The byte behind the last batch that was added."""
        self._next_offset = name.base_offset
        self._open: _OpenSlice | None = None

    def read_frames(self) -> None:
        """Read a segment in frames without a table of contents: one slice, because a slice is whole frames."""
        item, opened = self._item, _OpenSlice(position=0, digest=self._new_digest())
        room = log_bytes_max(item.size)
        try:
            for data, headers in read_object(
                self._storage, item.path, 0, item.size, raw_bytes_max=room, digest=opened.digest
            ):
                batches = describe(data, headers, exact=False)
                opened.tally.add(batches)
                opened.scan.add(batches.data, batches.headers)
        except _DAMAGES as error:
            self._lose(None, error)
            return
        self._open, self._position = opened, item.size
        self.end_slice()

    def _new_digest(self) -> SliceDigest:
        return SliceDigest(strong=self._storage.signing is not None)

    def read_on(self, position: int) -> int:
        """Read a plain segment to its end, or past the next damaged batch; where to go on."""
        self._position, item = position, self._item
        try:
            for data, headers in read_object(
                self._storage, item.path, position, item.size, raw_bytes_max=item.size, digest=SliceDigest()
            ):
                self._add(data, headers)
        except _DAMAGES as error:
            self.end_slice()
            behind, base = self._next_batch() or (item.size, None)
            self._lose(base, error)
            return behind
        return item.size

    def _add(self, data: NDArray[np.uint8], headers: BatchHeaders) -> None:
        for batches in at_holes(describe(data, headers, exact=False), self._limits):
            first = int(batches.facts.first_offset[0])
            if first < self._next_offset:
                raise CorruptDataError("a batch does not come after the one before it", offset=first)
            if self._open is not None and first - self._next_offset >= self._limits.hole_offsets_min:
                self.end_slice()
            if self._open is None:
                self._open = _OpenSlice(position=self._position, digest=self._new_digest())
            self._open.tally.add(batches)
            self._open.digest.add(batches.log)
            self._open.scan.add(batches.data, batches.headers)
            self._position += len(batches.log)
            self._next_offset = int(batches.facts.last_offset[-1]) + 1

    def _next_batch(self) -> tuple[int, int] | None:
        """Position and base offset of the batch behind the damaged one, if the damage left its length alone."""
        storage, item, at = self._storage, self._item, self._position
        try:
            length = int.from_bytes(storage.get_range(item.path, at + 8, 4), "big", signed=True)
            position = at + LOG_OVERHEAD_BYTES + length
            if length <= 0 or position >= item.size:
                return None
            headers = walk(storage.get_range(item.path, position, min(REQUEST_BYTES, item.size - position)))
        except _DAMAGES:
            return None
        base = int(headers["base_offset"][0]) if len(headers) else -1
        return (position, base) if base >= self._next_offset else None

    def end_slice(self) -> None:
        if self._open is None:
            return
        opened, self._open = self._open, None
        found = opened.tally.as_slice(
            path=self._item.path,
            position=opened.position,
            size=self._position - opened.position,
            aborted=(),
            digest=str(opened.digest),
        )
        self.slices.append(
            FoundSlice(
                **place_of(self._name),
                slice=found,
                epochs=tuple(opened.tally.epochs),
                modified_ms=self._item.modified_ms,
                run_id=run_of_pack(self._item.path),
                transactions=opened.scan.result(),
            )
        )

    def _lose(self, end: int | None, error: MaxbrodError) -> None:
        place, path = place_of(self._name), self._item.path
        self.lost.append(LostRange(**place, base=self._next_offset, end=end, path=path, message=error.message))
