"""Scans one log file once: where its sound batches end, and all that must be known of them without reading again.

As in a broker's recovery, a file is good up to the first batch that is cut, damaged or out of order. Without checksums,
only the headers of large batches are read, by jumping from one batch to the next; the end of a file, where crashes
leave their traces, is always read in full.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.cuts import begin_at
from maxbrod.batch.headers import (
    ATTRIBUTE_CONTROL,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NEWEST_MAGIC,
    BatchHeaders,
    read_headers,
    walk,
)
from maxbrod.batch.transactions import abort_markers
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.layouts.kafka.described_batches import DescribedBatches, SliceTally, describe, header_facts
from maxbrod.layouts.logdir.reader import CHUNK_BYTES, batches, is_plain
from maxbrod.model import Codec
from maxbrod.storage.interface import ByteRange, Storage

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from numpy.typing import NDArray

    from maxbrod.layouts.logdir.format import LogFile


OFFSET_MAX: Final = (1 << 63) - 1
DATA, ABORTED, COMMITTED = range(3)
END_BYTES: Final = 4 << 20
"""Bytes at the end of every file that are always read in full: there crashes leave their traces."""
_NOTHING: Final = np.empty(0, np.uint8)
_WINDOW_BYTES: Final = 1 << 20
_LARGE_BYTES: Final = 128 << 10
"""After a batch of this size only the next header is read. Skipping smaller gaps costs as much as reading them."""
_NARROW_BYTES: Final = 4 << 10
_CONTROL_BYTES_MAX: Final = 1 << 10
_GROUP_BATCHES: Final = 1 << 13
_START: Final = struct.Struct(">8xi4xb4xh")  # length, magic, attributes

MIDDLE_BYTES_MIN: Final = 4 << 20
"""A smaller middle is not worth reading an index."""
_INDEX_BYTES_MAX: Final = 64 << 20
"""The index of a file of 2 GiB, which is the largest, has 4 MiB with a broker's defaults."""
_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
_SAMPLES: Final = 16
"""Headers of the middle that are looked at, since an assumption that fails costs a second copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDamage:
    """The position at which the sound batches end before the file does."""

    position: int
    message: str


@dataclass(slots=True, kw_only=True)
class ScannedLog:
    file: LogFile
    tally: SliceTally = field(default_factory=SliceTally)
    position: int = 0
    """The position of the first batch that is included."""
    stop: int = 0
    """The position after the last one."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Each leader epoch of the batches with its first offset."""
    holes: list[tuple[int, int]] = field(default_factory=list)
    """Offsets [first, end) between two batches."""
    events: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Producer id and epoch, offset, and what: the beginning of a transaction in this file, or its marker."""
    damage: LogDamage | None = None
    checked: bool = True
    """True if every checksum was verified."""
    middle_read: bool = True
    """False: only the ends of the file were read (`scan_ends`), and timestamps and codec are unknown."""
    log_start: int | None = None
    """The start of the log, if that is within the first batch: the records before are excluded."""

    @property
    def empty(self) -> bool:
        return self.tally.base_offset < 0

    @property
    def base_offset(self) -> int:
        return self.file.base_offset if self.empty else self.tally.base_offset

    @property
    def end_offset(self) -> int:
        return self.file.base_offset if self.empty else self.tally.end_offset


def scan(
    storage: Storage,
    file: LogFile,
    *,
    first: int = 0,
    end: int = OFFSET_MAX,
    check_crc: bool = True,
    before: ScannedLog | None = None,
) -> ScannedLog:
    """The batches that end in [first, end); one that begins before `first` is included.

    Without `check_crc` only the end of the file is read in full. `before`: what is known up to its `stop`; the rest of
    the file is added to it.
    """
    found = ScannedLog(file=file, checked=check_crc) if before is None else before
    position = found.stop
    range_ = _Range(first=first, end=end)
    try:
        for piece, aborts, after in () if check_crc else _jumped(storage, file):
            if not _absorb(found, piece, 0, range_, aborts):
                return found
            position = after
        for data, headers in batches(storage, file.path, position, file.size):
            piece = describe(data, headers.take(slice(_known(headers))), exact=False)
            if not _absorb(found, piece, position, range_):
                return found
            if len(piece) < len(headers):
                found.damage = _oddity(headers, len(piece), position, "has an unknown codec")
                return found
            position += headers.end
    except (CorruptDataError, UnsupportedFormatError) as error:
        at = position if error.position is None else error.position
        if not _is_zero(storage, file, at):
            found.damage = LogDamage(position=at, message=error.message)
    return found


def begin_within(storage: Storage, found: ScannedLog, log_start: int) -> None:
    """Excludes the records of the first batch before the start of the log."""
    data, headers = next(batches(storage, found.file.path, found.position, found.stop, check_crc=False))
    kept, left = begin_at(data, headers, log_start)
    if kept is data:
        return
    before, after = (_tally(each, of) for each, of in ((data, headers), (kept, left)))
    found.tally.records += after.records - before.records
    found.tally.control_records += after.control_records - before.control_records
    found.tally.base_offset = max(after.base_offset, log_start)
    found.log_start = log_start


def _tally(data: NDArray[np.uint8], headers: BatchHeaders) -> SliceTally:
    tally = SliceTally()
    if len(headers):
        tally.add(describe(data, headers, exact=False))
    return tally


@dataclass(slots=True, kw_only=True)
class _Range:
    first: int
    end: int
    begun: set[int] = field(default_factory=set)
    """Producers with an open transaction that began in the file."""


def _jumped(storage: Storage, file: LogFile) -> Iterator[tuple[DescribedBatches, frozenset[tuple[int, int]], int]]:
    """Pieces without bytes, their abort markers, and the position after each, up to the part that is read in full."""
    for group in jump(storage, file, file.size - END_BYTES):
        headers = group.headers
        if _known(headers) < len(headers):
            return
        yield DescribedBatches(data=_NOTHING, headers=headers, facts=header_facts(headers)), group.aborts, headers.end


def _absorb(
    found: ScannedLog,
    piece: DescribedBatches,
    position: int,
    range_: _Range,
    aborts: frozenset[tuple[int, int]] | None = None,
) -> bool:
    """Adds the part of a piece within the range. Returns whether more may follow. `aborts` None: read the markers."""
    rising = _rising(found, piece)
    low = int(np.searchsorted(piece.facts.last_offset[:rising], range_.first))
    high = int(np.searchsorted(piece.facts.last_offset[:rising], range_.end))
    if low < high:
        _add(found, piece.take(slice(low, high)), position, range_.begun, aborts)
    if high < rising:
        return False
    if rising < len(piece):
        found.damage = _oddity(piece.headers, rising, position, "does not follow the one before")
        return False
    return True


def _known(headers: BatchHeaders) -> int:
    """The number of batches before the first one with an undefined codec."""
    return int(np.argmax(np.append(headers.codec > max(Codec), True)))


def _oddity(headers: BatchHeaders, row: int, position: int, what: str) -> LogDamage:
    offset = int(headers["base_offset"][row])
    return LogDamage(position=position + int(headers.position[row]), message=f"a batch at offset {offset} {what}")


def _rising(found: ScannedLog, piece: DescribedBatches) -> int:
    """The number of batches that are in order, after those found before."""
    facts = piece.facts
    if not len(piece):
        return 0
    wrong = np.flatnonzero(facts.first_offset[1:] <= facts.last_offset[:-1]) + 1
    if not found.empty and int(facts.first_offset[0]) < found.tally.end_offset:
        return 0
    return int(wrong[0]) if wrong.size else len(piece)


def _add(
    found: ScannedLog,
    piece: DescribedBatches,
    position: int,
    begun: set[int],
    aborts: frozenset[tuple[int, int]] | None,
) -> None:
    headers, facts = piece.headers, piece.facts
    before = int(facts.first_offset[0]) if found.empty else found.tally.end_offset
    if found.empty:
        found.position = position + int(headers.position[0])
    ends = np.append(np.int64(before), facts.last_offset[:-1] + 1)
    for row in np.flatnonzero(facts.first_offset > ends).tolist():
        found.holes.append((int(ends[row]), int(facts.first_offset[row])))
    epochs = headers["leader_epoch"]
    last = found.epochs[-1][0] if found.epochs else None
    for row in [0, *(np.flatnonzero(epochs[1:] != epochs[:-1]) + 1).tolist()]:
        if int(epochs[row]) != last:
            last = int(epochs[row])
            found.epochs.append((last, int(facts.first_offset[row])))
    if headers.transactional.any():
        _note_transactions(found, piece, begun, set(abort_markers(piece.data, headers)) if aborts is None else aborts)
    found.tally.add(piece)
    found.stop = position + int(headers.position[-1] + headers.size[-1])


def _note_transactions(
    found: ScannedLog, piece: DescribedBatches, begun: set[int], aborts: Container[tuple[int, int]]
) -> None:
    headers = piece.headers
    control = headers.control
    # Batches that compaction has emptied belong to decided transactions: the cleaner stops before open ones.
    for row in np.flatnonzero(headers.transactional & (headers["count"] > 0)).tolist():
        producer_id, offset = int(headers["producer_id"][row]), int(headers["base_offset"][row])
        epoch = int(headers["producer_epoch"][row])
        if control[row]:
            begun.discard(producer_id)
            kind = ABORTED if (producer_id, offset) in aborts else COMMITTED
            found.events.append((producer_id, epoch, offset, kind))
        elif producer_id not in begun:
            begun.add(producer_id)
            found.events.append((producer_id, epoch, offset, DATA))


def _is_zero(storage: Storage, file: LogFile, position: int) -> bool:
    """True if only zeros follow: a log that its broker has preallocated."""
    for start in range(position, file.size, CHUNK_BYTES):
        part = storage.get_range(file.path, start, min(CHUNK_BYTES, file.size - start))
        if np.frombuffer(part, np.uint8).any():
            return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Jumped:
    """Headers of successive batches. Positions are those in the file."""

    headers: BatchHeaders
    aborts: frozenset[tuple[int, int]]
    """Producer id and offset of each abort marker."""


def jump(storage: Storage, file: LogFile, stop: int) -> Iterator[Jumped]:
    """The batches that begin before `stop`, in groups. Ends early, without an error, at anything unusual."""
    walker = _Walker(storage, file, stop)
    while walker.step():
        try:
            yield walker.group()
        except (CorruptDataError, UnsupportedFormatError):
            return


class _Walker:
    def __init__(self, storage: Storage, file: LogFile, stop: int) -> None:
        self._storage, self._path, self._size, self._stop = storage, file.path, file.size, stop
        self._at = 0
        self._window, self._base = memoryview(b""), 0
        self._window_bytes = _WINDOW_BYTES
        self._rows: list[bytes] = []
        self._positions: list[int] = []
        self._sizes: list[int] = []
        self._controls: list[bytes] = []

    def step(self) -> bool:
        """Reads the next group; returns whether there is one."""
        self._rows, self._positions, self._sizes, self._controls = [], [], [], []
        while self._at < self._stop and len(self._rows) < _GROUP_BATCHES:
            if self._size - self._at < HEADER_BYTES:
                break
            header = self._bytes(HEADER_BYTES)
            length, magic, attributes = _START.unpack_from(header)
            size = length + LOG_OVERHEAD_BYTES
            if magic != NEWEST_MAGIC or not HEADER_BYTES <= size <= self._size - self._at:
                break
            if attributes & ATTRIBUTE_CONTROL:
                if size > _CONTROL_BYTES_MAX:
                    break
                self._controls.append(bytes(self._bytes(size)))
            self._rows.append(bytes(header))
            self._positions.append(self._at)
            self._sizes.append(size)
            self._window_bytes = _NARROW_BYTES if size >= _LARGE_BYTES else _WINDOW_BYTES
            self._at += size
        return bool(self._rows)

    def group(self) -> Jumped:
        positions, sizes = np.array(self._positions, np.int64), np.array(self._sizes, np.int64)
        headers = read_headers(b"".join(self._rows), positions, sizes)
        controls = np.frombuffer(b"".join(self._controls), np.uint8)
        aborts = abort_markers(controls, walk(controls, check_crc=False)) if self._controls else ()
        return Jumped(headers=headers, aborts=frozenset(aborts))

    def _bytes(self, size: int) -> memoryview:
        """Bytes from the current position on."""
        start = self._at - self._base
        if not 0 <= start <= len(self._window) - size:
            count = min(max(self._window_bytes, size), self._size - self._at)
            self._window, self._base, start = self._storage.get_range(self._path, self._at, count), self._at, 0
        return self._window[start : start + size]


def scan_ends(storage: Storage, file: LogFile, noted: Sequence[tuple[int, int]]) -> ScannedLog | None:
    """Return the file, known by its ends; None if all of it must be scanned.

    `noted` has the leader epochs and their starts. The index says where a batch begins near the end of the file. The
    middle is not read. It is assumed to be plain: batches without holes and transactions, whose leader epochs begin
    where the broker has noted it. Whoever reads the segment proves that (`reader.read_batches`), and a backup reads
    every byte anyway. Nothing is trusted of the index but that a batch may begin at its positions: those that are used
    are looked at.
    """
    if file.swap or file.size < END_BYTES + MIDDLE_BYTES_MIN:
        return None
    try:
        headers = _sampled(storage, file)
        found = None if headers is None else _assumed(file, headers, noted)
        if found is None:
            return None
        middle_end = found.stop
        scan(storage, file, before=found)
    except (CorruptDataError, UnsupportedFormatError, ObjectNotFoundError):
        return None
    tally = found.tally
    plain = not found.events and tally.records == tally.end_offset - tally.base_offset
    return found if plain and found.stop > middle_end else None


def _sampled(storage: Storage, file: LogFile) -> BatchHeaders | None:
    """The first header of the file, some of the middle, and that of the batch with which the end begins."""
    positions = _positions(storage, file)
    positions = positions[: int(np.searchsorted(positions, file.size - END_BYTES, side="right"))]
    if not positions.size or positions[-1] < MIDDLE_BYTES_MIN:
        return None
    rows = np.linspace(0, positions.size - 1, min(_SAMPLES, positions.size)).astype(np.int64)
    at = np.unique(np.append(np.int64(0), positions[rows]))
    ranges = [ByteRange(start=int(position), size=HEADER_BYTES) for position in at]
    read = b"".join(bytes(part) for part in storage.get_ranges(file.path, ranges))
    return read_headers(read, at, np.full(at.size, HEADER_BYTES, np.int64))


def _positions(storage: Storage, file: LogFile) -> NDArray[np.int64]:
    """The rising positions in the index of a file."""
    path = f"{file.path.removesuffix('.log')}.index"
    if storage.head(path).size > _INDEX_BYTES_MAX:
        return np.empty(0, np.int64)
    data = storage.get(path)
    positions = np.frombuffer(data[: len(data) - len(data) % _ENTRY.itemsize], _ENTRY)["position"].astype(np.int64)
    # The index of the last file is allocated in advance: zeros follow if its broker was killed.
    rising = np.diff(positions, prepend=0) > 0
    return positions if rising.all() else positions[: int(rising.argmin())]


def _assumed(file: LogFile, headers: BatchHeaders, noted: Sequence[tuple[int, int]]) -> ScannedLog | None:
    """The file up to the last of these headers, if nothing in them shows that it is not plain."""
    offsets = headers["base_offset"]
    first, last = int(offsets[0]), int(offsets[-1])
    epochs = [(int(headers["leader_epoch"][0]), first), *(epoch for epoch in noted if first < epoch[1] < last)]
    if first != file.base_offset or (np.diff(offsets) <= 0).any() or not is_plain(headers, epochs).all():
        return None
    found = ScannedLog(file=file, checked=False, middle_read=False, stop=int(headers.position[-1]))
    found.epochs += epochs
    found.tally.base_offset, found.tally.end_offset, found.tally.records = first, last, last - first
    return found
