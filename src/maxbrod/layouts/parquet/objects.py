"""An object of a storage as a seekable file for a Parquet reader, and the opened segment."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from maxbrod.errors import CorruptDataError, MaxbrodError, TruncatedDataError, naming
from maxbrod.layouts.parquet.metadata import FileMetadata, parse_metadata
from maxbrod.storage.object_file import ObjectFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.storage.interface import Storage

BUFFER_BYTES: Final = 4 << 20
"""The size of one request to the storage, for each column that is being read."""
_ENDING_BYTES: Final = 8  # the footer's length and the magic
_MAGIC: Final = b"PAR1"
_FOOTER_BYTES_MAX: Final = 64 << 20
_FOOTER_STRINGS_MAX: Final = 16 << 20
_FOOTER_ITEMS_MAX: Final = 1 << 20


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
