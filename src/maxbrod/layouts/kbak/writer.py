"""Records of one partition into segments. As with the tool, the record that makes a segment large enough ends it."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.columns import GrowingBytes
from maxbrod.errors import RefusedError
from maxbrod.layouts.buffers import BackupWriter, RecordBuffers, SegmentExtent, constant, little_endian
from maxbrod.layouts.foreign import ForeignSegment, Survey, WriteOptions
from maxbrod.layouts.kbak import format as kbak
from maxbrod.layouts.kbak import kernels
from maxbrod.layouts.manifest import codec_of
from maxbrod.layouts.reader import Counts, Tallied
from maxbrod.model import TopicPartition
from maxbrod.storage.interface import Storage


def write(
    storage: Storage, where: TopicPartition, records: Iterable[pa.RecordBatch], options: WriteOptions, survey: Survey
) -> list[ForeignSegment]:
    tally = records if isinstance(records, Tallied) else None
    writer = _Writer(storage, where, options, survey, tally)
    written = writer.write(records)
    return [*written[:-1], writer.covering(written[-1], tally)] if written and tally is not None else written


class _Writer(BackupWriter):
    def __init__(
        self,
        storage: Storage,
        where: TopicPartition,
        options: WriteOptions,
        survey: Survey,
        tally: Tallied | None,
    ) -> None:
        super().__init__(storage, where, options, survey)
        self._codec, self._level = codec_of(options, kbak.KbakCodec)
        self._tally = tally
        self._covered_from = survey.positions.get(where)
        self._body = GrowingBytes(kbak.HEADER_BYTES + self._bytes_max + (1 << 20))
        self._body.size = kbak.HEADER_BYTES

    def covering(self, segment: ForeignSegment, tally: Tallied) -> ForeignSegment:
        """The last segment, which also covers everything that was read after its last record."""
        skipped = tally.skipped.pop_before(tally.end)
        details = {
            **segment.details,
            "covered_end_offset": max(tally.end, segment.end_offset) - 1,
            "control_records_skipped": segment.details["control_records_skipped"] + skipped.control + self._markers,
            "aborted_records_dropped": segment.details["aborted_records_dropped"] + skipped.aborted,
        }
        return replace(segment, details=details)

    def _tracking_headers(self, records: pa.RecordBatch) -> list[tuple[bytes, pa.Array]]:
        added = [
            (b"x-original-offset", little_endian(records.column("offset"))),
            (b"x-original-timestamp", little_endian(records.column("timestamp_ms"))),
        ]
        cluster = self._options.extra.get("source_cluster")
        if cluster is not None:
            added.append((b"x-source-cluster", constant(cluster.encode(), records.num_rows)))
        return added

    def _fill(self, buffers: RecordBuffers) -> None:
        lengths = self._lengths(buffers)
        ends = np.cumsum(lengths)
        first = 0
        while first < buffers.rows:
            before = int(ends[first - 1]) if first else 0
            room = self._bytes_max - (self._body.size - kbak.HEADER_BYTES)
            enough = int(np.searchsorted(ends, before + room)) + 1
            last = min(enough, first + self._records_max - self._extent.rows, buffers.rows)
            at = self._body.size
            self._body.reserve(at + int(ends[last - 1]) - before)
            kernels.write(buffers, lengths, first, last, self._body.data, at)
            self._extent.add(buffers, first, last)
            first = last
            if self._body.size - kbak.HEADER_BYTES >= self._bytes_max or self._extent.rows >= self._records_max:
                self._flush()

    def _lengths(self, buffers: RecordBuffers) -> NDArray[np.int64]:
        lengths: NDArray[Any] = np.empty(buffers.rows, np.int64)
        row = kernels.measure(buffers, lengths)
        if row < 0 and int(lengths.max()) > kbak.RECORD_BYTES_MAX:
            row = int(lengths.argmax())
        if row >= 0:
            raise RefusedError(
                f"a record of {self._where} does not fit the layout",
                offset=int(buffers.offset[row]),
                hint="it has room for 65535 headers a record, 65535 bytes a header key, 1 GiB a record",
            )
        return lengths

    def _flush(self) -> None:
        body = self._body.data[kbak.HEADER_BYTES : self._body.size]
        extent = self._extent
        header = kbak.KbakHeader(
            codec=self._codec, records=extent.rows, start_offset=extent.first_offset, end_offset=extent.last_offset
        )
        pieces = [kbak.encode_header(header), *kbak.compress(self._codec, body, self._level)]
        crc = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
        stored = b"".join((*pieces, crc.to_bytes(4, "little"), kbak.MAGIC_END))
        name = kbak.segment_name(self._where, header.start_offset, self._codec)
        self._storage.replace(self._backup.path(name), stored)
        self._written.append(self._described(name, body.size, stored))
        self._covered_from = header.end_offset + 1
        self._body.size, self._markers, self._extent = kbak.HEADER_BYTES, 0, SegmentExtent()

    def _described(self, name: str, body_bytes: int, stored: bytes) -> ForeignSegment:
        extent = self._extent
        begin = extent.first_offset if self._tally is None else min(self._tally.start, extent.first_offset)
        skipped = Counts(control=0, aborted=0)
        if self._tally is not None:
            skipped = self._tally.skipped.pop_before(extent.last_offset + 1)
        details = {
            "key": f"{self._backup.backup_id}/{name}",
            "start_timestamp": extent.first_timestamp,
            "end_timestamp": extent.last_timestamp,
            "uncompressed_size": body_bytes,
            "sha256": hashlib.sha256(stored).hexdigest(),
            "uploaded_at": int(time.time() * 1000),
            "covered_start_offset": begin if self._covered_from is None else self._covered_from,
            "covered_end_offset": extent.last_offset,
            "control_records_skipped": self._markers + skipped.control,
            "aborted_records_dropped": skipped.aborted,
        }
        return extent.segment(self._where, self._backup.path(name), len(stored), details)
