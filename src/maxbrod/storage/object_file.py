"""An object of a storage as a seekable file, for Arrow's readers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from maxbrod.errors import TruncatedDataError

if TYPE_CHECKING:
    from collections.abc import Buffer

    from maxbrod.storage.interface import ByteRange, Storage

_TAIL_BYTES: Final = 64 << 10  # usually the whole footer: Arrow's reader requests as much first


class ObjectFile(io.RawIOBase):
    """Reads ranges of one object of known size. The tail and prefetched ranges are fetched once."""

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        super().__init__()
        self._storage, self._path, self._size = storage, path, size
        self._at = 0
        self._tail_at = max(0, size - _TAIL_BYTES)
        self._tail: memoryview | None = None
        self._ahead: list[tuple[int, memoryview]] = []

    def fetch(self, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        """Fetch these ranges at once and keep them until others are fetched."""
        for wanted in ranges:
            if wanted.start + wanted.size > self._size:
                raise TruncatedDataError(f"a column should end at byte {wanted.start + wanted.size} of {self._size}")
        parts = self._storage.get_ranges(self._path, ranges) if ranges else []
        self._ahead = [(wanted.start, part) for wanted, part in zip(ranges, parts, strict=True)]
        return parts

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        start, self._at = self._at, max(self._at, end)
        return bytes(self._range(start, end)) if end > start else b""

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Buffer) -> int:
        room = memoryview(buffer).cast("B")
        found = self.read(len(room))
        room[: len(found)] = found
        return len(found)

    def _range(self, start: int, end: int) -> memoryview:
        for at, part in self._ahead:
            if at <= start and end <= at + len(part):
                return part[start - at : end - at]
        if start < self._tail_at:
            return self._storage.get_range(self._path, start, end - start)
        if self._tail is None:
            self._tail = self._storage.get_range(self._path, self._tail_at, self._size - self._tail_at)
        return self._tail[start - self._tail_at : end - self._tail_at]
