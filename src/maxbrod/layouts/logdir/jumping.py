"""The headers of a log file's batches, by jumping from one to the next: of large batches nothing else is read.

No checksum is looked at. Whoever copies the batches looks at all of them, and the end of a file, where crashes leave
their traces, is not jumped over at all.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.headers import (
    ATTRIBUTE_CONTROL,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NEWEST_MAGIC,
    read_headers,
    walk,
)
from maxbrod.batch.transactions import abort_markers
from maxbrod.errors import CorruptDataError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.layouts.logdir.names import LogFile
    from maxbrod.storage.interface import Storage

_WINDOW_BYTES: Final = 1 << 20
_LARGE_BYTES: Final = 128 << 10
"""Behind a batch of this size only the next header is read: smaller gaps cost as much to leave out as to read."""
_NARROW_BYTES: Final = 4 << 10
_CONTROL_BYTES_MAX: Final = 1 << 10
_GROUP_BATCHES: Final = 1 << 13
_START: Final = struct.Struct(">8xi4xb4xh")  # length, magic, attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Jumped:
    """Neighbours. Positions are those in the file."""

    headers: BatchHeaders
    aborts: frozenset[tuple[int, int]]
    """Producer id and offset of each marker that ends a transaction in an abort."""


def jump(storage: Storage, file: LogFile, stop: int) -> Iterator[Jumped]:
    """The batches that begin before `stop`, in groups; ends early, without an error, where anything is not plain."""
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
        self._wanted = _WINDOW_BYTES
        self._rows: list[bytes] = []
        self._positions: list[int] = []
        self._sizes: list[int] = []
        self._controls: list[bytes] = []

    def step(self) -> bool:
        """Gather the next group; whether there is one."""
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
            self._wanted = _NARROW_BYTES if size >= _LARGE_BYTES else _WINDOW_BYTES
            self._at += size
        return bool(self._rows)

    def group(self) -> Jumped:
        positions, sizes = np.array(self._positions, np.int64), np.array(self._sizes, np.int64)
        headers = read_headers(b"".join(self._rows), positions, sizes)
        controls = np.frombuffer(b"".join(self._controls), np.uint8)
        aborts = abort_markers(controls, walk(controls, check_crc=False)) if self._controls else ()
        return Jumped(headers=headers, aborts=frozenset(aborts))

    def _bytes(self, size: int) -> memoryview:
        """So many from where it stands."""
        start = self._at - self._base
        if not 0 <= start <= len(self._window) - size:
            wanted = min(max(self._wanted, size), self._size - self._at)
            self._window, self._base, start = self._storage.get_range(self._path, self._at, wanted), self._at, 0
        return self._window[start : start + size]
