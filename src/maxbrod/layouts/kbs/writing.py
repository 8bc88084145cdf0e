"""Records of one partition into segments of batches.

Where a batch or a segment ends depends on the records alone, not on how they come in Arrow's batches, so that a second
attempt writes the same objects.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.columns import GrowingBytes, number_array, number_column
from maxbrod.batch.compression import compress
from maxbrod.batch.conform import conform
from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.backups import Backup, backup_for, check_topic, has_offset_headers, refuse_unknown
from maxbrod.layouts.buffers import RecordBuffers, constant, decimal, with_headers
from maxbrod.layouts.foreign import ForeignSegment
from maxbrod.layouts.kbs import kernels
from maxbrod.layouts.kbs.crc64 import combine, crc64
from maxbrod.layouts.kbs.schema import (
    BATCH_BYTES_MAX,
    BLOCK_BYTES_LIMIT,
    SEGMENT_BYTES_LIMIT,
    SEGMENT_BYTES_MAX,
    BatchHeader,
    Header,
    codec_of,
    encode_batch_header,
    encode_footer,
    encode_header,
    segment_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from maxbrod.layouts.foreign import Survey, WriteOptions
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage


def write(
    storage: Storage, where: TopicPartition, records: Iterable[pa.RecordBatch], options: WriteOptions, survey: Survey
) -> list[ForeignSegment]:
    check_topic(where.topic)
    backup = backup_for(survey, options)
    refuse_unknown(storage, backup, survey)
    counts = survey.details.get("counts", {}).get(where.topic, {})
    index = int(counts.get(str(where.partition), 0))
    segments = _Segments(storage, backup, where, options, index, survey.positions.get(where, 0))
    for batch in records:
        segments.add(batch)
    return segments.finish()


class _Segments:
    """The batch that is being filled, the segment that it belongs to, and those that are written."""

    def __init__(
        self,
        storage: Storage,
        backup: Backup,
        where: TopicPartition,
        options: WriteOptions,
        index: int,
        position: int,
    ) -> None:
        self._storage, self._backup, self._where, self._options = storage, backup, where, options
        self._codec, self._level = codec_of(options)
        self._bytes_max = options.segment_bytes_max or SEGMENT_BYTES_MAX
        self._records_max = options.segment_records_max or (1 << 62)
        if not 1 <= self._bytes_max <= SEGMENT_BYTES_LIMIT or self._records_max < 1:
            raise UsageError(f"a segment has 1 to {SEGMENT_BYTES_LIMIT} bytes, and a record or more")
        self._index = index
        self._position = position
        self._block = GrowingBytes(min(BATCH_BYTES_MAX, self._bytes_max) + (64 << 10))
        self._written: list[ForeignSegment] = []
        self._begin()

    def _begin(self) -> None:
        self._batches: list[bytes] = []
        self._block_bytes = 0
        self._rows = 0
        self._batch_rows = 0
        self._first = (0, 0)
        self._base_offset = 0
        self._last = (0, 0)
        self._times = (0, 0)

    def add(self, batch: pa.RecordBatch) -> None:
        records = self._prepared(conform(batch))
        if not records.num_rows:
            return
        buffers = RecordBuffers(records)
        if int(buffers.offset[0]) < self._position or (np.diff(buffers.offset) <= 0).any():
            raise RefusedError(
                f"records of {self._where} do not come in the order of offsets, behind offset {self._position - 1}",
                offset=int(buffers.offset[0]),
                hint="survey the archive again, and go on where it ends",
            )
        first = 0
        while first < records.num_rows:
            first = self._take(buffers, first, min(records.num_rows, first + self._records_max - self._rows))
            full = self._rows >= self._records_max
            if full or self._block.size >= min(BATCH_BYTES_MAX, self._bytes_max):
                self._close_batch()
            if full or self._block_bytes >= self._bytes_max:
                self._flush()

    def finish(self) -> list[ForeignSegment]:
        if self._batch_rows:
            self._close_batch()
        if self._rows:
            self._flush()
        return self._written

    def _prepared(self, records: pa.RecordBatch) -> pa.RecordBatch:
        control = number_column(records.column("control"))
        if control.any():
            records = records.filter(number_array(~control))
        if not has_offset_headers(self._options):
            return records
        added = [
            (b"x-kafka-backup-offset", decimal(records.column("offset"))),
            (b"x-kafka-backup-timestamp", decimal(records.column("timestamp_ms"))),
            (b"x-kafka-backup-partition", constant(str(self._where.partition).encode(), records.num_rows)),
        ]
        return with_headers(records, added)

    def _take(self, buffers: RecordBuffers, first: int, last: int) -> int:
        """Add rows to the batch up to its end; returns the first that was not added."""
        if not self._batch_rows:
            self._base_offset = int(buffers.offset[first])
        row, at = first, self._block.size
        while True:
            status, row, at, needed = kernels.fill(
                *buffers.all(),
                row,
                last,
                self._base_offset,
                min(BATCH_BYTES_MAX, self._bytes_max),
                self._block.data,
                at,
            )
            self._block.size = at
            if status == kernels.OK:
                break
            if at + needed > BLOCK_BYTES_LIMIT:
                raise RefusedError(
                    f"a record of {self._where} has {needed} bytes and does not fit the layout",
                    offset=int(buffers.offset[row]),
                )
            self._block.reserve(at + needed)
        self._note(buffers, first, row)
        return int(row)

    def _note(self, buffers: RecordBuffers, first: int, last: int) -> None:
        times = buffers.timestamp[first:last]
        least, most = int(times.min()), int(times.max())
        if not self._rows:
            self._first = int(buffers.offset[first]), int(buffers.timestamp[first])
            self._times = least, most
        self._times = min(self._times[0], least), max(self._times[1], most)
        self._last = int(buffers.offset[last - 1]), int(buffers.timestamp[last - 1])
        self._position = self._last[0] + 1
        self._rows += last - first
        self._batch_rows += last - first

    def _close_batch(self) -> None:
        if not self._batch_rows:
            return
        packed = compress(self._codec.kafka, self._block.taken(), self._level)
        header = BatchHeader(
            base_offset=self._base_offset,
            records=self._batch_rows,
            stored_bytes=len(packed),
            block_bytes=self._block.size,
            crc=zlib.crc32(packed),
        )
        self._batches += [encode_batch_header(header), packed]
        self._block_bytes += self._block.size
        self._block.size = 0
        self._batch_rows = 0

    def _flush(self) -> None:
        batches = b"".join(self._batches)
        checksum = crc64(batches)
        header = encode_header(
            Header(codec=self._codec, first_offset=self._first[0], records=self._rows, checksum=checksum)
        )
        footer = encode_footer(self._rows, combine(crc64(header), checksum, len(batches)))
        stored = b"".join((header, batches, footer))
        path = self._backup.path(segment_name(self._where, self._index))
        self._storage.replace(path, stored)
        self._written.append(
            ForeignSegment(
                where=self._where,
                path=path,
                base_offset=self._first[0],
                end_offset=self._last[0] + 1,
                records=self._rows,
                bytes=len(stored),
                min_timestamp=self._times[0],
                max_timestamp=self._times[1],
                details={
                    "index": self._index,
                    "uncompressed_bytes": self._block_bytes,
                    "last_timestamp": self._last[1],
                },
            )
        )
        self._index += 1
        self._begin()
