"""The tasks of a repair: each reads objects and returns what slices they hold. Only a salvage writes.

A table of contents, or a row of the old catalog, says what the slices are: then their digests are compared. A plain
segment says it by its name and its batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.headers import LOG_OVERHEAD_BYTES, BatchHeaders, walk
from maxbrod.batch.transactions import transaction_events
from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.layouts.kafka.contents import read_contents
from maxbrod.layouts.kafka.described_batches import DescribedBatches, SliceTally, describe
from maxbrod.layouts.kafka.format import LogName, SegmentLimits, Slice, is_framed, parse_segment_path, run_of_pack
from maxbrod.layouts.kafka.frames import SliceDigest
from maxbrod.layouts.kafka.reader import REQUEST_BYTES, log_bytes_max, read_logs, read_object
from maxbrod.layouts.kafka.slices import salvage_slice
from maxbrod.layouts.kafka.writer import PartitionName, at_holes
from maxbrod.repair.plan.found import Examined, FoundSlice, LostRange, SliceTransactions
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from maxbrod.repair.options import RepairOptions
    from maxbrod.storage.interface import Storage
    from maxbrod.work.executor import Workers
    from maxbrod.work.progress import OnProgress
    from maxbrod.work.reach import Place


_DAMAGES: Final = (CorruptDataError, UnsupportedFormatError, ObjectNotFoundError)
_NO_CONTENTS: Final = (
    "it has no table of contents, and no row of the old catalog names it: an older release wrote it, or it was cut"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectToExamine:
    path: str
    size: int
    modified_ms: int
    known: tuple[FoundSlice, ...] = ()
    """Slices that rows of the old catalog name in it."""


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
    """A repair under way: the archive, the workers, and the options."""

    storage: Storage
    workers: Workers
    context: RepairContext
    options: RepairOptions
    on_progress: OnProgress

    @property
    def run_id(self) -> str:
        return self.context.run_id


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


def examine(storage: Storage, item: ObjectToExamine, *, compacted: Collection[str]) -> Examined:
    """Read every byte of an object once; return its slices. In `compacted` topics narrow holes do not end a slice.

    A storage that does not answer is an error: then nothing is known about the object.
    """
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
    """What rows of the old catalog say goes first: they have more than a table of contents."""
    contents = read_contents(storage, item.path, item.size)
    if contents is None:
        return item.known
    rows = {(each.slice.position, each.slice.digest): each for each in item.known}
    found = []
    for entry in contents.entries:
        row = rows.get((entry.slice.position, entry.slice.digest))
        slice_ = FoundSlice(
            topic=entry.topic,
            topic_id=entry.topic_id,
            partition=entry.partition,
            slice=entry.slice,
            epochs=entry.epochs,
            modified_ms=item.modified_ms,
            run_id=contents.run_id,
            written_at=contents.written_at,
            level=contents.level,
        )
        found.append(slice_ if row is None else replace(row, epochs=entry.epochs, modified_ms=item.modified_ms))
    return tuple(found)


# Slices that are known: are their bytes what was written?


def _compare(storage: Storage, item: ObjectToExamine, known: Sequence[FoundSlice]) -> Examined:
    window = _Window(storage, item.path, item.size)
    slices: list[FoundSlice] = []
    lost: list[LostRange] = []
    for each in sorted(known, key=lambda each: each.slice.position):
        stored = each.slice
        if stored.position + stored.bytes > item.size:
            problem: str | None = (
                f"the object has {item.size} bytes, the slice ends at {stored.position + stored.bytes}"
            )
        else:
            digest = window.digest(stored.position, stored.bytes)
            same = digest == stored.digest
            problem = None if same else f"the bytes have the digest {digest}, but {stored.digest} was written"
        if problem is None:
            slices.append(each)
        else:
            lost.append(_lost(each, item.path, problem))
    return Examined(path=item.path, bytes=item.size, slices=tuple(slices), lost=tuple(lost))


def _lost(each: FoundSlice, path: str, problem: str) -> LostRange:
    return LostRange(
        topic=each.topic,
        topic_id=each.topic_id,
        partition=each.partition,
        base=each.base,
        end=each.end,
        path=path,
        message=problem,
        slice=each.slice,
    )


class _Window:
    """Reads an object from start to end in large parts, for slices of any size."""

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        self._storage, self._path, self._size = storage, path, size
        self._start, self._data = 0, np.empty(0, np.uint8)

    def digest(self, position: int, size: int) -> str:
        digest, end = SliceDigest(), position + size
        while position < end:
            if not self._start <= position < self._start + self._data.size:
                part = self._storage.get_range(self._path, position, min(REQUEST_BYTES, self._size - position))
                self._start, self._data = position, np.frombuffer(part, np.uint8)
            here = self._data[position - self._start : end - self._start]
            digest.add(here)
            position += here.size
        return str(digest)


# Segments of which only the name is known.


def _from_batches(storage: Storage, item: ObjectToExamine, compacted: Collection[str], *, why: str) -> Examined:
    name = parse_segment_path(item.path)
    if name is None:
        return Examined(path=item.path, bytes=item.size, unknown=why)
    if is_framed(item.path):
        return _whole_frames(storage, item, name)
    limits = SegmentLimits() if name.topic_id in compacted else SegmentLimits(hole_offsets_min=1)
    author = _Author(item, name, limits)
    position = 0
    while position < item.size:
        position = _read_on(storage, item, author, position)
    author.end_slice()
    return Examined(path=item.path, bytes=item.size, slices=tuple(author.slices), lost=tuple(author.lost))


def _read_on(storage: Storage, item: ObjectToExamine, author: _Author, position: int) -> int:
    """Read to the end, or past the next damaged batch; where to go on."""
    author.position = position
    try:
        for data, headers in read_object(
            storage, item.path, position, item.size, raw_bytes_max=item.size, digest=SliceDigest()
        ):
            author.add(data, headers)
    except _DAMAGES as error:
        author.end_slice()
        found = _next_batch(storage, item, author)
        author.lose(found[1] if found else None, error)
        return found[0] if found else item.size
    return item.size


def _next_batch(storage: Storage, item: ObjectToExamine, author: _Author) -> tuple[int, int] | None:
    """Position and base offset of the batch behind the damaged one, if the damage left its length alone."""
    at = author.position
    try:
        length = int.from_bytes(storage.get_range(item.path, at + 8, 4), "big", signed=True)
        position = at + LOG_OVERHEAD_BYTES + length
        if length <= 0 or position >= item.size:
            return None
        behind = storage.get_range(item.path, position, min(REQUEST_BYTES, item.size - position))
        headers = walk(behind)
    except MaxbrodError as error:
        if not isinstance(error, _DAMAGES):
            raise
        return None
    base = int(headers["base_offset"][0]) if len(headers) else -1
    return (position, base) if base >= author.next_offset else None


class _Author:
    """Makes slices of the batches of a plain segment, as the writer did."""

    def __init__(self, item: ObjectToExamine, name: LogName, limits: SegmentLimits) -> None:
        self._item, self._name, self._limits = item, name, limits
        self.slices: list[FoundSlice] = []
        self.lost: list[LostRange] = []
        self.position = 0
        """The byte behind the last batch that was added."""
        self.next_offset = name.base_offset
        self._open: _OpenSlice | None = None

    def add(self, data: NDArray[np.uint8], headers: BatchHeaders) -> None:
        for batches in at_holes(describe(data, headers, exact=False), self._limits):
            first = int(batches.facts.first_offset[0])
            if first < self.next_offset:
                raise CorruptDataError("a batch does not come after the one before it", offset=first)
            if self._open is not None and first - self.next_offset >= self._limits.hole_offsets_min:
                self.end_slice()
            if self._open is None:
                self._open = _OpenSlice(position=self.position)
            self._open.add(batches)
            self.position += len(batches.log)
            self.next_offset = int(batches.facts.last_offset[-1]) + 1

    def end_slice(self) -> None:
        if self._open is None:
            return
        opened, self._open = self._open, None
        found = opened.tally.as_slice(
            path=self._item.path,
            position=opened.position,
            size=self.position - opened.position,
            aborted=(),
            digest=str(opened.digest),
        )
        self.slices.append(_found(self._item, self._name, found, opened.tally, opened.scan))

    def lose(self, end: int | None, error: MaxbrodError) -> None:
        name = self._name
        self.lost.append(
            LostRange(
                topic=name.topic,
                topic_id=name.topic_id,
                partition=name.partition,
                base=self.next_offset,
                end=end,
                path=self._item.path,
                message=error.message,
            )
        )


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
            heads=tuple((producer, *each) for producer, each in self._heads.items()),
            tails=tuple(self._open.items()),
        )


@dataclass(slots=True)
class _OpenSlice:
    position: int
    tally: SliceTally = field(default_factory=SliceTally)
    digest: SliceDigest = field(default_factory=SliceDigest)
    scan: TransactionScan = field(default_factory=TransactionScan)

    def add(self, batches: DescribedBatches) -> None:
        self.tally.add(batches)
        self.digest.add(batches.log)
        self.scan.add(batches.data, batches.headers)


def _found(item: ObjectToExamine, name: LogName, found: Slice, tally: SliceTally, scan: TransactionScan) -> FoundSlice:
    return FoundSlice(
        topic=name.topic,
        topic_id=name.topic_id,
        partition=name.partition,
        slice=found,
        epochs=tuple(tally.epochs),
        modified_ms=item.modified_ms,
        run_id=run_of_pack(item.path),
        transactions=scan.result(),
    )


def _whole_frames(storage: Storage, item: ObjectToExamine, name: LogName) -> Examined:
    """A segment in frames without a table of contents: one slice, because a slice is whole frames."""
    opened, digest = _OpenSlice(position=0), SliceDigest()
    room = log_bytes_max(item.size)
    try:
        for data, headers in read_object(storage, item.path, 0, item.size, raw_bytes_max=room, digest=digest):
            batches = describe(data, headers, exact=False)
            opened.tally.add(batches)
            opened.scan.add(batches.data, batches.headers)
    except _DAMAGES as error:
        author = _Author(item, name, SegmentLimits())
        author.lose(None, error)
        return Examined(path=item.path, bytes=item.size, lost=tuple(author.lost))
    found = opened.tally.as_slice(path=item.path, position=0, size=item.size, aborted=(), digest=str(digest))
    return Examined(path=item.path, bytes=item.size, slices=(_found(item, name, found, opened.tally, opened.scan),))


# Transactions


def scan_transactions(storage: Storage, found: FoundSlice) -> SliceTransactions:
    """Return the transactions of a slice whose digest was compared already."""
    scan = TransactionScan()
    for data, headers in read_logs(storage, found.slice, check_crc=False):
        scan.add(data, headers)
    return scan.result()
