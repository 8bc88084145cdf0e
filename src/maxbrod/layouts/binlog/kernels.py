"""The compiled loops over binlog records: big-endian, fixed width, no checksum, so everything is compared.

The rules of `maxbrod.batch.kernels` hold: no position is read before it is compared with its end, every loop moves
forward, nothing is allocated.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from maxbrod.batch.kernels import copy_bytes
from maxbrod.layouts.kernels import length_of

OK: Final = 0
CUT: Final = 1
BAD_TYPE: Final = 2
BAD_LENGTH: Final = 3
BAD_OFFSET: Final = 4

MEANING: Final = {
    CUT: "a record exceeds its end",
    BAD_TYPE: "a record has an unknown timestamp type",
    BAD_LENGTH: "a record's length disagrees with what is in it",
    BAD_OFFSET: "a record has an unexpected offset",
}

NO_TIMESTAMP: Final = -1
CREATE_WITHOUT: Final = -2
"""The tool's own timestamp type for create time without a timestamp."""


@njit(cache=True, nogil=True, inline="always")
def _int32(data, at):
    raw = np.int64(data[at]) << 24 | np.int64(data[at + 1]) << 16 | np.int64(data[at + 2]) << 8 | np.int64(data[at + 3])
    return raw - (np.int64(1) << 32) if raw >= np.int64(1) << 31 else raw


@njit(cache=True, nogil=True, inline="always")
def _int64(data, at):
    return _int32(data, at) << 32 | (_int32(data, at + 4) & np.int64(0xFFFFFFFF))


@njit(cache=True, nogil=True, inline="always")
def _part(data, at, end):
    """The length of a part whose length field is at `at`: -2 if it is impossible, -3 if the part is cut."""
    if end - at < 4:
        return np.int64(-3)
    size = _int32(data, at)
    if size < -1:
        return np.int64(-2)
    return np.int64(-3) if size > end - at - 4 else size


@njit(cache=True, nogil=True)
def walk(data, at, start, stop, offset):
    """Find whole records one after another from `at` on, at most as many as `start` has room for.

    Returns (status, records, position after the last one). CUT: the next record needs more bytes.
    """
    end = np.int64(len(data))
    row = 0
    while row < len(start) and at < end:
        begin = at
        if end - at < 12:
            return CUT, row, begin
        offset[row] = _int64(data, at)
        kind = _int32(data, at + 8)
        if offset[row] < 0:
            return BAD_OFFSET, row, begin
        if kind < -2 or kind > 1:
            return BAD_TYPE, row, begin
        at += 12 if kind < 0 else 20
        for _ in range(2):
            size = _part(data, at, end)
            if size < -1:
                return (BAD_LENGTH if size == -2 else CUT), row, begin
            at += 4 + max(size, np.int64(0))
        if end - at < 4:
            return CUT, row, begin
        headers = _int32(data, at)
        at += 4
        if headers < 0:
            return BAD_LENGTH, row, begin
        for _ in range(headers):
            size = _part(data, at, end)
            if size < 0:
                return (CUT if size == -3 else BAD_LENGTH), row, begin
            at += 4 + size
            size = _part(data, at, end)
            if size < -1:
                return (BAD_LENGTH if size == -2 else CUT), row, begin
            at += 4 + max(size, np.int64(0))
        start[row] = begin
        stop[row] = at
        row += 1
    return OK, row, at


@njit(cache=True, nogil=True)
def scan(data, start, stop, room):
    """Find every part of the records in [start, stop) and check all of it. Returns (status, row)."""
    offset, timestamp, timestamp_type = room.offset, room.timestamp_ms, room.timestamp_type
    (key_at, key_length), (value_at, value_length) = room.key, room.value
    header_at, header_ends = room.header_at, room.header_ends
    header_total = np.int64(0)
    for row in range(len(start)):
        at = start[row]
        end = stop[row]
        if at < 0 or end > len(data) or end - at < 12:
            return CUT, row
        if _int64(data, at) != offset[row] or offset[row] < 0:
            return BAD_OFFSET, row
        kind = _int32(data, at + 8)
        if kind < CREATE_WITHOUT or kind > 1:
            return BAD_TYPE, row
        at += 12
        timestamp[row] = NO_TIMESTAMP
        timestamp_type[row] = 0 if kind == CREATE_WITHOUT else kind
        if kind >= 0:
            if end - at < 8:
                return CUT, row
            timestamp[row] = _int64(data, at)
            at += 8
        size = _part(data, at, end)
        if size < -1:
            return BAD_LENGTH, row
        key_at[row] = at + 4
        key_length[row] = size
        at += 4 + max(size, np.int64(0))
        size = _part(data, at, end)
        if size < -1:
            return BAD_LENGTH, row
        value_at[row] = at + 4
        value_length[row] = size
        at += 4 + max(size, np.int64(0))
        if end - at < 4:
            return CUT, row
        headers = _int32(data, at)
        at += 4
        # A header has two lengths at least, so this bounds the loop by the bytes that exist.
        if headers < 0 or headers > (end - at) // 8:
            return BAD_LENGTH, row
        header_at[row] = at
        for _ in range(headers):
            size = _part(data, at, end)
            if size < 0:
                return BAD_LENGTH, row
            at += 4 + size
            size = _part(data, at, end)
            if size < -1:
                return BAD_LENGTH, row
            at += 4 + max(size, np.int64(0))
        if at != end:
            return BAD_LENGTH, row
        header_total += headers
        header_ends[row] = header_total
    return OK, len(start)


@njit(cache=True, nogil=True)
def scan_headers(data, header_at, header_ends, key, value):
    """Find the parts of the headers. Reads only what `scan` has checked."""
    key_at, key_length = key
    value_at, value_length = value
    header = np.int64(0)
    for row in range(len(header_at)):
        at = header_at[row]
        while header < header_ends[row]:
            size = _int32(data, at)
            key_at[header] = at + 4
            key_length[header] = size
            at += 4 + size
            size = _int32(data, at)
            value_at[header] = at + 4
            value_length[header] = size
            at += 4 + max(size, np.int64(0))
            header += 1


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
    """The timestamp type. The tool has its own type for Kafka's create time of -1, which means no timestamp."""
    if timestamp_type[row] == 0 and timestamp[row] == NO_TIMESTAMP:
        return np.int64(CREATE_WITHOUT)
    return np.int64(timestamp_type[row])


@njit(cache=True, nogil=True)
def measure(records, size):
    """The size of each record in bytes."""
    timestamp, timestamp_type = records.timestamp, records.kind
    key_ends, _, key_valid = records.key
    value_ends, _, value_valid = records.value
    header_ends, header_key_ends = records.header_ends, records.header_key.ends
    header_value_ends, _, header_value_valid = records.header_value
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
def write(records, first, last, out):
    """Write the records [first, last). `out` has the size that `measure` has computed."""
    offset, timestamp, timestamp_type = records.offset, records.timestamp, records.kind
    key_ends, key_data, key_valid = records.key
    value_ends, value_data, value_valid = records.value
    header_ends, (header_key_ends, header_key_data, header_key_valid) = records.header_ends, records.header_key
    header_value_ends, header_value_data, header_value_valid = records.header_value
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
