"""The compiled loops that write binlog records."""

from __future__ import annotations

import numpy as np
from numba import njit

from maxbrod.batch.kernels import copy_bytes
from maxbrod.layouts.binlog.kernels import CREATE_WITHOUT, NO_TIMESTAMP
from maxbrod.layouts.kernels import length_of


@njit(cache=True, nogil=True, inline="always")
def _put32(out, at, value):
    raw = np.uint64(value)
    out[at] = np.uint8(raw >> np.uint64(24) & np.uint64(0xFF))
    out[at + 1] = np.uint8(raw >> np.uint64(16) & np.uint64(0xFF))
    out[at + 2] = np.uint8(raw >> np.uint64(8) & np.uint64(0xFF))
    out[at + 3] = np.uint8(raw & np.uint64(0xFF))
    return at + 4


@njit(cache=True, nogil=True, inline="always")
def _put64(out, at, value):
    return _put32(out, _put32(out, at, value >> 32), value)


@njit(cache=True, nogil=True, inline="always")
def _kind(timestamp_type, timestamp, row):
    """Kafka's create time without a timestamp is -1, for which the tool has a type of its own."""
    if timestamp_type[row] == 0 and timestamp[row] == NO_TIMESTAMP:
        return np.int64(CREATE_WITHOUT)
    return np.int64(timestamp_type[row])


@njit(cache=True, nogil=True)
def measure(
    timestamp,
    timestamp_type,
    key_ends,
    key_valid,
    value_ends,
    value_valid,
    header_ends,
    header_key_ends,
    header_value_ends,
    header_value_valid,
    size,
):
    """How many bytes each record takes."""
    for row in range(len(size)):
        total = np.int64(24 if _kind(timestamp_type, timestamp, row) < 0 else 32)
        total += max(length_of(key_ends, key_valid, row), np.int64(0))
        total += max(length_of(value_ends, value_valid, row), np.int64(0))
        for header in range(header_ends[row], header_ends[row + 1]):
            total += 8 + np.int64(header_key_ends[header + 1]) - np.int64(header_key_ends[header])
            total += max(length_of(header_value_ends, header_value_valid, header), np.int64(0))
        size[row] = total


@njit(cache=True, nogil=True, inline="always")
def _put_part(out, at, ends, data, valid, row):
    size = length_of(ends, valid, row)
    at = _put32(out, at, size)
    if size > 0:
        copy_bytes(out, at, data, np.int64(ends[row]), size)
        at += size
    return at


@njit(cache=True, nogil=True)
def write(
    offset,
    timestamp,
    timestamp_type,
    key_ends,
    key_data,
    key_valid,
    value_ends,
    value_data,
    value_valid,
    header_ends,
    header_key_ends,
    header_key_data,
    header_key_valid,
    header_value_ends,
    header_value_data,
    header_value_valid,
    first,
    last,
    out,
):
    """Write the records [first, last); `out` is as long as `measure` said."""
    at = np.int64(0)
    for row in range(first, last):
        at = _put64(out, at, offset[row])
        kind = _kind(timestamp_type, timestamp, row)
        at = _put32(out, at, kind)
        if kind >= 0:
            at = _put64(out, at, timestamp[row])
        at = _put_part(out, at, key_ends, key_data, key_valid, row)
        at = _put_part(out, at, value_ends, value_data, value_valid, row)
        at = _put32(out, at, np.int64(header_ends[row + 1]) - np.int64(header_ends[row]))
        for header in range(header_ends[row], header_ends[row + 1]):
            at = _put_part(out, at, header_key_ends, header_key_data, header_key_valid, header)
            at = _put_part(out, at, header_value_ends, header_value_data, header_value_valid, header)
    return at
