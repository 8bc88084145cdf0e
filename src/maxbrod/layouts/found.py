"""A segment's stored bytes, and the records found in them: as positions and lengths, then as Arrow batches."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import binary_array, headers_array, number_array
from maxbrod.batch.kernels import sealed
from maxbrod.errors import RefusedError
from maxbrod.layouts import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from maxbrod.storage.interface import Storage

HELD_BYTES_MAX: Final = 64 << 20
PIECE_BYTES: Final = 8 << 20
_ABSENT: Final[dict[str, tuple[type[np.generic], int]]] = {
    "leader_epoch": (np.int32, -1),
    "producer_id": (np.int64, -1),
    "producer_epoch": (np.int16, -1),
    "sequence": (np.int32, -1),
    "transactional": (np.bool_, 0),
    "control": (np.bool_, 0),
}
"""Kafka's defaults for fields that tools which back up as consumers never see."""


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
        return pa.PythonFile(_Reader(self, start, end), mode="r")


class _Reader:
    """A part of the object as a file for Arrow."""

    def __init__(self, stored: Stored, start: int, end: int) -> None:
        self._stored = stored
        self._at = start
        self._end = end
        self._piece = memoryview(b"")
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """Exactly `size` bytes, unless the part ends before; if `size` is negative, all that are left."""
        parts: list[memoryview] = []
        missing = size if size >= 0 else self._end - self._at + len(self._piece)
        while missing and (self._piece or self._at < self._end):
            if not self._piece:
                count = min(PIECE_BYTES, self._end - self._at)
                self._piece = self._stored.range(self._at, count)
                self._at += count
            parts.append(self._piece[:missing])
            self._piece = self._piece[len(parts[-1]) :]
            missing -= len(parts[-1])
        return b"".join(parts)

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class Spans(NamedTuple):
    """Parts of a buffer: the start and the length of each, -1 for null."""

    at: NDArray[np.int64]
    length: NDArray[np.int64]

    @classmethod
    def empty(cls, count: int) -> Spans:
        return cls(at=np.empty(count, np.int64), length=np.empty(count, np.int64))

    def until(self, count: int) -> Spans:
        return Spans(at=self.at[:count], length=self.length[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecords:
    """Every part of every record of a buffer. `header_ends` counts the headers up to the end of each record."""

    data: NDArray[np.uint8]
    offset: NDArray[np.int64]
    timestamp_ms: NDArray[np.int64]
    timestamp_type: NDArray[np.int8]
    key: Spans
    value: Spans
    header_ends: NDArray[np.int64]
    header_key: Spans
    header_value: Spans


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

    def found(self, data: NDArray[np.uint8], rows: int, scan_headers: Callable[..., object]) -> FoundRecords:
        """The first `rows`, to be used before they are filled again.

        `scan_headers` finds the parts of the headers, one row each.
        """
        header_at, header_ends = self.header_at[:rows], self.header_ends[:rows]
        headers = int(header_ends[-1]) if rows else 0
        key, value = Spans.empty(headers), Spans.empty(headers)
        scan_headers(data, header_at, header_ends, key, value)
        return FoundRecords(
            data=data,
            offset=self.offset[:rows].copy(),
            timestamp_ms=self.timestamp_ms[:rows].copy(),
            timestamp_type=self.timestamp_type[:rows].copy(),
            key=self.key.until(rows),
            value=self.value.until(rows),
            header_ends=header_ends,
            header_key=key,
            header_value=value,
        )


def batch_of(found: FoundRecords, schema: pa.Schema) -> pa.RecordBatch:
    """The records as a batch of `schema`, which is RECORD_SCHEMA or some columns of it."""
    return pa.RecordBatch.from_arrays([_column(found, name) for name in schema.names], schema=schema)


def binary_of(data: NDArray[np.uint8], parts: Spans) -> pa.Array:
    """The parts as one binary array."""
    ends = np.empty(len(parts.at) + 1, np.int32)
    total = kernels.running_ends(parts.length, ends)
    if total < 0:
        raise RefusedError("the records need more than 2 GiB of one Arrow column", hint="the records are too large")
    out = np.empty(total, np.uint8)
    kernels.gather(sealed(data), parts.at, ends, out)
    return binary_array(ends, out, parts.length >= 0)


def _column(found: FoundRecords, name: str) -> pa.Array:
    match name:
        case "offset" | "timestamp_ms" | "timestamp_type":
            return number_array(getattr(found, name))
        case "key" | "value":
            return binary_of(found.data, getattr(found, name))
        case "headers":
            return _headers(found)
        case _:
            kind, absent = _ABSENT[name]
            return number_array(np.full(len(found.offset), absent, kind))


def _headers(found: FoundRecords) -> pa.Array:
    keys = binary_of(found.data, found.header_key)
    values = binary_of(found.data, found.header_value)
    ends: NDArray[Any] = np.zeros(len(found.offset) + 1, np.int32)
    ends[1:] = found.header_ends
    return headers_array(ends, keys, values)
