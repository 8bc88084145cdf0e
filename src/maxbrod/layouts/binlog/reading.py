"""The records of a binlog segment as Arrow batches, in pieces of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.kernels import sealed
from maxbrod.batch.schema import project
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.binlog import kernels
from maxbrod.layouts.binlog.entries import PIECE_BYTES, Entries, entries
from maxbrod.layouts.binlog.names import INDEX, RECORDS
from maxbrod.layouts.binlog.schema import SegmentFiles
from maxbrod.layouts.found import Found, Room, batch_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.layouts.foreign import ForeignSegment
    from maxbrod.storage.interface import Storage


def files_of(segment: ForeignSegment) -> SegmentFiles:
    """The files of a segment as its survey or its writer found them."""
    index_bytes = segment.details.get("index_bytes")
    return SegmentFiles(
        records=segment.path,
        records_bytes=segment.bytes,
        index=None if index_bytes is None else segment.path.removesuffix(RECORDS) + INDEX,
        index_bytes=index_bytes or 0,
    )


def read(storage: Storage, segment: ForeignSegment, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    schema = project(None if columns is None else list(columns))
    files = files_of(segment)
    for some in entries(storage, files):
        for piece in _pieces(some):
            found, status = _find(storage, files, piece)
            if len(found.offset):
                yield batch_of(found, schema)
            if status != kernels.OK:
                raise _damaged(storage, files, piece, status, len(found.offset))


def _pieces(some: Entries) -> Iterator[Entries]:
    """Entries whose records are near each other, so that one request brings them."""
    first = 0
    while first < len(some.offset):
        fits = int(np.searchsorted(some.stop, int(some.start[first]) + PIECE_BYTES, side="right"))
        last = max(fits, first + 1)
        yield some.rows(slice(first, last))
        first = last


def _find(storage: Storage, files: SegmentFiles, piece: Entries) -> tuple[Found, int]:
    """The records of the piece before the first one that is damaged, and what is wrong with that."""
    begin, end = int(piece.start[0]), int(piece.stop[-1])
    data: NDArray[np.uint8] = sealed(np.frombuffer(storage.get_range(files.records, begin, end - begin), np.uint8))
    room = Room(len(piece.offset))
    room.offset = piece.offset
    status, rows = kernels.scan(
        data,
        piece.start - begin,
        piece.stop - begin,
        *(room.offset, room.timestamp_ms, room.timestamp_type),
        *room.parts(),
        *(room.header_at, room.header_ends),
    )
    return room.found(data, rows, kernels.scan_headers), status


def _damaged(storage: Storage, files: SegmentFiles, piece: Entries, status: int, row: int) -> CorruptDataError:
    return CorruptDataError(
        kernels.MEANING[status],
        object_name=storage.name_of(files.records),
        offset=int(piece.offset[row]),
        position=int(piece.start[row]),
        hint="the records file or its index is damaged there; the tool keeps no checksum that would say which",
    )
