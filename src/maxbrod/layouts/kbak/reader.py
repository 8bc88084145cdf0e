"""Decodes a segment into records, after its checksum is verified.

A backup that was taken without isolation holds transaction markers among its records. They are recognized by their
bytes alone: a key of `version i16 · type i16` (0 abort, 1 commit) and a value of `version i16 · coordinator epoch i32`,
both of version 0. Nothing here shows which records an aborted transaction wrote.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.batch.columns import binary_array, number_column, project
from maxbrod.batch.kernels import sealed
from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError, naming
from maxbrod.layouts.foreign import UNCOMMITTED, Fault, ForeignSegment, Survey
from maxbrod.layouts.found import Room, Stored, batch_of
from maxbrod.layouts.kbak import kernels
from maxbrod.layouts.kbak.format import (
    FOOTER_BYTES,
    HEADER_BYTES,
    MAGIC,
    MAGIC_END,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    SEGMENT,
    KbakHeader,
    decode_header,
    open_body,
)
from maxbrod.layouts.kbak.legacy import read_legacy
from maxbrod.layouts.manifest import BackupRef, check_segments, other_size, parse_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maxbrod.storage.interface import Storage


PIECE_BYTES: Final = 8 << 20
"""Decompressed bytes of records in one batch; more only if a single record has more."""
_MARKER_COLUMNS: Final = ("key", "value")
# Made from buffers: to convert a list, Arrow would load pandas.
_MARKER_KEYS: Final = binary_array(np.array([0, 4, 8], np.int32), np.frombuffer(b"\0\0\0\0\0\0\0\1", np.uint8), None)
_MARKER_BYTES: Final = 6
_MARKER_VERSION: Final = b"\0\0"


def read(storage: Storage, segment: ForeignSegment, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    schema = project(None if columns is None else list(columns))
    if segment.details.get(UNCOMMITTED) and "control" in schema.names:
        wider = project([*schema.names, *_MARKER_COLUMNS])
        yield from _marked(_from_offset(storage, segment, wider), schema.names)
    else:
        yield from _from_offset(storage, segment, schema)


def _from_offset(storage: Storage, segment: ForeignSegment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    from_offset = segment.details.get("from_offset")
    if from_offset is None:
        yield from _read(storage, segment, schema)
        return
    for batch in _read(storage, segment, project([*schema.names, "offset"])):
        first = int(np.searchsorted(number_column(batch.column("offset")), from_offset))
        if first < batch.num_rows:
            yield batch.slice(first).select(schema.names)


def _read(storage: Storage, segment: ForeignSegment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with naming(storage.name_of(segment.path)):
        stored = Stored(storage, segment.path)
        if bytes(stored.range(0, min(len(MAGIC), stored.size))) != MAGIC:
            yield from read_legacy(stored, segment, schema)
            return
        header = open_header(stored)
        _check_manifest(header, segment)
        yield from _records(stored, header, schema, _body_bytes(segment))


def open_header(stored: Stored) -> KbakHeader:
    """The header of a segment, whose checksum is verified here."""
    if stored.size < HEADER_BYTES + FOOTER_BYTES:
        raise TruncatedDataError(f"a segment of {stored.size} bytes is shorter than header and footer")
    footer = bytes(stored.range(stored.size - FOOTER_BYTES, FOOTER_BYTES))
    if footer[4:] != MAGIC_END:
        raise TruncatedDataError("the segment does not end with the footer magic", position=stored.size - 4)
    header = bytes(stored.range(0, HEADER_BYTES))
    crc, noted = stored.crc32(stored.size - FOOTER_BYTES), int.from_bytes(footer[:4], "little")
    if crc != noted:
        raise CorruptDataError(f"the segment's checksum is {crc:08x}, not {noted:08x}")
    return decode_header(header)


def _check_manifest(header: KbakHeader, segment: ForeignSegment) -> None:
    """The object may have been replaced by one of another run, which is sound in itself."""
    if segment.records not in {None, header.records} or header.end_offset + 1 != segment.end_offset:
        raise CorruptDataError(
            f"the segment has {header.records} records up to offset {header.end_offset}, "
            f"and the manifest says {segment.records} up to {segment.end_offset - 1}",
            offset=segment.base_offset,
        )


def _body_bytes(segment: ForeignSegment) -> int | None:
    size = segment.details.get("uncompressed_size")
    return size if isinstance(size, int) and size > 0 else None


def _records(stored: Stored, header: KbakHeader, schema: pa.Schema, body_bytes: int | None) -> Iterator[pa.RecordBatch]:
    end = stored.size - FOOTER_BYTES
    pieces = _Pieces(open_body(header.codec, stored.stream(HEADER_BYTES, end), end - HEADER_BYTES), body_bytes)
    room, rows, last = Room.of(0), 0, -1
    while pieces.fill():
        data = pieces.data()
        room = room.reserved(data.size // RECORD_BYTES_MIN + 1)
        status, count, at = kernels.scan(data, 0, data.size, last, room)
        if count:
            rows += count
            last = int(room.offset[count - 1])
            if rows > header.records or last > header.end_offset:
                break
            yield batch_of(room.found(data, count, kernels.scan_headers), schema)
        if status != kernels.OK:
            raise CorruptDataError(kernels.MEANING[status], offset=last + 1, position=pieces.done + at)
        pieces.consume(at)
    if rows != header.records or (rows and last != header.end_offset):
        raise CorruptDataError(
            f"the segment claims to have {header.records} records up to offset {header.end_offset}, and has {rows}",
            offset=last + 1,
        )


class _Pieces:
    """A stream of records in pieces of whole ones: a record cut off at the end of a piece begins the next."""

    def __init__(self, stream: pa.NativeFile, bytes_max: int | None) -> None:
        self._stream = stream
        self._bytes_max = bytes_max
        self._buffer = np.empty(PIECE_BYTES, np.uint8)
        self._size = 0
        self._ended = False
        self.done = 0
        """Bytes of all pieces before this one."""

    def data(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return sealed(self._buffer[: self._size])

    def fill(self) -> bool:
        """Reads as much as fits. False at the end; TruncatedDataError if a record is cut there."""
        if self._size == self._buffer.size:
            self._grow()
        held = self._size
        while not self._ended and self._size < self._buffer.size:
            try:
                count = self._stream.readinto(memoryview(self._buffer)[self._size :])
            except (OSError, pa.ArrowInvalid) as error:
                raise _damaged(error) from error
            self._ended = count == 0
            self._size += count
        if self._bytes_max is not None and self.done + self._size > self._bytes_max:
            raise CorruptDataError(f"the records have more than the {self._bytes_max} bytes that the manifest says")
        if self._size > held:
            return True
        if self._size:
            raise TruncatedDataError(f"the last record is cut: only {self._size} bytes of it exist")
        return False

    def consume(self, size: int) -> None:
        rest = self._size - size
        self._buffer[:rest] = self._buffer[size : self._size].copy()
        self._size = rest
        self.done += size

    def _grow(self) -> None:
        """One record is larger than a piece. The buffer grows with bytes that exist, not with what a length claims."""
        length = int.from_bytes(self._buffer[:4].tobytes(), "little")
        if length > RECORD_BYTES_MAX:
            raise CorruptDataError(f"a record claims to have {length} bytes", position=self.done)
        grown = np.empty(min(2 * self._buffer.size, RECORD_BYTES_MAX + PIECE_BYTES), np.uint8)
        grown[: self._size] = self._buffer[: self._size]
        self._buffer = grown


def _damaged(error: Exception) -> CorruptDataError | UnsupportedFormatError:
    kind = TruncatedDataError if "runcated" in str(error) else CorruptDataError
    return kind(f"the records cannot be decompressed: {error}")


def _marked(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns `names` of batches that have _MARKER_COLUMNS and `control`, which is true for each marker."""
    for batch in batches:
        index = batch.schema.get_field_index("control")
        control = _markers(batch.column("key"), batch.column("value"))
        yield batch.set_column(index, batch.schema.field(index), control).select(list(names))


def _markers(key: pa.Array, value: pa.Array) -> pa.Array:
    sized = pc.equal(pc.binary_length(value), _MARKER_BYTES)
    found = pc.and_(sized, pc.starts_with(value, pattern=_MARKER_VERSION))
    return pc.and_(pc.is_in(key, value_set=_MARKER_KEYS), pc.fill_null(found, fill_value=False))


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    """Yield where a backup is not what its manifest says. Quick: names and sizes. Deep: checksums, counts, records."""
    backup = BackupRef.surveyed(survey)
    if backup is None:
        yield from survey.faults
        return
    sizes = {info.path: info.size for info in storage.list(backup.path("topics"))}
    check_object = partial(_check_object, backup)
    yield from check_segments(storage, survey, sizes, check_object, _check_records if deep else None)
    named = {segment.path for segment in survey.segments}
    for path in sizes:
        if path not in named and parse_name(SEGMENT, backup.name(path)) is not None:
            yield Fault(path=path, message="no manifest names this segment", fatal=False)


def _check_object(backup: BackupRef, segment: ForeignSegment, size: int) -> Iterator[Fault]:
    if segment.bytes and size != segment.bytes:
        yield other_size(segment, size)
    start = segment.details.get("start_offset", segment.base_offset)
    if parse_name(SEGMENT, backup.name(segment.path)) != (segment.where, start):
        message = f"the segment is not named as {segment.where} from offset {start} on"
        yield Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False)


def _check_records(storage: Storage, segment: ForeignSegment) -> Iterator[Fault]:
    """Read all of a segment, and compare it with the manifest."""
    sha256 = segment.details.get("sha256")
    if sha256 and _sha256(storage, segment.path) != sha256:
        yield Fault(path=segment.path, message="the segment has another SHA-256", offset=segment.base_offset)
    timestamps = [number_column(batch.column(0)) for batch in read(storage, segment, ["timestamp_ms"])]
    if timestamps and "start_timestamp" in segment.details and "from_offset" not in segment.details:
        first, last = int(timestamps[0][0]), int(timestamps[-1][-1])
        noted = segment.details["start_timestamp"], segment.details["end_timestamp"]
        if (first, last) != noted:
            message = f"the records have the times {first} to {last}, and the manifest says {noted[0]} to {noted[1]}"
            yield Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False)


def _sha256(storage: Storage, path: str) -> str:
    stored, digest = Stored(storage, path), hashlib.sha256()
    for piece in stored.pieces(0, stored.size):
        digest.update(piece)
    return digest.hexdigest()
