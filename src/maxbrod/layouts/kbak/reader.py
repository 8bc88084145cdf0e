"""Decodes a segment into records, after its checksum is verified.

A backup that was taken without isolation holds transaction markers among its records. They are recognized by their
bytes alone: a key of `version i16 · type i16` (0 abort, 1 commit) and a value of `version i16 · coordinator epoch i32`,
both of version 0. Nothing here shows which records an aborted transaction wrote.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod.batch.columns import binary_array, binary_column, conform, headers_array, number_column, project
from maxbrod.batch.kernels import sealed
from maxbrod.bounds import check_document
from maxbrod.errors import CorruptDataError, TruncatedDataError, UsageError, naming
from maxbrod.layouts.foreign import UNCOMMITTED, Fault, ForeignSegment, Survey
from maxbrod.layouts.found import Room, Stored
from maxbrod.layouts.kbak import format as kbak
from maxbrod.layouts.kbak import kernels
from maxbrod.layouts.manifest import BackupRef, check_segments, other_size, parse_name
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
        if bytes(stored.range(0, min(len(kbak.MAGIC), stored.size))) != kbak.MAGIC:
            yield from read_legacy(stored, segment, schema)
            return
        header = open_header(stored)
        # The object may have been replaced by one of another run, which is sound in itself.
        if segment.records not in {None, header.records} or header.end_offset + 1 != segment.end_offset:
            raise CorruptDataError(
                f"the segment has {header.records} records up to offset {header.end_offset}, "
                f"and the manifest says {segment.records} up to {segment.end_offset - 1}",
                offset=segment.base_offset,
            )
        size = segment.details.get("uncompressed_size")
        yield from _records(stored, header, schema, size if isinstance(size, int) and size > 0 else None)


def open_header(stored: Stored) -> kbak.KbakHeader:
    """The header of a segment, whose checksum is verified here."""
    if stored.size < kbak.HEADER_BYTES + kbak.FOOTER_BYTES:
        raise TruncatedDataError(f"a segment of {stored.size} bytes is shorter than header and footer")
    footer = bytes(stored.range(stored.size - kbak.FOOTER_BYTES, kbak.FOOTER_BYTES))
    if footer[4:] != kbak.MAGIC_END:
        raise TruncatedDataError("the segment does not end with the footer magic", position=stored.size - 4)
    header = bytes(stored.range(0, kbak.HEADER_BYTES))
    crc, noted = stored.crc32(stored.size - kbak.FOOTER_BYTES), int.from_bytes(footer[:4], "little")
    if crc != noted:
        raise CorruptDataError(f"the segment's checksum is {crc:08x}, not {noted:08x}")
    return kbak.decode_header(header)


def _records(
    stored: Stored, header: kbak.KbakHeader, schema: pa.Schema, body_bytes: int | None
) -> Iterator[pa.RecordBatch]:
    end = stored.size - kbak.FOOTER_BYTES
    pieces = _Pieces(
        kbak.open_body(header.codec, stored.stream(kbak.HEADER_BYTES, end), end - kbak.HEADER_BYTES), body_bytes
    )
    room, rows, last = Room.of(0), 0, -1
    while pieces.fill():
        data = pieces.data()
        room = room.reserved(data.size // kbak.RECORD_BYTES_MIN + 1)
        status, count, at = kernels.scan(data, 0, data.size, last, room)
        if count:
            rows += count
            last = int(room.offset[count - 1])
            if rows > header.records or last > header.end_offset:
                break
            yield room.batch(data, count, schema, kernels.scan_headers)
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
                kind = TruncatedDataError if "runcated" in str(error) else CorruptDataError
                raise kind(f"the records cannot be decompressed: {error}") from error
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
        if length > kbak.RECORD_BYTES_MAX:
            raise CorruptDataError(f"a record claims to have {length} bytes", position=self.done)
        grown = np.empty(min(2 * self._buffer.size, kbak.RECORD_BYTES_MAX + PIECE_BYTES), np.uint8)
        grown[: self._size] = self._buffer[: self._size]
        self._buffer = grown


def _marked(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns `names` of batches that have _MARKER_COLUMNS and `control`, which is true for each marker."""
    for batch in batches:
        index = batch.schema.get_field_index("control")
        key, value = batch.column("key"), batch.column("value")
        sized = pc.equal(pc.binary_length(value), _MARKER_BYTES)
        found = pc.and_(sized, pc.starts_with(value, pattern=_MARKER_VERSION))
        control = pc.and_(pc.is_in(key, value_set=_MARKER_KEYS), pc.fill_null(found, fill_value=False))
        yield batch.set_column(index, batch.schema.field(index), control).select(list(names))


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
        if path not in named and parse_name(kbak.SEGMENT, backup.name(path)) is not None:
            yield Fault(path=path, message="no manifest names this segment", fatal=False)


def _check_object(backup: BackupRef, segment: ForeignSegment, size: int) -> Iterator[Fault]:
    if segment.bytes and size != segment.bytes:
        yield other_size(segment, size)
    start = segment.details.get("start_offset", segment.base_offset)
    if parse_name(kbak.SEGMENT, backup.name(segment.path)) != (segment.where, start):
        message = f"the segment is not named as {segment.where} from offset {start} on"
        yield Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False)


def _check_records(storage: Storage, segment: ForeignSegment) -> Iterator[Fault]:
    """Read all of a segment, and compare it with the manifest."""
    if sha256 := segment.details.get("sha256"):
        stored, digest = Stored(storage, segment.path), hashlib.sha256()
        for piece in stored.pieces(0, stored.size):
            digest.update(piece)
        if digest.hexdigest() != sha256:
            yield Fault(path=segment.path, message="the segment has another SHA-256", offset=segment.base_offset)
    timestamps = [number_column(batch.column(0)) for batch in read(storage, segment, ["timestamp_ms"])]
    if timestamps and "start_timestamp" in segment.details and "from_offset" not in segment.details:
        first, last = int(timestamps[0][0]), int(timestamps[-1][-1])
        noted = segment.details["start_timestamp"], segment.details["end_timestamp"]
        if (first, last) != noted:
            message = f"the records have the times {first} to {last}, and the manifest says {noted[0]} to {noted[1]}"
            yield Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False)


# Segments of the tool's first versions: a JSON array of records, bytes in base64, perhaps compressed as a whole. Such a
# segment has no checksum and is parsed in memory, so its size is limited. They are never written.
TEXT_BYTES_MAX: Final = 512 << 20
_ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())])
_RECORD: Final = pa.struct(
    [
        pa.field("key", pa.string()),
        pa.field("value", pa.string()),
        pa.field("headers", pa.list_(_HEADER)),
        pa.field("timestamp", pa.int64()),
        pa.field("offset", pa.int64()),
    ]
)


def read_legacy(stored: Stored, segment: ForeignSegment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    records = _parse(_text(stored, segment.path))
    if records.num_rows:
        offset = number_column(records.column("offset"))
        if (np.diff(offset) <= 0).any():
            raise CorruptDataError(kernels.MEANING[kernels.BAD_OFFSET], offset=int(offset[0]))
        if int(offset[-1]) + 1 != segment.end_offset:
            raise CorruptDataError(
                f"the segment ends with offset {offset[-1]}, and the manifest says {segment.end_offset - 1}",
                offset=segment.base_offset,
            )
    if segment.records not in {None, records.num_rows}:
        raise CorruptDataError(
            f"the segment has {records.num_rows} records, and the manifest says {segment.records}",
            offset=segment.base_offset,
        )
    yield records.select(schema.names)


def _text(stored: Stored, path: str) -> memoryview:
    if stored.size > TEXT_BYTES_MAX:
        raise CorruptDataError(f"a segment of {stored.size} bytes without the magic cannot be right")
    data = stored.range(0, stored.size)
    if bytes(data[:4]) == _ZSTD_MAGIC:
        try:
            text = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "zstd").read(TEXT_BYTES_MAX + 1)
        except OSError as error:
            raise CorruptDataError(f"the records cannot be decompressed: {error}") from error
        if len(text) > TEXT_BYTES_MAX:
            raise CorruptDataError(f"the records decompress to more than {TEXT_BYTES_MAX} bytes")
        return memoryview(text)
    if path.endswith(".lz4"):
        return memoryview(kbak.decompress_lz4(bytes(data)))
    return data


def _parse(text: memoryview) -> pa.RecordBatch:
    if not text:
        raise TruncatedDataError("the segment is empty")
    if bytes(text[:64]).lstrip()[:1] != b"[":
        raise CorruptDataError("this is not a segment: it begins neither with the magic nor as a JSON array")
    try:
        check_document(bytes(text))
        rows = pa.array(json.loads(bytes(text), parse_float=_no_fraction), _RECORD)  # noqa: TID251 - checked
    except (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException) as error:
        raise CorruptDataError(f"a segment of JSON cannot be read: {str(error)[:200]}") from error
    headers = rows.field("headers")
    columns = {
        "offset": rows.field("offset"),
        "timestamp_ms": rows.field("timestamp"),
        "key": _bytes(rows.field("key")),
        "value": _bytes(rows.field("value")),
        "headers": _headers(headers),
    }
    if any(columns[name].null_count for name in ("offset", "timestamp_ms")) or rows.null_count:
        raise CorruptDataError("a record of JSON has no offset or no timestamp")
    try:
        return conform(pa.RecordBatch.from_pydict(columns))
    except UsageError as error:
        raise CorruptDataError(f"a segment of JSON cannot be read: {error}") from error


def _no_fraction(text: str) -> float:
    """Arrow would silently truncate it."""
    raise ValueError(f"{text[:40]} is not an integer")


def _headers(lists: pa.Array) -> pa.Array:
    filled = lists.flatten()
    if filled.field("key").null_count or filled.null_count:
        raise CorruptDataError("a header of JSON has no key")
    counts = lists.value_lengths().fill_null(0)
    ends = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(np.frombuffer(counts.buffers()[1], np.int32)[: len(lists)], out=ends[1:])
    return headers_array(ends, filled.field("key").cast(pa.binary()), _bytes(filled.field("value")))


def _bytes(column: pa.Array) -> pa.Array:
    text = binary_column(column.cast(pa.binary()))
    out_ends = np.zeros(len(column) + 1, np.int32)
    out = np.empty(int(text.ends[-1]) - int(text.ends[0]), np.uint8)
    row = kernels.decode_base64(sealed(text.ends), sealed(text.data), sealed(_letters()), out_ends, out)
    if row >= 0:
        raise CorruptDataError(f"bytes of a segment of JSON are not in base64, in row {row}")
    return binary_array(out_ends, out[: out_ends[-1]], text.valid)


@cache
def _letters() -> NDArray[Any]:
    letters = np.full(256, 64, np.uint8)
    # The encoding of all values of six bits in order is the alphabet.
    sixes = np.packbits(np.unpackbits(np.arange(64, dtype=np.uint8)[:, None], axis=1)[:, 2:].ravel())
    letters[np.frombuffer(b64encode(sixes.tobytes()), np.uint8)] = np.arange(64)
    return letters
