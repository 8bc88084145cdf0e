"""The records of a segment, batch after batch, in bounded memory: pages are read through small buffers.

What is checked on the way, besides what Parquet checks itself: that the footer belongs to the name, that offsets rise,
and that none lies outside of the range that the name gives. Sizes in the footer that cannot be are refused before
anything is unpacked; a single page cannot have more than 2 GiB by the format itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.schema import project
from maxbrod.errors import CorruptDataError, UnsupportedFormatError, UsageError
from maxbrod.layouts.parquet.conversion import from_file, offsets_of
from maxbrod.layouts.parquet.footer import check_footer, parse_footer
from maxbrod.layouts.parquet.names import SegmentName, parse_name
from maxbrod.layouts.parquet.objects import open_parquet, parquet_errors
from maxbrod.layouts.parquet.schema import SOURCES, TOOL_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    import pyarrow.parquet as pq

    from maxbrod.layouts.foreign import ForeignSegment
    from maxbrod.storage.interface import Storage

_BATCH_BYTES: Final = 16 << 20
_BATCH_ROWS_MAX: Final = 1 << 16
_DICTIONARY_ROWS_MAX: Final = 1 << 10
"""A value of a dictionary may stand in every row, so that the size of the chunk says nothing about that of a batch."""
_ROW_BYTES_MAX: Final = 1 << 30
_UNPACKED_FACTOR_MAX: Final = 1 << 14
_UNPACKED_BYTES_FREE: Final = 256 << 20


def read_segment(
    storage: Storage, segment: ForeignSegment, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Its records within `[base_offset, end_offset)`: a survey gives less than the object has where others overlap."""
    schema = project(None if columns is None else list(columns))
    name = _name(segment.path)
    object_name = storage.name_of(segment.path)
    file = open_parquet(storage, segment.path, segment.bytes)
    with parquet_errors(object_name, name.start):
        check_footer(parse_footer(file.metadata.metadata), name)
        check_columns(file)
    last = -1
    for found in stored_batches(file, _wanted(file, schema), object_name, name.start):
        with parquet_errors(object_name, max(last, name.start)):
            offsets = offsets_of(found)
            if not offsets.size:
                continue
            _check_order(offsets, last, name)
            last = int(offsets[-1])
            rows = np.searchsorted(offsets, (segment.base_offset, segment.end_offset))
            if rows[0] < rows[1]:
                yield from_file(found.slice(int(rows[0]), int(rows[1] - rows[0])), schema)


def stored_batches(
    file: pq.ParquetFile, columns: Sequence[str], object_name: str, offset: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a file as they are, in pieces of about 16 MiB."""
    for group in range(file.metadata.num_row_groups):
        with parquet_errors(object_name, offset):
            rows = _rows_at_once(file, group)
            if not rows:
                continue
            batches = file.iter_batches(batch_size=rows, row_groups=[group], columns=columns, use_threads=False)
        while True:
            with parquet_errors(object_name, offset):
                batch = next(batches, None)
            if batch is None:
                break
            yield batch


def check_columns(file: pq.ParquetFile) -> None:
    """UnsupportedFormatError: this is a Parquet file, but not one with the columns of a segment."""
    missing = [name for name in TOOL_COLUMNS if name not in file.schema_arrow.names]
    if missing:
        raise UnsupportedFormatError(
            f"the file lacks the column {', '.join(missing)}",
            hint="this Parquet file is no segment of kafka-replicator",
        )


def _wanted(file: pq.ParquetFile, schema: pa.Schema) -> list[str]:
    """The file's columns that are needed, the offset always: what is not asked for is not even fetched."""
    names = {source for field in schema for source in SOURCES.get(field.name, ())} | {"offset"}
    return [name for name in file.schema_arrow.names if name in names]


def _rows_at_once(file: pq.ParquetFile, group: int) -> int:
    """How many rows make a batch. CorruptDataError: the sizes that the footer gives cannot be."""
    found = file.metadata.row_group(group)
    chunks = [found.column(index) for index in range(found.num_columns)]
    for chunk in chunks:
        packed, unpacked = chunk.total_compressed_size, chunk.total_uncompressed_size
        if min(packed, unpacked) < 0 or unpacked > _UNPACKED_BYTES_FREE + packed * _UNPACKED_FACTOR_MAX:
            raise CorruptDataError(f"{chunk.path_in_schema} claims to unpack from {packed} to {unpacked} bytes")
    rows = int(found.num_rows)
    if rows <= 0:
        return 0
    row_bytes = max(1, sum(int(chunk.total_uncompressed_size) for chunk in chunks) // rows)
    if row_bytes > _ROW_BYTES_MAX:
        raise CorruptDataError(f"{rows} records claim {row_bytes} bytes each")
    most = _DICTIONARY_ROWS_MAX if any(_has_dictionary(chunk) for chunk in chunks) else _BATCH_ROWS_MAX
    return min(rows, most, max(1, _BATCH_BYTES // row_bytes))


def _has_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether it may hold long values in little room. Numbers and flags cannot."""
    return chunk.physical_type == "BYTE_ARRAY" and any("DICTIONARY" in each for each in chunk.encodings)


def _check_order(offsets: np.typing.NDArray[np.int64], last: int, name: SegmentName) -> None:
    previous = np.concatenate((np.array([last]), offsets[:-1]))
    wrong = np.flatnonzero((offsets <= previous) | (offsets < name.start) | (offsets > name.end))
    if wrong.size:
        at = int(offsets[wrong[0]])
        raise CorruptDataError(
            f"offset {at} stands after {int(previous[wrong[0]])} in a segment of {name.start} to {name.end}", offset=at
        )


def _name(path: str) -> SegmentName:
    name = parse_name(path)
    if name is None:
        raise UsageError("no segment of this layout has such a name", object_name=path)
    return name
