"""Writes records of one partition into the segments of a backup: what the layouts kbak and kbs do alike.

Where a segment ends depends on its records alone, not on the Arrow batches that bring them. A second attempt therefore
writes the same objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.columns import conform, number_array, number_column
from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.buffers import RecordBuffers, with_headers
from maxbrod.layouts.documents import check_topic
from maxbrod.layouts.manifest import SEGMENT_BYTES_LIMIT, SEGMENT_BYTES_MAX, backup_for, refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from maxbrod.layouts.foreign import ForeignSegment, Survey, WriteOptions
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage


@dataclass(slots=True)
class SegmentExtent:
    """The first and the last record of a segment, its number of records, and the bounds of their timestamps."""

    rows: int = 0
    first_offset: int = 0
    first_timestamp: int = 0
    last_offset: int = 0
    last_timestamp: int = 0
    min_timestamp: int = 0
    max_timestamp: int = 0

    def add(self, buffers: RecordBuffers, first: int, last: int) -> None:
        """Rows [first, last), which follow all before."""
        timestamps = buffers.timestamp[first:last]
        lowest, highest = int(timestamps.min()), int(timestamps.max())
        if not self.rows:
            self.first_offset, self.first_timestamp = int(buffers.offset[first]), int(timestamps[0])
            self.min_timestamp, self.max_timestamp = lowest, highest
        self.last_offset, self.last_timestamp = int(buffers.offset[last - 1]), int(timestamps[-1])
        self.min_timestamp, self.max_timestamp = min(self.min_timestamp, lowest), max(self.max_timestamp, highest)
        self.rows += last - first


class BackupWriter:
    """Fills segments and writes each one that is full. A layout encodes records (`_fill`) and segments (`_flush`)."""

    def __init__(self, storage: Storage, where: TopicPartition, options: WriteOptions, survey: Survey) -> None:
        check_topic(where.topic)
        self._backup = backup_for(survey, options)
        refuse_unknown(storage, self._backup, survey)
        self._storage, self._where, self._options = storage, where, options
        self._bytes_max = options.segment_bytes_max or SEGMENT_BYTES_MAX
        self._records_max = options.segment_records_max or (1 << 62)
        if not 1 <= self._bytes_max <= SEGMENT_BYTES_LIMIT or self._records_max < 1:
            raise UsageError(f"a segment has 1 to {SEGMENT_BYTES_LIMIT} bytes, and a record or more")
        self._next_offset = survey.positions.get(where, 0)
        self._markers = 0
        """Transaction markers that were left out since the last segment was written."""
        self._extent = SegmentExtent()
        self._written: list[ForeignSegment] = []

    def write(self, records: Iterable[pa.RecordBatch]) -> list[ForeignSegment]:
        for batch in records:
            self._add(conform(batch))
        if self._extent.rows:
            self._flush()
        return self._written

    def _add(self, records: pa.RecordBatch) -> None:
        control = number_column(records.column("control"))
        if control.any():
            self._markers += int(control.sum())
            records = records.filter(number_array(~control))
        if not records.num_rows:
            return
        if self._options.extra.get("offset_headers") == "true":
            records = with_headers(records, self._tracking_headers(records))
        buffers = RecordBuffers.of(records)
        if int(buffers.offset[0]) < self._next_offset or (np.diff(buffers.offset) <= 0).any():
            raise RefusedError(
                f"records of {self._where} do not come in the order of offsets, after offset {self._next_offset - 1}",
                offset=int(buffers.offset[0]),
                hint="survey the archive again, and continue where it ends",
            )
        self._fill(buffers)
        self._next_offset = int(buffers.offset[-1]) + 1

    def _tracking_headers(self, records: pa.RecordBatch) -> Sequence[tuple[bytes, pa.Array]]:
        """Name and values of each header that the tool adds to the records."""
        raise NotImplementedError

    def _fill(self, buffers: RecordBuffers) -> None:
        """Adds all rows to the current segment, and flushes it each time it is full."""
        raise NotImplementedError

    def _flush(self) -> None:
        """Writes the current segment, and begins the next one."""
        raise NotImplementedError
