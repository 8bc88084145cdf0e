"""An object of a storage as a seekable file for a Parquet reader, and the opened segment."""

from __future__ import annotations

import io
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from maxbrod.errors import CorruptDataError, MaxbrodError, TruncatedDataError, naming
from maxbrod.layouts.parquet.metadata import FileMetadata, parse_metadata

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterator, Sequence

    from maxbrod.storage.interface import ByteRange, Storage

BUFFER_BYTES: Final = 4 << 20
"""The size of one request to the storage, for each column that is being read."""
_TAIL_BYTES: Final = 64 << 10  # usually the whole footer: Arrow's reader requests as much first
_ENDING_BYTES: Final = 8  # the footer's length and the magic
_MAGIC: Final = b"PAR1"
_FOOTER_BYTES_MAX: Final = 64 << 20
_FOOTER_STRINGS_MAX: Final = 16 << 20
_FOOTER_ITEMS_MAX: Final = 1 << 20


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
        for each in ranges:
            if each.start + each.size > self._size:
                raise TruncatedDataError(f"a column should end at byte {each.start + each.size} of {self._size}")
        parts = self._storage.get_ranges(self._path, ranges) if ranges else []
        self._ahead = [(each.start, part) for each, part in zip(ranges, parts, strict=True)]
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


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A Parquet file whose footer has been read, and the object that contains its pages."""

    parquet: pq.ParquetFile
    metadata: FileMetadata
    source: ObjectFile
    object_name: str

    @property
    def keys(self) -> dict[bytes, bytes]:
        return self.parquet.metadata.metadata or {}


def open_parquet(storage: Storage, path: str, size: int) -> OpenSegment:
    """Open a Parquet file. Pages with a checksum are verified when they are read."""
    with parquet_errors(storage.name_of(path)):
        file = ObjectFile(storage, path, size)
        metadata = parse_metadata(_footer(file, size))
        parquet = pq.ParquetFile(
            file,
            buffer_size=BUFFER_BYTES,
            pre_buffer=False,  # read page by page: a whole row group may not fit into memory
            page_checksum_verification=True,
            thrift_string_size_limit=_FOOTER_STRINGS_MAX,
            thrift_container_size_limit=_FOOTER_ITEMS_MAX,
        )
    return OpenSegment(parquet, metadata, file, storage.name_of(path))


@contextmanager
def parquet_errors(object_name: str, offset: int | None = None) -> Iterator[None]:
    """Translate Arrow's errors. A storage's own errors pass through Arrow unchanged."""
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


def _footer(file: ObjectFile, size: int) -> memoryview:
    """The footer's bytes. A truncated file is the usual damage, and gets its own error."""
    file.seek(max(0, size - _ENDING_BYTES))
    ending = file.read(_ENDING_BYTES)
    if size < _ENDING_BYTES + len(_MAGIC) or ending[4:] != _MAGIC:
        raise TruncatedDataError(
            f"this is not a complete Parquet file: its {size} bytes do not end with {_MAGIC.decode()}"
        )
    length = int.from_bytes(ending[:4], "little")
    if length > min(size - _ENDING_BYTES - len(_MAGIC), _FOOTER_BYTES_MAX):
        raise CorruptDataError(f"the footer claims {length} of the file's {size} bytes")
    file.seek(size - _ENDING_BYTES - length)
    return memoryview(file.read(length))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
