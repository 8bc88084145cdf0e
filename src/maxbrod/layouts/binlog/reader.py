"""The records of a binlog segment as Arrow batches, in pieces of bounded size.

Records are located by the segment's index as far as it is plausible, otherwise by walking the records. What the tool
itself leaves behind after a crash is handled here: bytes after the last indexed record were never acknowledged and are
skipped; bytes between two indexed records are a torn record that a restarted tool wrote after, and the index leads
around them; an index that was itself torn and appended to is useless from there on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.columns import project
from maxbrod.batch.kernels import sealed
from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError
from maxbrod.layouts.binlog import format as binlog
from maxbrod.layouts.binlog import kernels
from maxbrod.layouts.binlog.survey import files_of as listed_files
from maxbrod.layouts.foreign import Fault, ForeignSegment, Survey
from maxbrod.layouts.found import Room
from maxbrod.layouts.tree import check_records
from maxbrod.model import TopicPartition
from maxbrod.storage.interface import Storage

PIECE_BYTES: Final = 16 << 20
"""Bytes of records held at a time, unless a single record is larger."""
_PIECE_ENTRIES: Final = 1 << 16
_DAMAGED: Final = "the records file or its index is damaged there; the tool keeps no checksum that would show which"


def _files_of(segment: ForeignSegment) -> binlog.SegmentFiles:
    """The files of a segment as its survey or its writer has described them."""
    index_bytes = segment.details.get("index_bytes")
    return binlog.SegmentFiles(
        records=segment.path,
        records_bytes=segment.bytes,
        index=None if index_bytes is None else segment.path.removesuffix(binlog.RECORDS) + binlog.INDEX,
        index_bytes=index_bytes or 0,
    )


def read(storage: Storage, segment: ForeignSegment, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    schema = project(None if columns is None else list(columns))
    files = _files_of(segment)
    for some in entries(storage, files):
        for piece in _pieces(some):
            begin, end = int(piece.start[0]), int(piece.stop[-1])
            data = sealed(np.frombuffer(storage.get_range(files.records, begin, end - begin), np.uint8))
            room = Room.of(len(piece.offset))._replace(offset=piece.offset)
            status, rows = kernels.scan(data, piece.start - begin, piece.stop - begin, room)
            if rows:
                yield room.batch(data, rows, schema, kernels.scan_headers)
            if status != kernels.OK:
                raise CorruptDataError(
                    kernels.MEANING[status],
                    object_name=storage.name_of(files.records),
                    offset=int(piece.offset[rows]),
                    position=int(piece.start[rows]),
                    hint=_DAMAGED,
                )


def _pieces(some: Entries) -> Iterator[Entries]:
    """Entries whose records are close together, so that one request reads them."""
    first = 0
    while first < len(some.offset):
        fits = int(np.searchsorted(some.stop, int(some.start[first]) + PIECE_BYTES, side="right"))
        last = max(fits, first + 1)
        yield some.rows(slice(first, last))
        first = last


class Entries(NamedTuple):
    """The offset of some records of a segment, and their bytes [start, stop) in the records file."""

    offset: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    def rows(self, keep: slice | NDArray[np.bool_]) -> Entries:
        return Entries(*(column[keep] for column in self))


def entries(storage: Storage, files: binlog.SegmentFiles) -> Iterator[Entries]:
    """The entries of all records, in pieces, in the order of their offsets.

    CorruptDataError, TruncatedDataError: part of the index is useless, and the records cannot be walked either.
    """
    if files.records_bytes <= len(binlog.MAGIC):
        return
    check_magic(storage, files.records, bytes(storage.get_range(files.records, 0, 1)))
    last, position = -1, len(binlog.MAGIC)
    for found, believed in indexed(storage, files):
        if len(found.offset):
            yield found
            last, position = int(found.offset[-1]), int(found.stop[-1])
        if not believed:
            yield from walked(storage, files, position, last)


def check_magic(storage: Storage, path: str, first: bytes) -> None:
    if first != binlog.MAGIC:
        raise UnsupportedFormatError(
            f"a file begins with {first.hex()}; files of version 1 begin with 01",
            object_name=storage.name_of(path),
            position=0,
            hint="it is not a file of this layout, or it is of a later version",
        )


def indexed(storage: Storage, files: binlog.SegmentFiles) -> Iterator[tuple[Entries, bool]]:
    """The entries of the index, in pieces, and whether the index is plausible so far. It may end early.

    A missing index is not plausible.
    """
    count = max(files.index_bytes - len(binlog.MAGIC), 0) // binlog.ENTRY_BYTES
    if files.index is None or files.index_bytes < len(binlog.MAGIC):
        nothing = np.empty(0, np.int64)
        yield Entries(offset=nothing, start=nothing, stop=nothing), False
        return
    check_magic(storage, files.index, bytes(storage.get_range(files.index, 0, 1)))
    last, position = -1, len(binlog.MAGIC)
    for first in range(0, count, _PIECE_ENTRIES):
        rows = min(_PIECE_ENTRIES, count - first)
        data = storage.get_range(files.index, len(binlog.MAGIC) + first * binlog.ENTRY_BYTES, rows * binlog.ENTRY_BYTES)
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
    absurd = (size < binlog.RECORD_BYTES_MIN) | (start < 0) | (start > np.iinfo(np.int64).max - np.maximum(size, 0))
    return Entries(offset=offset, start=start, stop=np.where(absurd, -1, start + np.where(absurd, 0, size)))


def _believable(found: Entries, last: int, position: int, records_bytes: int) -> int:
    """The number of plausible entries from the first on: offsets and positions rise and lie within the file."""
    before_offset = np.concatenate([np.array([last], np.int64), found.offset[:-1]])
    before_stop = np.concatenate([np.array([position], np.int64), found.stop[:-1]])
    wrong = (found.offset <= before_offset) | (found.start < before_stop) | (found.stop > records_bytes)
    wrong |= found.stop < 0
    where = np.flatnonzero(wrong)
    return int(where[0]) if where.size else len(found.offset)


def walked(storage: Storage, files: binlog.SegmentFiles, position: int, last: int) -> Iterator[Entries]:
    """Finds the records from `position` on without an index. A record that is repeated counts once."""
    size = PIECE_BYTES
    while position < files.records_bytes:
        size = min(size, files.records_bytes - position)
        data = np.frombuffer(storage.get_range(files.records, position, size), np.uint8)
        room = data.size // binlog.RECORD_BYTES_MIN + 1
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


def _lost(storage: Storage, files: binlog.SegmentFiles, status: int, position: int, last: int) -> CorruptDataError:
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


def repair(storage: Storage) -> list[Fault]:
    """Rebuild indexes from the records files, which alone hold what cannot be rebuilt. Report what was wrong.

    `fatal`: records that no index can lead to. Reads all segment indexes, and the records of segments whose index is
    useless. Indexes are replaced by correct ones; records files are never changed. May be repeated after a crash.
    """
    faults: list[Fault] = []
    for where, objects in binlog.arrange(storage.list()).items():
        if objects.backed_up:
            _repair_partition(storage, where, objects, faults)
    return faults


def _repair_partition(
    storage: Storage, where: TopicPartition, objects: binlog.PartitionObjects, faults: list[Fault]
) -> None:
    before = bytes(storage.get(binlog.index_path(where))) if "index" in objects.files else b""
    listed, _ = binlog.decode_partition_index(before, where.partition)
    spans: dict[int, tuple[int, int]] = {}
    for start_offset in sorted(objects.segments):
        files = listed_files(objects, start_offset)
        if files is None:
            message = "is a segment index without its records, which are lost"
            faults.append(
                Fault(path=binlog.segment_path(where, start_offset, binlog.INDEX), message=message, offset=start_offset)
            )
            continue
        span = _repair_segment(storage, where, start_offset, files, faults)
        if span is not None:
            spans[start_offset] = span
    chosen = _chosen(where, spans, set(listed), faults)
    after = binlog.encode_partition_index(where.partition, chosen)
    if after != before:
        storage.replace(binlog.index_path(where), after)
        message = f"was rebuilt, with {len(chosen)} segments instead of {len(listed)}"
        faults.append(Fault(path=binlog.index_path(where), message=message, fatal=False))


def _repair_segment(
    storage: Storage, where: TopicPartition, start_offset: int, files: binlog.SegmentFiles, faults: list[Fault]
) -> tuple[int, int] | None:
    """Repairs the index of a segment, and returns its offsets [base, end); None if it cannot be read at all."""
    pieces: list[Entries] = []
    try:
        pieces.extend(entries(storage, files))
    except CorruptDataError as error:
        faults.append(Fault(path=files.records, message=error.message, offset=error.offset))
    except UnsupportedFormatError as error:
        faults.append(Fault(path=files.records, message=error.message, offset=start_offset))
        return None
    index = binlog.MAGIC
    if pieces:
        offset, start, stop = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
        index = binlog.encode_segment_index(offset, start, stop - start)
    path = binlog.segment_path(where, start_offset, binlog.INDEX)
    # The old index is read only if its length is right: any other one differs.
    if files.index is None or files.index_bytes != len(index) or bytes(storage.get(path)) != index:
        storage.replace(path, index)
        records = sum(len(piece.offset) for piece in pieces)
        faults.append(Fault(path=path, message=f"was rebuilt, with {records} records", fatal=False))
    return (int(pieces[0].offset[0]), int(pieces[-1].offset[-1]) + 1) if pieces else (start_offset, start_offset)


def _chosen(
    where: TopicPartition, spans: dict[int, tuple[int, int]], listed: set[int], faults: list[Fault]
) -> list[int]:
    """Return the segments for the partition index: first those that it had, then all that fit between them.

    The tool rebuilds its partition index in the order of names, which differs from that of offsets from 10^10 on, where
    names become longer. Here offsets are compared as numbers.
    """
    chosen: list[tuple[int, int, int]] = []
    for start_offset in sorted(spans, key=lambda start: (start not in listed, start)):
        base, end = spans[start_offset]
        at = bisect_left(chosen, (base,))
        rivals = [
            *(other for other in chosen[max(at - 1, 0) : at] if other[1] > base),
            *(other for other in chosen[at : at + 1] if other[0] < max(end, base + 1)),
        ]
        if not rivals:
            chosen.insert(at, (base, end, start_offset))
            continue
        held = any(other_base <= base and end <= other_end for other_base, other_end, _ in rivals)
        message = f"holds offsets {base} to {end - 1} of which others hold {'all' if held else 'some'}; it is left out"
        path = binlog.segment_path(where, start_offset, binlog.RECORDS)
        faults.append(Fault(path=path, message=message, offset=base, fatal=not held))
    return sorted(start_offset for _, _, start_offset in chosen)
