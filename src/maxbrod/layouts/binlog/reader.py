"""The records of a binlog segment as Arrow batches, in pieces of bounded size.

Records are located by the segment's index as far as it is plausible, otherwise by walking the records. What the tool
itself leaves behind after a crash is handled here: bytes after the last indexed record were never acknowledged and are
skipped; bytes between two indexed records are a torn record that a restarted tool wrote after, and the index leads
around them; an index that was itself torn and appended to is useless from there on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.columns import project
from maxbrod.batch.kernels import sealed
from maxbrod.errors import (
    CorruptDataError,
    TruncatedDataError,
    UnsupportedFormatError,
)
from maxbrod.layouts.binlog import kernels
from maxbrod.layouts.binlog.format import ENTRY_BYTES, INDEX, MAGIC, RECORD_BYTES_MIN, RECORDS, SegmentFiles
from maxbrod.layouts.foreign import Fault, ForeignSegment, Survey
from maxbrod.layouts.found import FoundRecords, Room, batch_of
from maxbrod.layouts.tree import check_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.storage.interface import Storage

PIECE_BYTES: Final = 16 << 20
"""Bytes of records held at a time, unless a single record is larger."""
_PIECE_ENTRIES: Final = 1 << 16


def files_of(segment: ForeignSegment) -> SegmentFiles:
    """The files of a segment as its survey or its writer has described them."""
    index_bytes = segment.details.get("index_bytes")
    return SegmentFiles(
        records=segment.path,
        records_bytes=segment.bytes,
        index=None if index_bytes is None else segment.path.removesuffix(RECORDS) + INDEX,
        index_bytes=index_bytes or 0,
    )


def read(storage: Storage, segment: ForeignSegment, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    schema = project(None if columns is None else list(columns))
    files = files_of(segment)
    for some in entries(storage, files):
        for piece in _pieces(some):
            found, status = _find(storage, files, piece)
            if len(found.offset):
                yield batch_of(found, schema)
            if status != kernels.OK:
                raise _damaged(storage, files, piece, status, len(found.offset))


def _pieces(some: Entries) -> Iterator[Entries]:
    """Entries whose records are close together, so that one request reads them."""
    first = 0
    while first < len(some.offset):
        fits = int(np.searchsorted(some.stop, int(some.start[first]) + PIECE_BYTES, side="right"))
        last = max(fits, first + 1)
        yield some.rows(slice(first, last))
        first = last


def _find(storage: Storage, files: SegmentFiles, piece: Entries) -> tuple[FoundRecords, int]:
    """The records of the piece before the first damaged one, and the status of that."""
    begin, end = int(piece.start[0]), int(piece.stop[-1])
    data: NDArray[np.uint8] = sealed(np.frombuffer(storage.get_range(files.records, begin, end - begin), np.uint8))
    room = Room.of(len(piece.offset))._replace(offset=piece.offset)
    status, rows = kernels.scan(data, piece.start - begin, piece.stop - begin, room)
    return room.found(data, rows, kernels.scan_headers), status


def _damaged(storage: Storage, files: SegmentFiles, piece: Entries, status: int, row: int) -> CorruptDataError:
    return CorruptDataError(
        kernels.MEANING[status],
        object_name=storage.name_of(files.records),
        offset=int(piece.offset[row]),
        position=int(piece.start[row]),
        hint="the records file or its index is damaged there; the tool keeps no checksum that would show which",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """The offset of some records of a segment, and their bytes [start, stop) in the records file."""

    offset: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    def rows(self, keep: slice | NDArray[np.bool_]) -> Entries:
        return Entries(offset=self.offset[keep], start=self.start[keep], stop=self.stop[keep])


def entries(storage: Storage, files: SegmentFiles) -> Iterator[Entries]:
    """The entries of all records, in pieces, in the order of their offsets.

    CorruptDataError, TruncatedDataError: part of the index is useless, and the records cannot be walked either.
    """
    if files.records_bytes <= len(MAGIC):
        return
    check_magic(storage, files.records, bytes(storage.get_range(files.records, 0, 1)))
    last, position = -1, len(MAGIC)
    for found, believed in indexed(storage, files):
        if len(found.offset):
            yield found
            last, position = int(found.offset[-1]), int(found.stop[-1])
        if not believed:
            yield from walked(storage, files, position, last)


def check_magic(storage: Storage, path: str, first: bytes) -> None:
    if first != MAGIC:
        raise UnsupportedFormatError(
            f"a file begins with {first.hex()}; files of version 1 begin with 01",
            object_name=storage.name_of(path),
            position=0,
            hint="it is not a file of this layout, or it is of a later version",
        )


def indexed(storage: Storage, files: SegmentFiles) -> Iterator[tuple[Entries, bool]]:
    """The entries of the index, in pieces, and whether the index is plausible so far. It may end early.

    A missing index is not plausible.
    """
    count = max(files.index_bytes - len(MAGIC), 0) // ENTRY_BYTES
    if files.index is None or files.index_bytes < len(MAGIC):
        nothing = np.empty(0, np.int64)
        yield Entries(offset=nothing, start=nothing, stop=nothing), False
        return
    check_magic(storage, files.index, bytes(storage.get_range(files.index, 0, 1)))
    last, position = -1, len(MAGIC)
    for first in range(0, count, _PIECE_ENTRIES):
        rows = min(_PIECE_ENTRIES, count - first)
        data = storage.get_range(files.index, len(MAGIC) + first * ENTRY_BYTES, rows * ENTRY_BYTES)
        found = _decode(data)
        good = _believable(found, last, position, files.records_bytes)
        yield found.rows(slice(0, good)), good == rows
        if good < rows:
            return
        last, position = int(found.offset[-1]), int(found.stop[-1])


def _decode(data: memoryview) -> Entries:
    table = np.frombuffer(data, ">i8").reshape(-1, 3).astype(np.int64)
    offset, start, size = (np.ascontiguousarray(table[:, column]) for column in range(3))
    # An absurd size must not wrap around to one that looks right.
    absurd = (size < RECORD_BYTES_MIN) | (start < 0) | (start > np.iinfo(np.int64).max - np.maximum(size, 0))
    return Entries(offset=offset, start=start, stop=np.where(absurd, -1, start + np.where(absurd, 0, size)))


def _believable(found: Entries, last: int, position: int, records_bytes: int) -> int:
    """The number of plausible entries from the first on: offsets and positions rise and lie within the file."""
    before_offset = np.concatenate([np.array([last], np.int64), found.offset[:-1]])
    before_stop = np.concatenate([np.array([position], np.int64), found.stop[:-1]])
    wrong = (found.offset <= before_offset) | (found.start < before_stop) | (found.stop > records_bytes)
    wrong |= found.stop < 0
    where = np.flatnonzero(wrong)
    return int(where[0]) if where.size else len(found.offset)


def walked(storage: Storage, files: SegmentFiles, position: int, last: int) -> Iterator[Entries]:
    """Finds the records from `position` on without an index. A record that is repeated counts once."""
    size = PIECE_BYTES
    while position < files.records_bytes:
        size = min(size, files.records_bytes - position)
        data = np.frombuffer(storage.get_range(files.records, position, size), np.uint8)
        room = data.size // RECORD_BYTES_MIN + 1
        offset, start, stop = (np.empty(room, np.int64) for _ in range(3))
        status, rows, at = kernels.walk(sealed(data), 0, start, stop, offset)
        found = Entries(offset=offset[:rows], start=start[:rows] + position, stop=stop[:rows] + position)
        fresh = found.offset > np.maximum.accumulate(np.concatenate([np.array([last], np.int64), found.offset[:-1]]))
        if fresh.any():
            found = found.rows(fresh)
            last = int(found.offset[-1])
            yield found
        position += at
        if status == kernels.CUT and position + size - at < files.records_bytes:
            size = PIECE_BYTES if at else 2 * size  # the record is larger than a piece
        elif status != kernels.OK:
            raise _lost(storage, files, status, position, last)
        else:
            size = PIECE_BYTES


def _lost(storage: Storage, files: SegmentFiles, status: int, position: int, last: int) -> CorruptDataError:
    kind = TruncatedDataError if status == kernels.CUT else CorruptDataError
    return kind(
        f"{kernels.MEANING[status]}, and no index leads around it",
        object_name=storage.name_of(files.records),
        offset=last + 1,
        position=position,
        hint="everything before it can be read; repair builds an index that ends there",
    )


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    """Yield what is wrong. Quick: compares objects and sizes with the survey. Deep: decodes every record.

    A survey already compares names with indexes, and each index with the size of its records.
    """
    yield from survey.faults
    sizes = {info.path: info.size for info in storage.list()}
    for segment in survey.segments:
        size = sizes.get(segment.path)
        if size is None or size < segment.bytes:
            message = "is missing" if size is None else f"has {size} bytes, {segment.bytes - size} fewer than it had"
            yield Fault(path=segment.path, message=message, offset=segment.base_offset)
        elif deep:
            end = None if segment.records is None else segment.end_offset
            batches = read(storage, segment, ["offset", "key", "value", "headers"])
            yield from check_records(segment, batches, end=end)
