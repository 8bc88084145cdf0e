"""Records on their way into a layout: checked, filtered, with the tool's headers, as the buffers that kernels read.

Where a segment ends depends on its records alone, not on the Arrow batches that bring them. Writing the same records
again therefore results in the same segments with the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod.batch.columns import (
    HEADER_TYPE,
    BinaryColumn,
    binary_array,
    binary_column,
    conform,
    headers_array,
    headers_columns,
    number_array,
    number_column,
)
from maxbrod.batch.kernels import sealed
from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.foreign import ForeignSegment, Survey, WriteOptions, check_topic
from maxbrod.layouts.manifest import SEGMENT_BYTES_LIMIT, SEGMENT_BYTES_MAX, backup_for, refuse_unknown
from maxbrod.model import TopicPartition
from maxbrod.storage.interface import Storage

_NO_LIMIT: Final = 1 << 62


class RecordBuffers(NamedTuple):
    """The columns of a batch of RECORD_SCHEMA as read-only arrays. Kernels take it as a whole."""

    offset: NDArray[np.int64]
    timestamp: NDArray[np.int64]
    kind: NDArray[np.int8]
    key: BinaryColumn
    value: BinaryColumn
    header_ends: NDArray[np.int32]
    header_key: BinaryColumn
    header_value: BinaryColumn

    @classmethod
    def of(cls, records: pa.RecordBatch) -> RecordBuffers:
        ends, header_key, header_value = headers_columns(records.column("headers"))
        return cls(
            offset=sealed(number_column(records.column("offset"))),
            timestamp=sealed(number_column(records.column("timestamp_ms"))),
            kind=sealed(number_column(records.column("timestamp_type"))),
            key=_sealed(binary_column(records.column("key"))),
            value=_sealed(binary_column(records.column("value"))),
            header_ends=sealed(ends),
            header_key=_sealed(header_key),
            header_value=_sealed(header_value),
        )

    @property
    def rows(self) -> int:
        return len(self.offset)


def _sealed(column: BinaryColumn) -> BinaryColumn:
    return BinaryColumn(*(sealed(part) for part in column))


def consumable(batches: Iterable[pa.RecordBatch], position: int) -> Iterator[pa.RecordBatch]:
    """The records of `batches` that a consumer would see from `position` on, as batches that are not empty.

    Transaction markers, and records that are archived already, are left out. RefusedError: offsets do not rise.
    """
    last = -1
    for batch in batches:
        records = conform(batch)
        offset = number_column(records.column("offset"))
        wrong = np.flatnonzero(np.diff(offset, prepend=np.int64(last)) <= 0)
        if wrong.size:
            row = int(wrong[0])
            raise RefusedError(
                f"a record follows offset {int(offset[row - 1]) if row else last}, and offsets must rise",
                offset=int(offset[row]),
                hint="give the records of one partition in the order of their offsets, each once",
            )
        if offset.size:
            last = int(offset[-1])
        keep = (offset >= position) & ~number_column(records.column("control"))
        if not keep.all():
            records = records.filter(number_array(keep))
        if records.num_rows:
            yield records


def with_headers(records: pa.RecordBatch, added: Sequence[tuple[bytes, pa.Array]]) -> pa.RecordBatch:
    """`records` with an additional header for each pair of a name and its values, after the existing headers.

    Tools add such headers to record where a record comes from.
    """
    if not added or not records.num_rows:
        return records
    headers = records.column("headers")
    own = np.diff(np.frombuffer(headers.buffers()[1], np.int32)[headers.offset : headers.offset + len(headers) + 1])
    ends = np.zeros(records.num_rows + 1, np.int32)
    np.cumsum(own + len(added), out=ends[1:])
    entries = pa.concat_arrays(
        [headers.flatten(), *(_entries(name, values, records.num_rows) for name, values in added)]
    )
    rows = number_array(_order(own, ends, len(added)))
    reordered = entries.take(rows)
    column = headers_array(ends, reordered.field(0), reordered.field(1))
    return records.set_column(records.schema.get_field_index("headers"), records.schema.field("headers"), column)


def little_endian(values: pa.Array) -> pa.Array:
    """Each integer of a column as its 8 bytes."""
    numbers = np.ascontiguousarray(number_column(values), "<i8")
    return _even(numbers.view(np.uint8), len(numbers), 8)


def decimal(values: pa.Array) -> pa.Array:
    """Each integer of a column as text."""
    return pc.cast(pc.cast(values, pa.string()), pa.binary())


def constant(value: bytes, rows: int) -> pa.Array:
    return _even(np.tile(np.frombuffer(value, np.uint8), rows), rows, len(value))


def _entries(name: bytes, values: pa.Array, rows: int) -> pa.Array:
    return pa.StructArray.from_arrays([constant(name, rows), values], fields=list(HEADER_TYPE))


def _even(data: NDArray[np.uint8], rows: int, size: int) -> pa.Array:
    return binary_array(np.arange(rows + 1, dtype=np.int32) * np.int32(size), data, None)


def _order(own: NDArray[np.int32], ends: NDArray[np.int32], added: int) -> NDArray[np.int64]:
    """For each entry of the new column its row in: all own entries, all first added ones, all second ones, …"""
    order = np.empty(int(ends[-1]), np.int64)
    is_own = np.ones(len(order), np.bool_)
    for number in range(added):
        at = ends[1:] - added + number
        order[at] = int(own.sum()) + number * len(own) + np.arange(len(own))
        is_own[at] = False
    order[is_own] = np.arange(int(own.sum()))
    return order


@dataclass(slots=True, kw_only=True)
class Rotation:
    """The size of the current segment, which ends before the next record once it exceeds its maximum.

    `bytes` includes what precedes the first record.
    """

    bytes_max: int
    records_max: int | None
    bytes_fresh: int
    bytes: int = 0
    records: int = 0

    def __post_init__(self) -> None:
        self.bytes = self.bytes_fresh

    def pieces(self, sizes: NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
        """Rows [first, last) that go into one segment, by the sizes of records, and whether they begin a new one."""
        ends = np.cumsum(sizes)
        row, done = 0, 0
        while row < len(sizes):
            full = self.bytes > self.bytes_max or (self.records_max is not None and self.records >= self.records_max)
            begins = full or not self.records
            if begins:
                self.bytes, self.records = self.bytes_fresh, 0
            fits = int(np.searchsorted(ends, done + self.bytes_max - self.bytes, side="right")) + 1
            room = _NO_LIMIT if self.records_max is None else self.records_max - self.records
            last = min(max(fits, row + 1), row + room, len(sizes))
            self.bytes += int(ends[last - 1]) - done
            self.records += last - row
            yield row, last, begins
            row, done = last, int(ends[last - 1])


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

    def segment(self, where: TopicPartition, path: str, size: int, details: Mapping[str, Any]) -> ForeignSegment:
        """Describe the segment, which is stored as an object of this path and size."""
        return ForeignSegment(
            where=where,
            path=path,
            base_offset=self.first_offset,
            end_offset=self.last_offset + 1,
            records=self.rows,
            bytes=size,
            min_timestamp=self.min_timestamp,
            max_timestamp=self.max_timestamp,
            details=details,
        )


class TreeWriter:
    """Fills segments up to their encoded size. A layout measures records, encodes them and puts segments."""

    def __init__(self, storage: Storage, where: TopicPartition, rotation: Rotation) -> None:
        self._storage, self._where, self._rotation = storage, where, rotation
        self._extent = SegmentExtent()
        self._written: list[ForeignSegment] = []

    def write(self, records: Iterable[pa.RecordBatch], position: int) -> list[ForeignSegment]:
        for batch in consumable(records, position):
            buffers = RecordBuffers.of(batch)
            sizes = self._measure(buffers)
            for first, last, begins in self._rotation.pieces(sizes):
                if begins:
                    self._finish()
                self._fill(buffers, first, sizes[first:last])
                self._extent.add(buffers, first, last)
        self._finish()
        return self._written

    def _finish(self) -> None:
        if self._extent.rows:
            self._written.append(self._put())
            self._extent = SegmentExtent()

    def _measure(self, buffers: RecordBuffers) -> NDArray[np.int64]:
        """Return the encoded size of each record."""
        raise NotImplementedError

    def _fill(self, buffers: RecordBuffers, first: int, sizes: NDArray[np.int64]) -> None:
        """Encode records of these sizes, from the row `first` on, into the current segment."""
        raise NotImplementedError

    def _put(self) -> ForeignSegment:
        """Store the current segment, and begin the next one."""
        raise NotImplementedError


class BackupWriter:
    """Writes the segments of a backup of kbak or kbs. A layout encodes records (`_fill`) and segments (`_flush`)."""

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
