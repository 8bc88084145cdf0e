"""Reads the records of a segment in batches, in bounded memory.

Besides what Parquet checks itself, this checks that the footer matches the name, that offsets rise within the range of
the name, that no record is missing, and that no page claims to unpack to more than any page may have.

If the needed columns of a row group are small enough, they are fetched at once, their page headers are checked, and
Arrow decodes them in batches. A larger group streams through small buffers, a page at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from maxbrod.batch.columns import project
from maxbrod.errors import (
    CorruptDataError,
    MaxbrodError,
    TruncatedDataError,
    UnsupportedFormatError,
    UsageError,
    naming,
)
from maxbrod.layouts.foreign import ForeignSegment
from maxbrod.layouts.parquet.format import (
    SOURCES,
    TOOL_COLUMNS,
    Footer,
    SegmentName,
    check_footer,
    from_file,
    offsets_of,
    parse_footer,
    parse_name,
)
from maxbrod.layouts.parquet.metadata import (
    PAGE_BYTES_MAX,
    ColumnChunk,
    FileMetadata,
    RowGroup,
    check_pages,
    parse_metadata,
)
from maxbrod.storage.interface import ByteRange, Storage
from maxbrod.storage.object_file import ObjectFile

BUFFER_BYTES: Final = 4 << 20
"""The size of one request to the storage, for each column that is being read."""
_ENDING_BYTES: Final = 8  # the footer's length and the magic
_MAGIC: Final = b"PAR1"
_FOOTER_BYTES_MAX: Final = 64 << 20
_FOOTER_STRINGS_MAX: Final = 16 << 20
_FOOTER_ITEMS_MAX: Final = 1 << 20
_BATCH_BYTES: Final = 16 << 20
_BATCH_ROWS_MAX: Final = 1 << 16
_DICTIONARY_ROWS_MAX: Final = 1 << 10
"""A dictionary value may occur in every row, so the size of the chunk does not limit that of a batch."""
_FETCHED_BYTES_MAX: Final = 64 << 20


def read(storage: Storage, segment: ForeignSegment, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Its records within `[base_offset, end_offset)`, which is less than the object has if others overlap it."""
    schema = project(None if columns is None else list(columns))
    sources = {source for field in schema for source in SOURCES.get(field.name, ())}
    for found, offset in stored_records(storage, segment, sources):
        with parquet_errors(storage.name_of(segment.path), offset):
            records = from_file(found, schema)
        yield records


def stored_records(
    storage: Storage, segment: ForeignSegment, sources: Collection[str]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The same records unconverted, only the columns in `sources`, with the offset of the first one.

    Other columns are not fetched, except the offsets.
    """
    name = parse_name(segment.path)
    if name is None:
        raise UsageError("no segment of this layout has such a name", object_name=segment.path)
    opened, footer = open_segment(storage, name, segment.bytes)
    last, records = name.start - 1, 0
    for found in stored_batches(opened, {"offset", *sources}, name.start):
        with parquet_errors(opened.object_name, last + 1):
            offsets = offsets_of(found)
            _check_order(offsets, last, name)
        last, records = int(offsets[-1]), records + offsets.size
        rows = np.searchsorted(offsets, (segment.base_offset, segment.end_offset))
        if rows[0] < rows[1]:
            yield found.slice(int(rows[0]), int(rows[1] - rows[0])), int(offsets[rows[0]])
    if records != footer.records:
        raise CorruptDataError(
            f"the footer claims {footer.records} records, but there are {records}",
            object_name=opened.object_name,
            offset=last + 1,
        )


def _check_order(offsets: NDArray[np.int64], last: int, name: SegmentName) -> None:
    previous = np.concatenate((np.array([last]), offsets[:-1]))
    wrong = np.flatnonzero((offsets <= previous) | (offsets > name.end))
    if wrong.size:
        at, before = int(offsets[wrong[0]]), int(previous[wrong[0]])
        raise CorruptDataError(
            f"offset {at} follows {before} in a segment of {name.start} to {name.end}", offset=before + 1
        )


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


def open_segment(storage: Storage, name: SegmentName, size: int) -> tuple[OpenSegment, Footer]:
    """Open a segment, and check its footer against its name. UnsupportedFormatError: it lacks columns of a segment."""
    opened = open_parquet(storage, name.path, size)
    with parquet_errors(opened.object_name, name.start):
        footer = parse_footer(opened.keys)
        check_footer(footer, name)
        missing = [column for column in TOOL_COLUMNS if column not in opened.parquet.schema_arrow.names]
        if missing:
            raise UnsupportedFormatError(
                f"the file lacks the column {', '.join(missing)}",
                hint="this Parquet file is not a segment of kafka-replicator",
            )
    return opened, replace(footer, name=name)


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
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorruptDataError(
            f"this Parquet file cannot be read: {first_line}", object_name=object_name, offset=offset
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


def stored_batches(opened: OpenSegment, columns: Collection[str], offset: int) -> Iterator[pa.RecordBatch]:
    """The rows of those columns that the file has, unconverted, in batches of about 16 MiB. None is empty.

    Errors name `offset` if nothing better is known.
    """
    names = [name for name in opened.parquet.schema_arrow.names if name in columns]
    for index, group in enumerate(opened.metadata.groups):
        missing = group.rows
        with parquet_errors(opened.object_name, offset):
            rows = _rows_at_once(group)
            _fetch(opened, [chunk for chunk in group.chunks if chunk.column in names])
            batches = opened.parquet.iter_batches(batch_size=rows, row_groups=[index], columns=names, use_threads=False)
        while True:
            with parquet_errors(opened.object_name, offset):
                batch = next(batches, None)
                if batch is None:
                    break
                missing -= batch.num_rows
            if batch.num_rows:
                yield batch
        # Arrow silently skips pages of an unknown type, which a damaged header may have.
        if missing:
            raise CorruptDataError(
                f"{missing} records of a row group are missing", object_name=opened.object_name, offset=offset
            )


def _fetch(opened: OpenSegment, chunks: Sequence[ColumnChunk]) -> None:
    for chunk in chunks:
        if chunk.start < 0 or chunk.packed_bytes < 0:
            raise CorruptDataError(f"{chunk.column} claims {chunk.packed_bytes} bytes from {chunk.start}")
    ranges = [ByteRange(start=chunk.start, size=chunk.packed_bytes) for chunk in chunks]
    if sum(range_.size for range_ in ranges) > _FETCHED_BYTES_MAX:
        opened.source.fetch([])
        return
    for chunk, part in zip(chunks, opened.source.fetch(ranges), strict=True):
        if chunk.is_packed:
            check_pages(part, column=chunk.column, unpacked_bytes=chunk.unpacked_bytes)


def _rows_at_once(group: RowGroup) -> int:
    row_bytes = max(1, sum(chunk.unpacked_bytes for chunk in group.chunks) // max(1, group.rows))
    if group.rows < 0 or row_bytes > PAGE_BYTES_MAX:
        raise CorruptDataError(f"{group.rows} records claim {row_bytes} bytes each")
    most = _DICTIONARY_ROWS_MAX if any(chunk.has_dictionary for chunk in group.chunks) else _BATCH_ROWS_MAX
    return max(1, min(most, _BATCH_BYTES // row_bytes))
