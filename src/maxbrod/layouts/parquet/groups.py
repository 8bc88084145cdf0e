"""Reads the row groups of a file: which bytes to fetch, and how many rows to decode at once.

If the needed columns of a group are small enough, they are fetched at once, their page headers are checked, and Arrow
decodes them in batches. A larger group streams through small buffers, a page at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.parquet.metadata import PAGE_BYTES_MAX, ColumnChunk, RowGroup, check_pages
from maxbrod.layouts.parquet.objects import OpenSegment, parquet_errors
from maxbrod.layouts.parquet.schema import TOOL_COLUMNS
from maxbrod.storage.interface import ByteRange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa


_BATCH_BYTES: Final = 16 << 20
_BATCH_ROWS_MAX: Final = 1 << 16
_DICTIONARY_ROWS_MAX: Final = 1 << 10
"""A dictionary value may occur in every row, so the size of the chunk does not limit that of a batch."""
_FETCHED_BYTES_MAX: Final = 64 << 20


def stored_batches(opened: OpenSegment, columns: Collection[str], offset: int) -> Iterator[pa.RecordBatch]:
    """The rows of those columns that the file has, unconverted, in batches of about 16 MiB. None is empty.

    Errors name `offset` if nothing better is known.
    """
    names = [name for name in opened.parquet.schema_arrow.names if name in columns]
    for index, group in enumerate(opened.metadata.groups):
        missing = group.rows
        with parquet_errors(opened.object_name, offset):
            batches = _batches(opened, index, names)
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


def check_columns(opened: OpenSegment) -> None:
    """UnsupportedFormatError: the Parquet file lacks columns of a segment."""
    missing = [name for name in TOOL_COLUMNS if name not in opened.parquet.schema_arrow.names]
    if missing:
        raise UnsupportedFormatError(
            f"the file lacks the column {', '.join(missing)}",
            hint="this Parquet file is not a segment of kafka-replicator",
        )


def _batches(opened: OpenSegment, index: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    group = opened.metadata.groups[index]
    rows = _rows_at_once(group)
    _fetch(opened, [chunk for chunk in group.chunks if chunk.column in names])
    return iter(opened.parquet.iter_batches(batch_size=rows, row_groups=[index], columns=names, use_threads=False))


def _fetch(opened: OpenSegment, chunks: Sequence[ColumnChunk]) -> None:
    for chunk in chunks:
        if chunk.start < 0 or chunk.packed_bytes < 0:
            raise CorruptDataError(f"{chunk.column} claims {chunk.packed_bytes} bytes from {chunk.start}")
    ranges = [ByteRange(start=chunk.start, size=chunk.packed_bytes) for chunk in chunks]
    if sum(each.size for each in ranges) > _FETCHED_BYTES_MAX:
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
