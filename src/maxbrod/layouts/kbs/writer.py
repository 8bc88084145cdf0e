"""Records of one partition into segments of batches. Where a batch ends depends on the records alone, too."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import pyarrow as pa

from maxbrod.batch.columns import GrowingBytes
from maxbrod.batch.compression import compress
from maxbrod.errors import RefusedError
from maxbrod.layouts.buffers import BackupWriter, RecordBuffers, SegmentExtent, constant, decimal
from maxbrod.layouts.foreign import ForeignSegment, Survey, WriteOptions
from maxbrod.layouts.kbs import format as kbs
from maxbrod.layouts.kbs import kernels
from maxbrod.layouts.kbs.kernels import combine, crc64
from maxbrod.layouts.manifest import codec_of
from maxbrod.model import TopicPartition
from maxbrod.storage.interface import Storage


def write(
    storage: Storage, where: TopicPartition, records: Iterable[pa.RecordBatch], options: WriteOptions, survey: Survey
) -> list[ForeignSegment]:
    return _Writer(storage, where, options, survey).write(records)


class _Writer(BackupWriter):
    """Fills a batch, and the segment that it belongs to."""

    def __init__(self, storage: Storage, where: TopicPartition, options: WriteOptions, survey: Survey) -> None:
        super().__init__(storage, where, options, survey)
        self._codec, self._level = codec_of(options, kbs.KbsCodec)
        counts = survey.details.get("counts", {}).get(where.topic, {})
        self._index = int(counts.get(str(where.partition), 0))
        self._batch_bytes = min(kbs.BATCH_BYTES_MAX, self._bytes_max)
        self._block = GrowingBytes(self._batch_bytes + (64 << 10))
        self._batch = SegmentExtent()
        self._batches: list[bytes] = []
        self._block_bytes = 0

    def _tracking_headers(self, records: pa.RecordBatch) -> list[tuple[bytes, pa.Array]]:
        return [
            (b"x-kafka-backup-offset", decimal(records.column("offset"))),
            (b"x-kafka-backup-timestamp", decimal(records.column("timestamp_ms"))),
            (b"x-kafka-backup-partition", constant(str(self._where.partition).encode(), records.num_rows)),
        ]

    def _fill(self, buffers: RecordBuffers) -> None:
        first = 0
        while first < buffers.rows:
            first = self._fill_batch(buffers, first, min(buffers.rows, first + self._records_max - self._extent.rows))
            full = self._extent.rows >= self._records_max
            if full or self._block.size >= self._batch_bytes:
                self._close_batch()
            if full or self._block_bytes >= self._bytes_max:
                self._flush()

    def _fill_batch(self, buffers: RecordBuffers, first: int, last: int) -> int:
        """Adds rows to the batch up to its end, and returns the first row that was not added."""
        base_offset = self._batch.first_offset if self._batch.rows else int(buffers.offset[first])
        row, at = first, self._block.size
        while True:
            status, row, at, needed = kernels.fill(
                buffers, row, last, base_offset, self._batch_bytes, self._block.data, at
            )
            self._block.size = at
            if status == kernels.OK:
                break
            if at + needed > kbs.BLOCK_BYTES_LIMIT:
                raise RefusedError(
                    f"a record of {self._where} has {needed} bytes and does not fit the layout",
                    offset=int(buffers.offset[row]),
                )
            self._block.reserve(at + needed)
        self._extent.add(buffers, first, row)
        self._batch.add(buffers, first, row)
        return int(row)

    def _close_batch(self) -> None:
        packed = compress(self._codec.kafka, self._block.taken(), self._level)
        header = kbs.BatchHeader(
            base_offset=self._batch.first_offset,
            records=self._batch.rows,
            stored_bytes=len(packed),
            block_bytes=self._block.size,
            crc=zlib.crc32(packed),
        )
        self._batches += [kbs.BATCH.pack(*header), packed]
        self._block_bytes += self._block.size
        self._block.size, self._batch = 0, SegmentExtent()

    def _flush(self) -> None:
        if self._batch.rows:
            self._close_batch()
        extent = self._extent
        batches = b"".join(self._batches)
        checksum = crc64(batches)
        header = kbs.encode_header(
            kbs.KbsHeader(codec=self._codec, first_offset=extent.first_offset, records=extent.rows, checksum=checksum)
        )
        footer = kbs.FOOTER.pack(extent.rows, combine(crc64(header), checksum, len(batches)))
        stored = b"".join((header, batches, footer))
        path = self._backup.path(kbs.segment_name(self._where, self._index))
        self._storage.replace(path, stored)
        details = {
            "index": self._index,
            "uncompressed_bytes": self._block_bytes,
            "last_timestamp": extent.last_timestamp,
        }
        self._written.append(extent.segment(self._where, path, len(stored), details))
        self._index += 1
        self._batches, self._block_bytes, self._extent = [], 0, SegmentExtent()
