"""Records of one partition into segments. Rotates as the tool does: after the record that makes a segment large enough.

Where a segment ends depends on its records alone, not on how they come in batches, so that a second attempt writes the
same objects.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from maxbrod.batch.columns import GrowingBytes, number_array, number_column
from maxbrod.batch.conform import conform
from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.backups import Backup, backup_for, check_topic, has_offset_headers, refuse_unknown
from maxbrod.layouts.buffers import RecordBuffers, constant, little_endian, with_headers
from maxbrod.layouts.decoding import Counts, Tallied
from maxbrod.layouts.foreign import ForeignSegment
from maxbrod.layouts.kbak import kernels
from maxbrod.layouts.kbak.compression import codec_of, compress
from maxbrod.layouts.kbak.schema import (
    HEADER_BYTES,
    MAGIC_END,
    RECORD_BYTES_MAX,
    SEGMENT_BYTES_LIMIT,
    SEGMENT_BYTES_MAX,
    Header,
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
    tally = records if isinstance(records, Tallied) else None
    segments = _Segments(storage, backup, where, options, survey.positions.get(where), tally)
    for batch in records:
        segments.add(batch)
    return segments.finish()


class _Segments:
    """The segment that is being filled, and those that are written."""

    def __init__(
        self,
        storage: Storage,
        backup: Backup,
        where: TopicPartition,
        options: WriteOptions,
        position: int | None,
        tally: Tallied | None,
    ) -> None:
        self._tally = tally
        self._storage, self._backup, self._where, self._options = storage, backup, where, options
        self._codec, self._level = codec_of(options)
        self._bytes_max = options.segment_bytes_max or SEGMENT_BYTES_MAX
        self._records_max = options.segment_records_max or (1 << 62)
        if not 1 <= self._bytes_max <= SEGMENT_BYTES_LIMIT or self._records_max < 1:
            raise UsageError(f"a segment has 1 to {SEGMENT_BYTES_LIMIT} bytes, and a record or more")
        self._position = position
        self._body = GrowingBytes(HEADER_BYTES + self._bytes_max + (1 << 20))
        self._written: list[ForeignSegment] = []
        self._begin()

    def _begin(self) -> None:
        self._body.size = HEADER_BYTES
        self._rows = 0
        self._markers = 0
        self._first = (0, 0)
        self._last = (0, 0)
        self._times = (0, 0)

    def add(self, batch: pa.RecordBatch) -> None:
        records = self._prepared(conform(batch))
        if not records.num_rows:
            return
        buffers = RecordBuffers(records)
        self._check_order(buffers)
        lengths = self._lengths(buffers)
        ends = np.cumsum(lengths)
        first = 0
        while first < records.num_rows:
            before = int(ends[first - 1]) if first else 0
            room = self._bytes_max - (self._body.size - HEADER_BYTES)
            enough = int(np.searchsorted(ends, before + room)) + 1
            last = min(enough, first + self._records_max - self._rows, records.num_rows)
            self._take(buffers, lengths, first, last, int(ends[last - 1]) - before)
            first = last
            if self._body.size - HEADER_BYTES >= self._bytes_max or self._rows >= self._records_max:
                self._flush()

    def finish(self) -> list[ForeignSegment]:
        if self._rows:
            self._flush()
        if self._written and self._tally is not None:
            self._written[-1] = self._covering(self._written[-1], self._tally)
        return self._written

    def _covering(self, segment: ForeignSegment, tally: Tallied) -> ForeignSegment:
        """The last segment: it answers for all that was read behind its last record, too."""
        skipped = tally.skipped.take(tally.end)
        details = {
            **segment.details,
            "covered_end_offset": max(tally.end, segment.end_offset) - 1,
            "control_records_skipped": segment.details["control_records_skipped"] + skipped.control + self._markers,
            "aborted_records_dropped": segment.details["aborted_records_dropped"] + skipped.aborted,
        }
        return replace(segment, details=details)

    def _prepared(self, records: pa.RecordBatch) -> pa.RecordBatch:
        control = number_column(records.column("control"))
        if control.any():
            self._markers += int(control.sum())
            records = records.filter(number_array(~control))
        if not has_offset_headers(self._options):
            return records
        added = [
            (b"x-original-offset", little_endian(records.column("offset"))),
            (b"x-original-timestamp", little_endian(records.column("timestamp_ms"))),
        ]
        cluster = self._options.extra.get("source_cluster")
        if cluster is not None:
            added.append((b"x-source-cluster", constant(cluster.encode(), records.num_rows)))
        return with_headers(records, added)

    def _check_order(self, buffers: RecordBuffers) -> None:
        least = max(self._last[0] + 1 if self._rows else 0, self._position or 0)
        if int(buffers.offset[0]) < least or (np.diff(buffers.offset) <= 0).any():
            raise RefusedError(
                f"records of {self._where} do not come in the order of offsets, behind offset {least - 1}",
                offset=int(buffers.offset[0]),
                hint="survey the archive again, and go on where it ends",
            )

    def _lengths(self, buffers: RecordBuffers) -> np.ndarray[Any, np.dtype[np.int64]]:
        lengths = np.empty(len(buffers.offset), np.int64)
        row = kernels.measure(*buffers.shape(), lengths)
        if row < 0 and int(lengths.max()) > RECORD_BYTES_MAX:
            row = int(lengths.argmax())
        if row >= 0:
            raise RefusedError(
                f"a record of {self._where} does not fit the layout",
                offset=int(buffers.offset[row]),
                hint="it has room for 65535 headers a record, 65535 bytes a header key, 1 GiB a record",
            )
        return lengths

    def _take(
        self, buffers: RecordBuffers, lengths: np.ndarray[Any, np.dtype[np.int64]], first: int, last: int, size: int
    ) -> None:
        at = self._body.size
        self._body.reserve(at + size)
        kernels.write(*buffers.all(), lengths, first, last, self._body.data, at)
        if not self._rows:
            self._first = int(buffers.offset[first]), int(buffers.timestamp[first])
            self._times = self._first[1], self._first[1]
        self._last = int(buffers.offset[last - 1]), int(buffers.timestamp[last - 1])
        chosen = buffers.timestamp[first:last]
        self._times = min(self._times[0], int(chosen.min())), max(self._times[1], int(chosen.max()))
        self._rows += last - first

    def _flush(self) -> None:
        body = self._body.data[HEADER_BYTES : self._body.size]
        header = Header(codec=self._codec, records=self._rows, start_offset=self._first[0], end_offset=self._last[0])
        pieces = [encode_header(header), *compress(self._codec, body, self._level)]
        crc = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
        stored = b"".join((*pieces, crc.to_bytes(4, "little"), MAGIC_END))
        name = segment_name(self._where, header.start_offset, self._codec)
        self._storage.replace(self._backup.path(name), stored)
        self._written.append(self._described(header, name, body.size, stored))
        self._position = header.end_offset + 1
        self._begin()

    def _described(self, header: Header, name: str, body_bytes: int, stored: bytes) -> ForeignSegment:
        begun = header.start_offset if self._tally is None else min(self._tally.start, header.start_offset)
        covered_from = begun if self._position is None else self._position
        skipped = Counts(control=0, aborted=0)
        if self._tally is not None:
            skipped = self._tally.skipped.take(header.end_offset + 1)
        return ForeignSegment(
            where=self._where,
            path=self._backup.path(name),
            base_offset=header.start_offset,
            end_offset=header.end_offset + 1,
            records=header.records,
            bytes=len(stored),
            min_timestamp=self._times[0],
            max_timestamp=self._times[1],
            details={
                "key": f"{self._backup.backup_id}/{name}",
                "start_timestamp": self._first[1],
                "end_timestamp": self._last[1],
                "uncompressed_size": body_bytes,
                "sha256": hashlib.sha256(stored).hexdigest(),
                "uploaded_at": int(time.time() * 1000),
                "covered_start_offset": covered_from,
                "covered_end_offset": header.end_offset,
                "control_records_skipped": self._markers + skipped.control,
                "aborted_records_dropped": skipped.aborted,
            },
        )
