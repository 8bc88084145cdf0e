"""Encodes Arrow columns as record batches of magic 2, of bounded size, with any codec.

The inverse of `decode`. A batch header holds producer, epochs, flags and timestamp type once for all its records, so a
batch ends where one of them changes. Records without a timestamp type (magic 0) become create-time records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch import kernels
from maxbrod.batch.columns import BinaryColumn, binary_column, conform, headers_columns, number_column
from maxbrod.batch.compression import compress
from maxbrod.batch.headers import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER_BYTES,
    HEADER_DTYPE,
    NEWEST_MAGIC,
)
from maxbrod.batch.patch import join, pairs, seal
from maxbrod.model import Codec, TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_BYTES_MAX: Final = 1_000_000
"""Before compression. Slightly below the default `message.max.bytes` of a broker (1,048,588)."""

_SAME_IN_A_BATCH: Final = (
    "timestamp_type",
    "leader_epoch",
    "producer_id",
    "producer_epoch",
    "transactional",
    "control",
)


def encode(
    records: pa.RecordBatch,
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    starts: NDArray[np.int64] | None = None,
) -> NDArray[np.uint8]:
    """Encode all of `records` as consecutive batches.

    No batch is larger than `batch_bytes_max` before compression, except one that holds a single larger record.
    `starts` lists rows where a batch must begin, so that boundaries can be kept.
    """
    records = conform(records)
    if not records.num_rows:
        return np.empty(0, np.uint8)
    columns = {
        name: kernels.sealed(number_column(records.column(name)))
        for name in (*_SAME_IN_A_BATCH, "offset", "timestamp_ms", "sequence")
    }
    key, value = (_sealed(binary_column(records.column(name))) for name in ("key", "value"))
    ends, header_key, header_value = headers_columns(records.column("headers"))
    headers = (kernels.sealed(ends), _sealed(header_key), _sealed(header_value))
    parts = (columns["offset"], columns["timestamp_ms"], key, value, *headers)
    begins = np.empty(records.num_rows, np.bool_)
    lengths = np.empty(records.num_rows, np.int64)
    total = kernels.measure(*parts, _forced(columns, starts), batch_bytes_max - HEADER_BYTES, begins, lengths)
    rows = np.append(np.flatnonzero(begins), records.num_rows)
    batch_headers = _header_rows(columns, rows, codec)
    gap = HEADER_BYTES if codec is Codec.NONE else 0
    raw = np.empty(int(total) + gap * (len(rows) - 1), np.uint8)
    positions = np.empty(len(rows), np.int64)
    kernels.write(*parts, lengths, rows, gap, raw, positions)
    if codec is Codec.NONE:
        return seal(raw, positions, batch_headers)
    return join(batch_headers, [compress(codec, raw[start:end], level) for start, end in pairs(positions)])


def _forced(columns: dict[str, NDArray[Any]], starts: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """Rows that cannot share a batch with the row before."""
    forced = np.zeros(len(columns["offset"]), np.bool_)
    for name in _SAME_IN_A_BATCH:
        forced[1:] |= columns[name][1:] != columns[name][:-1]
    forced[1:] |= columns["control"][1:]
    # A batch has one log-append time.
    append = columns["timestamp_type"] == TimestampType.LOG_APPEND
    forced[1:] |= append[1:] & (columns["timestamp_ms"][1:] != columns["timestamp_ms"][:-1])
    # Within a batch, sequence numbers rise with the offsets, and wrap from 2**31 - 1 to 0.
    sequence, offset = columns["sequence"].astype(np.int64), columns["offset"]
    expected = (sequence[:-1] + (offset[1:] - offset[:-1])) & 0x7FFFFFFF
    without = sequence < 0
    forced[1:] |= np.where(without[1:] | without[:-1], sequence[1:] != sequence[:-1], sequence[1:] != expected)
    if starts is not None:
        forced[starts] = True
    return forced


def _header_rows(columns: dict[str, NDArray[Any]], rows: NDArray[np.int64], codec: Codec) -> NDArray[Any]:
    first, last = rows[:-1], rows[1:] - 1
    headers = np.zeros(len(first), HEADER_DTYPE)
    headers["magic"] = NEWEST_MAGIC
    headers["base_offset"] = columns["offset"][first]
    headers["last_offset_delta"] = columns["offset"][last] - columns["offset"][first]
    headers["attributes"] = (
        int(codec)
        | np.where(columns["timestamp_type"][first] == TimestampType.LOG_APPEND, ATTRIBUTE_LOG_APPEND, 0)
        | np.where(columns["transactional"][first], ATTRIBUTE_TRANSACTIONAL, 0)
        | np.where(columns["control"][first], ATTRIBUTE_CONTROL, 0)
    )
    headers["base_timestamp"] = columns["timestamp_ms"][first]
    headers["max_timestamp"] = np.maximum.reduceat(columns["timestamp_ms"], first)
    headers["base_sequence"] = columns["sequence"][first]
    headers["count"] = np.diff(rows)
    for name in ("leader_epoch", "producer_id", "producer_epoch"):
        headers[name] = columns[name][first]
    return headers


def _sealed(column: BinaryColumn) -> BinaryColumn:
    return BinaryColumn(*(kernels.sealed(part) for part in column))
