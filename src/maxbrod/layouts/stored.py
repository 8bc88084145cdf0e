"""The bytes of a segment as they are stored: held whole where that is little, else read piece by piece."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.storage.interface import Storage

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
        """The checksum as zlib has it, of everything before `end`."""
        value = 0
        for piece in self.pieces(0, end):
            value = zlib.crc32(piece, value)
        return value

    def stream(self, start: int, end: int) -> pa.NativeFile:
        if self._data is not None:
            return pa.BufferReader(pa.py_buffer(self._data[start:end]))
        return pa.PythonFile(_Reader(self, start, end), mode="r")


class _Reader:
    """A part of the object as the file that Arrow reads from."""

    def __init__(self, stored: Stored, start: int, end: int) -> None:
        self._stored = stored
        self._at = start
        self._end = end
        self._piece = memoryview(b"")
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """Exactly `size` bytes, unless the part ends before that; all that is left if it is negative."""
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
