"""A segment's stored bytes, and the records found in them: as positions and lengths, then as Arrow batches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.columns import binary_array, default_column, headers_array, number_array
from maxbrod.batch.kernels import sealed
from maxbrod.errors import RefusedError
from maxbrod.layouts import kernels
from maxbrod.storage.interface import Storage
from maxbrod.storage.object_file import ObjectFile

HELD_BYTES_MAX: Final = 64 << 20
PIECE_BYTES: Final = 8 << 20


class Stored:
    __slots__ = ("_data", "_path", "_storage", "size")

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self.size = storage.head(path).size
        self._data = storage.get(path, size=self.size) if self.size <= HELD_BYTES_MAX else None

    def range(self, start: int, size: int) -> memoryview:
        if self._data is not None:
            return self._data[start : start + size]
        return self._storage.get_range(self._path, start, size)

    def pieces(self, start: int, end: int) -> Iterator[memoryview]:
        for at in range(start, end, PIECE_BYTES):
            yield self.range(at, min(PIECE_BYTES, end - at))

    def crc32(self, end: int) -> int:
        """The CRC-32 of zlib of everything before `end`."""
        value = 0
        for piece in self.pieces(0, end):
            value = zlib.crc32(piece, value)
        return value

    def stream(self, start: int, end: int) -> pa.NativeFile:
        if self._data is not None:
            return pa.BufferReader(pa.py_buffer(self._data[start:end]))
        file = ObjectFile(self._storage, self._path, end)
        file.seek(start)
        return pa.input_stream(file, buffer_size=PIECE_BYTES)


class Spans(NamedTuple):
    """Parts of a buffer: the start and the length of each, -1 for null."""

    at: NDArray[np.int64]
    length: NDArray[np.int64]

    @classmethod
    def empty(cls, count: int) -> Spans:
        return cls(at=np.empty(count, np.int64), length=np.empty(count, np.int64))

    def until(self, count: int) -> Spans:
        return Spans(at=self.at[:count], length=self.length[:count])


class Room(NamedTuple):
    """The arrays that a scan fills, one row per record. Takes no memory before it is written to, and can be reused.

    Kernels take it as a whole, which costs ten microseconds a call.
    """

    offset: NDArray[np.int64]
    timestamp_ms: NDArray[np.int64]
    timestamp_type: NDArray[np.int8]
    key: Spans
    value: Spans
    header_at: NDArray[np.int64]
    header_ends: NDArray[np.int64]

    @classmethod
    def of(cls, rows: int) -> Room:
        offset, timestamp_ms, header_at, header_ends = (np.empty(rows, np.int64) for _ in range(4))
        kind, key, value = np.zeros(rows, np.int8), Spans.empty(rows), Spans.empty(rows)
        return cls(offset, timestamp_ms, kind, key, value, header_at, header_ends)

    def reserved(self, rows: int) -> Room:
        """Return one that is large enough. Fresh memory for each buffer made reading a fifth slower."""
        return self if rows <= len(self.offset) else Room.of(rows)

    def batch(
        self, data: NDArray[np.uint8], rows: int, schema: pa.Schema, scan_headers: Callable[..., object]
    ) -> pa.RecordBatch:
        """The first `rows` as a batch of `schema`, which is RECORD_SCHEMA or some columns of it.

        `scan_headers` finds the parts of the headers, one row each.
        """
        columns = []
        for field in schema:
            match field.name:
                case "offset" | "timestamp_ms" | "timestamp_type":
                    columns.append(number_array(getattr(self, field.name)[:rows].copy()))
                case "key" | "value":
                    parts: Spans = getattr(self, field.name)
                    columns.append(binary_of(data, parts.until(rows)))
                case "headers":
                    columns.append(self._headers(data, rows, scan_headers))
                case _:
                    columns.append(default_column(field, rows))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _headers(self, data: NDArray[np.uint8], rows: int, scan_headers: Callable[..., object]) -> pa.Array:
        ends: NDArray[np.int32] = np.zeros(rows + 1, np.int32)
        ends[1:] = self.header_ends[:rows]
        key, value = Spans.empty(int(ends[-1])), Spans.empty(int(ends[-1]))
        scan_headers(data, self.header_at[:rows], self.header_ends[:rows], key, value)
        return headers_array(ends, binary_of(data, key), binary_of(data, value))


def binary_of(data: NDArray[np.uint8], parts: Spans) -> pa.Array:
    """The parts as one binary array."""
    ends = np.empty(len(parts.at) + 1, np.int32)
    total = kernels.running_ends(parts.length, ends)
    if total < 0:
        raise RefusedError("the records need more than 2 GiB of one Arrow column", hint="the records are too large")
    out = np.empty(total, np.uint8)
    kernels.gather(sealed(data), parts.at, ends, out)
    return binary_array(ends, out, parts.length >= 0)
