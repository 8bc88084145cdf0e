"""Reads the records of a segment in batches, in bounded memory.

Besides what Parquet checks itself, this checks that the footer matches the name, that offsets rise within the range of
the name, that no record is missing, and that no page claims to unpack to more than any page may have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.schema import project
from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.layouts.parquet.conversion import from_file, offsets_of
from maxbrod.layouts.parquet.footer import check_footer, parse_footer
from maxbrod.layouts.parquet.groups import check_columns, stored_batches
from maxbrod.layouts.parquet.names import SegmentName, parse_name
from maxbrod.layouts.parquet.objects import open_parquet, parquet_errors
from maxbrod.layouts.parquet.schema import SOURCES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.layouts.foreign import ForeignSegment
    from maxbrod.storage.interface import Storage


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
    name = _name(segment.path)
    opened = open_parquet(storage, segment.path, segment.bytes)
    with parquet_errors(opened.object_name, name.start):
        footer = parse_footer(opened.keys)
        check_footer(footer, name)
        check_columns(opened)
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


def _name(path: str) -> SegmentName:
    name = parse_name(path)
    if name is None:
        raise UsageError("no segment of this layout has such a name", object_name=path)
    return name
