"""Records of one partition into segments of the tool's own form.

An object cannot be appended to, so each run begins a segment, which the tool reads just as well. Records and segment
index are written before anything names them; `publish` writes the partition index, which does. A new partition gets
an empty partition index at once, so that unpublished segments are not mistaken for those of a lost index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.layouts.binlog import kernels
from maxbrod.layouts.binlog.format import INDEX, MAGIC, RECORDS, encode_segment_index, index_path, segment_path
from maxbrod.layouts.binlog.layout import check_options, empty_segment, put_new
from maxbrod.layouts.buffers import RecordBuffers, Rotation, consumable
from maxbrod.layouts.foreign import ForeignSegment, Survey, WriteOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

SEGMENT_BYTES_MAX: Final = 64 << 20
"""The tool's own default is 1 GiB, because it appends to files. An object is held in memory."""


def write(
    storage: Storage,
    where: TopicPartition,
    records: Iterable[pa.RecordBatch],
    options: WriteOptions,
    survey: Survey,
) -> list[ForeignSegment]:
    check_options(options)
    known = [segment for segment in survey.segments if segment.where == where]
    writer = _PartitionWriter(storage, where, options, begin=_begin(known))
    if where not in survey.positions:
        put_new(storage, index_path(where), MAGIC)
    for batch in consumable(records, survey.positions.get(where, 0)):
        writer.add(batch)
    writer.finish()
    return writer.written or ([] if known else [empty_segment(storage, where)])


def _begin(known: list[ForeignSegment]) -> int | None:
    """The offset in the name of the next segment; None: the offset of its first record.

    The first segment of a partition is named after offset 0, whatever its first record. An empty one is filled.
    """
    if not known:
        return 0
    return None if known[-1].records else int(known[-1].details["start_offset"])


class _PartitionWriter:
    def __init__(self, storage: Storage, where: TopicPartition, options: WriteOptions, *, begin: int | None) -> None:
        bytes_max = SEGMENT_BYTES_MAX if options.segment_bytes_max is None else options.segment_bytes_max
        self.written: list[ForeignSegment] = []
        self._storage = storage
        self._where = where
        # A new file has its magic byte, which even the smallest maximum allows.
        self._rotation = Rotation(
            bytes_max=max(bytes_max, len(MAGIC)), records_max=options.segment_records_max, bytes_fresh=len(MAGIC)
        )
        self._begin = begin
        self._segment: _Segment | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        buffers = RecordBuffers.of(batch)
        sizes = np.empty(buffers.rows, np.int64)
        kernels.measure(buffers, sizes)
        for first, last, begins in self._rotation.pieces(sizes):
            if begins:
                self.finish()
            segment = self._segment or self._next(int(buffers.offset[first]))
            segment.add(buffers, first, last, sizes[first:last])

    def _next(self, offset: int) -> _Segment:
        self._segment = _Segment(offset if self._begin is None else self._begin)
        self._begin = None
        return self._segment

    def finish(self) -> None:
        if self._segment is not None:
            self.written.append(self._segment.put(self._storage, self._where))
            self._segment = None


class _Segment:
    """The bytes of one segment, collected in memory."""

    def __init__(self, start_offset: int) -> None:
        self._start_offset = start_offset
        self._parts: list[NDArray[np.uint8]] = [np.frombuffer(MAGIC, np.uint8)]
        self._offsets: list[NDArray[np.int64]] = []
        self._sizes: list[NDArray[np.int64]] = []
        self._lowest: list[int] = []
        self._highest: list[int] = []

    def add(self, buffers: RecordBuffers, first: int, last: int, sizes: NDArray[np.int64]) -> None:
        out = np.empty(int(sizes.sum()), np.uint8)
        kernels.write(buffers, first, last, out)
        self._parts.append(out)
        self._offsets.append(buffers.offset[first:last])
        self._sizes.append(sizes)
        self._lowest.append(int(buffers.timestamp[first:last].min()))
        self._highest.append(int(buffers.timestamp[first:last].max()))

    def put(self, storage: Storage, where: TopicPartition) -> ForeignSegment:
        offset, size = np.concatenate(self._offsets), np.concatenate(self._sizes)
        records = np.concatenate(self._parts)
        index = encode_segment_index(offset, len(MAGIC) + np.cumsum(size) - size, size)
        path = segment_path(where, self._start_offset, RECORDS)
        storage.replace(path, memoryview(records))
        storage.replace(segment_path(where, self._start_offset, INDEX), index)
        return ForeignSegment(
            where=where,
            path=path,
            base_offset=int(offset[0]),
            end_offset=int(offset[-1]) + 1,
            records=len(offset),
            bytes=records.size,
            min_timestamp=min(self._lowest),
            max_timestamp=max(self._highest),
            details={"start_offset": self._start_offset, "index_bytes": len(index)},
        )
