"""An object of a storage as the seekable file that a Parquet reader wants, and the opened segment itself."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from maxbrod.errors import CorruptDataError, MaxbrodError, TruncatedDataError, naming

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterator

    from maxbrod.storage.interface import Storage

BUFFER_BYTES: Final = 4 << 20
"""What is asked of the storage at once, for each column that is being read."""
_TAIL_BYTES: Final = 64 << 10  # a footer and more: Arrow's reader asks for as much first
_SMALLEST_BYTES: Final = 12
_MAGIC: Final = b"PAR1"
_FOOTER_STRINGS_MAX: Final = 16 << 20
_FOOTER_ITEMS_MAX: Final = 1 << 20


class ObjectFile(io.RawIOBase):
    """Reads ranges of one object whose size is known. The tail, where the footer is, is fetched once."""

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        super().__init__()
        self._storage, self._path, self._size = storage, path, size
        self._at = 0
        self._tail_at = max(0, size - _TAIL_BYTES)
        self._tail: memoryview | None = None

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
        if start < self._tail_at:
            return self._storage.get_range(self._path, start, end - start)
        if self._tail is None:
            self._tail = self._storage.get_range(self._path, self._tail_at, self._size - self._tail_at)
        return self._tail[start - self._tail_at : end - self._tail_at]


def open_parquet(storage: Storage, path: str, size: int) -> pq.ParquetFile:
    """The opened file: its footer has been read, and pages will be checked if they carry a checksum."""
    with parquet_errors(storage.name_of(path)):
        file = ObjectFile(storage, path, size)
        _check_magic(file, size)
        return pq.ParquetFile(
            file,
            buffer_size=BUFFER_BYTES,
            pre_buffer=False,  # page after page through the buffer: a whole row group may not fit into memory
            page_checksum_verification=True,
            thrift_string_size_limit=_FOOTER_STRINGS_MAX,
            thrift_container_size_limit=_FOOTER_ITEMS_MAX,
        )


@contextmanager
def parquet_errors(object_name: str, offset: int | None = None) -> Iterator[None]:
    """Arrow's errors as ours. A storage's own errors come through Arrow as they were raised."""
    try:
        with naming(object_name):
            yield
    except MaxbrodError as error:
        if isinstance(error, CorruptDataError) and error.offset is None:
            error.offset = offset
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise CorruptDataError(
            f"this Parquet file cannot be read: {_first_line(error)}", object_name=object_name, offset=offset
        ) from error


def _check_magic(file: ObjectFile, size: int) -> None:
    """A cut file is the usual damage, and has a name of its own."""
    file.seek(max(0, size - 4))
    if size < _SMALLEST_BYTES or file.read(4) != _MAGIC:
        raise TruncatedDataError(f"this is no whole Parquet file: its {size} bytes do not end with {_MAGIC.decode()}")
    file.seek(0)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
