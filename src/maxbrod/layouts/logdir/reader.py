"""Reads log files of partitions: their batches, in bounded memory; what a scan finds in one; their records; the check.

A scan reads a file once: where its sound batches end, and all that must be known of them without reading again. As in a
broker's recovery, a file is good up to the first batch that is cut, damaged or out of order. Without checksums, only
the headers of large batches are read, by jumping from one batch to the next; the end of a file, where crashes leave
their traces, is always read in full.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.cuts import begin_at
from maxbrod.batch.headers import (
    ATTRIBUTE_CONTROL,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NEWEST_MAGIC,
    BatchHeaders,
    read_headers,
    walk,
    walk_sound,
)
from maxbrod.batch.transactions import abort_markers
from maxbrod.errors import (
    CorruptDataError,
    MaxbrodError,
    ObjectNotFoundError,
    TruncatedDataError,
    UnsupportedFormatError,
    naming,
)
from maxbrod.layouts.foreign import Fault, ForeignSegment, Survey
from maxbrod.layouts.kafka.described_batches import DescribedBatches, SliceTally, describe, header_facts
from maxbrod.layouts.logdir.format import LogFile
from maxbrod.layouts.reader import decode_committed
from maxbrod.model import Codec
from maxbrod.storage.interface import ByteRange, Storage

Batches = tuple[NDArray[np.uint8], BatchHeaders]

CHUNK_BYTES: Final = 4 << 20
"""Larger buffers are mapped anew each time, which took as long as everything else together."""
MIDDLE_UNREAD: Final = "middle_unread"
"""In the details of a segment whose survey has read the ends of the file only: its leader epochs and their starts."""
_BATCH_BYTES_MAX: Final = (1 << 31) - 1
OFFSET_MAX: Final = (1 << 63) - 1
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


def batches(storage: Storage, path: str, start: int, stop: int, *, check_crc: bool = True) -> Iterator[Batches]:
    """Whole batches of the bytes [start, stop), a chunk at a time.

    CorruptDataError, UnsupportedFormatError: the batch at `position` of the file is not sound. Everything before it has
    been yielded by then.
    """
    at, size = start, CHUNK_BYTES
    with naming(storage.name_of(path)):
        while at < stop:
            data = np.frombuffer(storage.get_range(path, at, min(size, stop - at)), np.uint8)
            # No batch is longer than the rest, so a damaged length does not make all of the file be read at once.
            longest = min(stop - at, _BATCH_BYTES_MAX)
            headers, error = walk_sound(data, check_crc=check_crc, batch_bytes_max=longest)
            if len(headers):
                yield data[: headers.end], replace(headers, tail=0)
                at, size = at + headers.end, CHUNK_BYTES
            elif error is None:
                if at + data.size >= stop:
                    raise TruncatedDataError(f"the last batch is cut: {data.size} bytes of it exist", position=at)
                size *= 2
            if error is not None:
                error.position = at
                raise error


class Fate(Enum):
    """The end of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class LogDamage(NamedTuple):
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
    holes: bool = False
    """True if offsets are missing between two batches."""
    events: list[tuple[int, int, int, Fate | None]] = field(default_factory=list)
    """Producer id and epoch, offset, and what: None for the beginning of a transaction in this file, or its marker."""
    begun: set[int] = field(default_factory=set)
    """Producers with an open transaction that began in the file."""
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

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """Each leader epoch of the batches with its first offset."""
        return [(epoch, offset) for offset, epoch in self.tally.epochs]

    def absorb(
        self,
        piece: DescribedBatches,
        position: int,
        first: int,
        end: int,
        aborts: Container[tuple[int, int]] | None = None,
    ) -> bool:
        """Adds the batches of a piece that end in [first, end). Returns whether more may follow.

        `position` is that of the piece in the file, `aborts` its abort markers; None: read them.
        """
        facts = piece.facts
        before = np.append(np.int64(self.tally.end_offset - 1), facts.last_offset[:-1])
        rising = int(np.argmax(np.append(facts.first_offset <= before, True)))
        low, high = (int(np.searchsorted(facts.last_offset[:rising], edge)) for edge in (first, end))
        if low < high:
            self._add(piece.take(slice(low, high)), position, aborts)
        if high == rising < len(piece):
            self.damage = _oddity(piece.headers, rising, position, "does not follow the one before")
        return high == len(piece)

    def _add(self, piece: DescribedBatches, position: int, aborts: Container[tuple[int, int]] | None) -> None:
        headers, facts = piece.headers, piece.facts
        reached = int(facts.first_offset[0]) if self.empty else self.tally.end_offset
        if self.empty:
            self.position = position + int(headers.position[0])
        self.holes |= bool((facts.first_offset > np.append(np.int64(reached), facts.last_offset[:-1] + 1)).any())
        if headers.transactional.any():
            self._note_transactions(headers, set(abort_markers(piece.data, headers)) if aborts is None else aborts)
        self.tally.add(piece)
        self.stop = position + int(headers.position[-1] + headers.size[-1])

    def _note_transactions(self, headers: BatchHeaders, aborts: Container[tuple[int, int]]) -> None:
        control = headers.control
        # Batches that compaction has emptied belong to decided transactions: the cleaner stops before open ones.
        for row in np.flatnonzero(headers.transactional & (headers["count"] > 0)).tolist():
            producer_id, offset = int(headers["producer_id"][row]), int(headers["base_offset"][row])
            if not control[row] and producer_id in self.begun:
                continue
            fate = None
            if control[row]:
                self.begun.discard(producer_id)
                fate = Fate.ABORTED if (producer_id, offset) in aborts else Fate.COMMITTED
            else:
                self.begun.add(producer_id)
            self.events.append((producer_id, int(headers["producer_epoch"][row]), offset, fate))


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
    try:
        for piece, aborts in () if check_crc else _jump(storage, file):
            if not found.absorb(piece, 0, first, end, aborts):
                return found
            position = piece.headers.end
        for data, headers in batches(storage, file.path, position, file.size):
            piece = describe(data, headers.take(slice(_known(headers))), exact=False)
            if not found.absorb(piece, position, first, end):
                return found
            if len(piece) < len(headers):
                found.damage = _oddity(headers, len(piece), position, "has an unknown codec")
                return found
            position += headers.end
    except (CorruptDataError, UnsupportedFormatError) as error:
        at = position if error.position is None else error.position
        if not _is_zero(storage, file, at):
            found.damage = LogDamage(at, error.message)
    return found


def begin_within(storage: Storage, found: ScannedLog, log_start: int) -> None:
    """Excludes the records of the first batch before the start of the log."""
    data, headers = next(batches(storage, found.file.path, found.position, found.stop, check_crc=False))
    kept, left = begin_at(data, headers, log_start)
    if kept is data:
        return
    before, after = SliceTally(), SliceTally()
    before.add(describe(data, headers, exact=False))
    if len(left):
        after.add(describe(kept, left, exact=False))
    found.tally.records += after.records - before.records
    found.tally.control_records += after.control_records - before.control_records
    found.tally.base_offset = max(after.base_offset, log_start)
    found.log_start = log_start


def _known(headers: BatchHeaders) -> int:
    """The number of batches before the first one with an undefined codec."""
    return int(np.argmax(np.append(headers.codec > max(Codec), True)))


def _oddity(headers: BatchHeaders, row: int, position: int, what: str) -> LogDamage:
    offset = int(headers["base_offset"][row])
    return LogDamage(position + int(headers.position[row]), f"a batch at offset {offset} {what}")


def _is_zero(storage: Storage, file: LogFile, position: int) -> bool:
    """True if only zeros follow: a log that its broker has preallocated."""
    for start in range(position, file.size, CHUNK_BYTES):
        part = storage.get_range(file.path, start, min(CHUNK_BYTES, file.size - start))
        if np.frombuffer(part, np.uint8).any():
            return False
    return True


def _jump(storage: Storage, file: LogFile) -> Iterator[tuple[DescribedBatches, frozenset[tuple[int, int]]]]:
    """Pieces without bytes, whose positions are those in the file, and producer id and offset of their abort markers.

    Ends before the part that is read in full, or earlier, without an error, at anything unusual.
    """
    at, stop, width = 0, file.size - END_BYTES, _WINDOW_BYTES
    window, base = memoryview(b""), 0

    def read(size: int) -> memoryview:
        nonlocal window, base
        if not 0 <= at - base <= len(window) - size:
            window = storage.get_range(file.path, at, min(max(width, size), file.size - at))
            base = at
        return window[at - base : at - base + size]

    while True:
        rows, positions, sizes, controls = list[bytes](), list[int](), list[int](), list[bytes]()
        while at < stop and len(rows) < _GROUP_BATCHES and file.size - at >= HEADER_BYTES:
            header = read(HEADER_BYTES)
            length, magic, attributes = _START.unpack_from(header)
            size = length + LOG_OVERHEAD_BYTES
            control = attributes & ATTRIBUTE_CONTROL
            largest = min(file.size - at, _CONTROL_BYTES_MAX) if control else file.size - at
            if magic != NEWEST_MAGIC or not HEADER_BYTES <= size <= largest:
                break
            if control:
                controls.append(bytes(read(size)))
            rows.append(bytes(header))
            positions.append(at)
            sizes.append(size)
            width = _NARROW_BYTES if size >= _LARGE_BYTES else _WINDOW_BYTES
            at += size
        try:
            headers = read_headers(b"".join(rows), np.array(positions, np.int64), np.array(sizes, np.int64))
            marked = np.frombuffer(b"".join(controls), np.uint8)
            aborts = frozenset(abort_markers(marked, walk(marked, check_crc=False)))
        except (CorruptDataError, UnsupportedFormatError):
            return
        if not rows or _known(headers) < len(headers):
            return
        yield DescribedBatches(data=_NOTHING, headers=headers, facts=header_facts(headers)), aborts


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
    found.tally.epochs += [(offset, epoch) for epoch, offset in epochs]
    found.tally.base_offset, found.tally.end_offset, found.tally.records = first, last, last - first
    return found


def read_batches(storage: Storage, segment: ForeignSegment, *, check_crc: bool = True) -> Iterator[Batches]:
    """The batches of a segment as the broker stored them, as far as the survey has found them sound.

    If the log begins within the first batch, the records before are removed from it. CorruptDataError also if the
    survey has read the ends of the file only, and its middle is not plain.
    """
    start, log_start = int(segment.details["position"]), segment.details.get("log_start")
    found = batches(storage, segment.path, start, start + segment.bytes, check_crc=check_crc)
    if (epochs := segment.details.get(MIDDLE_UNREAD)) is not None:
        found = _proved(segment, epochs, found)
    try:
        if log_start is not None and (first := next(found, None)) is not None:
            yield begin_at(*first, int(log_start))
        yield from found
    except MaxbrodError as error:
        error.offset = segment.base_offset if error.offset is None else error.offset
        raise


def is_plain(headers: BatchHeaders, epochs: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return a mask of the batches that are complete, of no transaction, and of the leader epoch expected there.

    `epochs` are those of the file with their first offsets, in order.
    """
    numbers, starts = np.array(epochs, np.int64).T
    expected = numbers[np.searchsorted(starts, headers["base_offset"], side="right") - 1]
    complete = headers["count"].astype(np.int64) == headers["last_offset_delta"].astype(np.int64) + 1
    special = headers.transactional | headers.control | (headers.codec > max(Codec))
    plain: NDArray[np.bool_] = (
        (headers["magic"] == NEWEST_MAGIC) & (headers["leader_epoch"] == expected) & complete & ~special
    )
    return plain


def _proved(
    segment: ForeignSegment,
    epochs: Sequence[tuple[int, int]],
    pieces: Iterator[Batches],
) -> Iterator[Batches]:
    """The pieces of a segment, if they are what its survey has assumed: plain batches without a hole."""
    reached = segment.base_offset
    for data, headers in pieces:
        follows = headers["base_offset"] == np.append(np.int64(reached), headers.last_offset[:-1] + 1)
        wrong = np.flatnonzero(~(is_plain(headers, epochs) & follows))
        if wrong.size:
            reached = int(headers["base_offset"][wrong[0]])
            break
        reached = int(headers.last_offset[-1]) + 1
        yield data, headers
    else:
        if reached == segment.end_offset:
            return
    raise CorruptDataError(
        f"from offset {reached} on the log differs from what the ends of its file showed: a hole, a transaction, "
        "another leader epoch, or damage",
        offset=reached,
        hint="survey it with check_crc=true, which reads all of it",
    )


def read(storage: Storage, segment: ForeignSegment, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """The records that an application may see."""
    for data, headers in read_batches(storage, segment):
        yield from decode_committed(data, headers, segment.aborted, columns=columns)


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    """The survey has verified every batch already. A deep check also decodes the records."""
    yield from survey.faults
    for segment in survey.segments if deep else ():
        try:
            for _ in read(storage, segment, None):
                pass
        except MaxbrodError as error:
            yield Fault(path=segment.path, message=error.message, offset=error.offset)
