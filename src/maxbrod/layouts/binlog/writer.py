"""Records of one partition into segments of the tool's own form.

An object cannot be appended to, so each run begins a segment, which the tool reads just as well. Records and segment
index are written before anything names them; `publish` writes the partition index, which does. A new partition gets
an empty partition index at once, so that unpublished segments are not mistaken for those of a lost index.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.layouts.binlog import kernels
from maxbrod.layouts.binlog.format import INDEX, MAGIC, RECORDS, encode_segment_index, index_path, segment_path
from maxbrod.layouts.binlog.survey import check_options, empty_segment, put_new
from maxbrod.layouts.buffers import RecordBuffers, Rotation, TreeWriter
from maxbrod.layouts.foreign import ForeignSegment, Survey, WriteOptions
from maxbrod.model import TopicPartition
from maxbrod.storage.interface import Storage

SEGMENT_BYTES_MAX: Final = 64 << 20
"""The tool's own default is 1 GiB, because it appends to files. An object is held in memory."""


def write(
    storage: Storage, where: TopicPartition, records: Iterable[pa.RecordBatch], options: WriteOptions, survey: Survey
) -> list[ForeignSegment]:
    check_options(options)
    known = [segment for segment in survey.segments if segment.where == where]
    if where not in survey.positions:
        put_new(storage, index_path(where), MAGIC)
    written = _Writer(storage, where, options, known).write(records, survey.positions.get(where, 0))
    return written or ([] if known else [empty_segment(storage, where)])


class _Writer(TreeWriter):
    """Collects the bytes of a segment in memory."""

    def __init__(
        self, storage: Storage, where: TopicPartition, options: WriteOptions, known: list[ForeignSegment]
    ) -> None:
        bytes_max = SEGMENT_BYTES_MAX if options.segment_bytes_max is None else options.segment_bytes_max
        # A new file has its magic byte, which even the smallest maximum allows.
        rotation = Rotation(
            bytes_max=max(bytes_max, len(MAGIC)), records_max=options.segment_records_max, bytes_fresh=len(MAGIC)
        )
        super().__init__(storage, where, rotation)
        # The first segment of a partition is named after offset 0, whatever its first record. An empty one is filled.
        self._begin: int | None = 0
        if known:
            self._begin = None if known[-1].records else int(known[-1].details["start_offset"])
        self._parts: list[NDArray[np.uint8]] = []
        self._offsets: list[NDArray[np.int64]] = []
        self._sizes: list[NDArray[np.int64]] = []

    def _measure(self, buffers: RecordBuffers) -> NDArray[np.int64]:
        sizes: NDArray[np.int64] = np.empty(buffers.rows, np.int64)
        kernels.measure(buffers, sizes)
        return sizes

    def _fill(self, buffers: RecordBuffers, first: int, sizes: NDArray[np.int64]) -> None:
        last = first + len(sizes)
        self._parts.append(np.empty(int(sizes.sum()), np.uint8))
        kernels.write(buffers, first, last, self._parts[-1])
        self._offsets.append(buffers.offset[first:last])
        self._sizes.append(sizes)

    def _put(self) -> ForeignSegment:
        start_offset = self._extent.first_offset if self._begin is None else self._begin
        offset, size = np.concatenate(self._offsets), np.concatenate(self._sizes)
        records = np.concatenate([np.frombuffer(MAGIC, np.uint8), *self._parts])
        index = encode_segment_index(offset, len(MAGIC) + np.cumsum(size) - size, size)
        path = segment_path(self._where, start_offset, RECORDS)
        self._storage.replace(path, memoryview(records))
        self._storage.replace(segment_path(self._where, start_offset, INDEX), index)
        self._begin, self._parts, self._offsets, self._sizes = None, [], [], []
        details = {"start_offset": start_offset, "index_bytes": len(index)}
        return self._extent.segment(self._where, path, records.size, details)
