"""The compiled loops over the records of a segment: fixed widths, little-endian; and over base64 of the first versions.

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
BAD_LENGTH: Final = 1
BAD_HEADER: Final = 2
BAD_OFFSET: Final = 3

MEANING: Final = {
    BAD_LENGTH: "a record's length disagrees with what is in it",
    BAD_HEADER: "a record's header has an impossible length",
    BAD_OFFSET: "a record's offset is negative or does not rise",
}

_UINT16_MAX: Final = (1 << 16) - 1
_LENGTH_MIN: Final = 26  # time and offset of 8 bytes, two lengths of 4, a header count of 2


@njit(cache=True, nogil=True, inline="always")
def _u16(data, at):
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@njit(cache=True, nogil=True, inline="always")
def _u32(data, at):
    low = np.int64(data[at]) | np.int64(data[at + 1]) << 8
    return low | np.int64(data[at + 2]) << 16 | np.int64(data[at + 3]) << 24


@njit(cache=True, nogil=True, inline="always")
def _i32(data, at):
    return (_u32(data, at) ^ 0x80000000) - 0x80000000


@njit(cache=True, nogil=True, inline="always")
def _i64(data, at):
    return _u32(data, at) | _u32(data, at + 4) << 32


@njit(cache=True, nogil=True, inline="always")
def _put16(out, at, value):
    out[at] = np.uint8(value)
    out[at + 1] = np.uint8(value >> 8)
    return at + 2


@njit(cache=True, nogil=True, inline="always")
def _put32(out, at, value):
    out[at] = np.uint8(value)
    out[at + 1] = np.uint8(value >> 8)
    out[at + 2] = np.uint8(value >> 16)
    out[at + 3] = np.uint8(value >> 24)
    return at + 4


@njit(cache=True, nogil=True, inline="always")
def _put64(out, at, value):
    return _put32(out, _put32(out, at, value), value >> 32)


@njit(cache=True, nogil=True)
def scan(data, at, end, offset_before, room):
    """Find every part of every whole record in `data[at:end]`, and check all of it.

    Returns (status, rows, position of the first record that is incomplete or wrong).
    """
    offset, timestamp = room.offset, room.timestamp_ms
    (key_at, key_length), (value_at, value_length) = room.key, room.value
    header_at, header_ends = room.header_at, room.header_ends
    rows = 0
    headers = np.int64(0)
    while rows < len(offset) and end - at >= 4:
        begin = at
        length = _u32(data, at)
        if length < _LENGTH_MIN:
            return BAD_LENGTH, rows, begin
        if length > end - at - 4:
            break
        at += 4
        stop = at + length
        time = _i64(data, at)
        number = _i64(data, at + 8)
        if number <= offset_before:
            return BAD_OFFSET, rows, begin
        at += 16

        size = _i32(data, at)
        at += 4
        # What must follow the key: a length of 4 bytes and a count of 2.
        if size < -1 or size > stop - at - 6:
            return BAD_LENGTH, rows, begin
        key_at[rows] = at
        key_length[rows] = size
        at += max(size, np.int64(0))

        size = _i32(data, at)
        at += 4
        if size < -1 or size > stop - at - 2:
            return BAD_LENGTH, rows, begin
        value_at[rows] = at
        value_length[rows] = size
        at += max(size, np.int64(0))

        count = _u16(data, at)
        at += 2
        header_at[rows] = at
        for _ in range(count):
            if stop - at < 2:
                return BAD_HEADER, rows, begin
            size = _u16(data, at)
            at += 2
            if size > stop - at - 4:
                return BAD_HEADER, rows, begin
            at += size
            size = _i32(data, at)
            at += 4
            if size < -1 or size > stop - at:
                return BAD_HEADER, rows, begin
            at += max(size, np.int64(0))
        if at != stop:
            return BAD_LENGTH, rows, begin

        offset_before = number
        headers += count
        offset[rows] = number
        timestamp[rows] = time
        header_ends[rows] = headers
        rows += 1
    return OK, rows, at


@njit(cache=True, nogil=True)
def scan_headers(data, header_at, header_ends, key, value):
    """Find the parts of the headers. Reads only what `scan` has checked."""
    key_at, key_length = key
    value_at, value_length = value
    header = np.int64(0)
    for row in range(len(header_at)):
        at = header_at[row]
        while header < header_ends[row]:
            size = _u16(data, at)
            key_at[header] = at + 2
            key_length[header] = size
            at += 2 + size
            size = _i32(data, at)
            value_at[header] = at + 4
            value_length[header] = size
            at += 4 + max(size, np.int64(0))
            header += 1


@njit(cache=True, nogil=True)
def measure(records, length):
    """The bytes of each record, its length field included. Returns the first row that the format cannot hold, or -1."""
    key_ends, _, key_valid = records.key
    value_ends, _, value_valid = records.value
    header_ends, header_key_ends = records.header_ends, records.header_key.ends
    header_value_ends, _, header_value_valid = records.header_value
    for row in range(len(length)):
        total = np.int64(4 + _LENGTH_MIN)
        total += max(length_of(key_ends, key_valid, row), np.int64(0))
        total += max(length_of(value_ends, value_valid, row), np.int64(0))
        if np.int64(header_ends[row + 1]) - np.int64(header_ends[row]) > _UINT16_MAX:
            return row
        for header in range(header_ends[row], header_ends[row + 1]):
            size = np.int64(header_key_ends[header + 1]) - np.int64(header_key_ends[header])
            if size > _UINT16_MAX:
                return row
            total += 6 + size + max(length_of(header_value_ends, header_value_valid, header), np.int64(0))
        length[row] = total
    return -1


@njit(cache=True, nogil=True)
def write(records, length, first, last, out, at):
    """Write the rows from `first` up to `last`, which `measure` has measured; returns where they end."""
    offset, timestamp = records.offset, records.timestamp
    key_ends, key_data, key_valid = records.key
    value_ends, value_data, value_valid = records.value
    header_ends, (header_key_ends, header_key_data, _) = records.header_ends, records.header_key
    header_value_ends, header_value_data, header_value_valid = records.header_value
    for row in range(first, last):
        at = _put32(out, at, length[row] - 4)
        at = _put64(out, at, timestamp[row])
        at = _put64(out, at, offset[row])
        size = length_of(key_ends, key_valid, row)
        at = _put32(out, at, size)
        if size > 0:
            copy_bytes(out, at, key_data, np.int64(key_ends[row]), size)
            at += size
        size = length_of(value_ends, value_valid, row)
        at = _put32(out, at, size)
        if size > 0:
            copy_bytes(out, at, value_data, np.int64(value_ends[row]), size)
            at += size
        at = _put16(out, at, np.int64(header_ends[row + 1]) - np.int64(header_ends[row]))
        for header in range(header_ends[row], header_ends[row + 1]):
            size = np.int64(header_key_ends[header + 1]) - np.int64(header_key_ends[header])
            at = _put16(out, at, size)
            copy_bytes(out, at, header_key_data, np.int64(header_key_ends[header]), size)
            at += size
            size = length_of(header_value_ends, header_value_valid, header)
            at = _put32(out, at, size)
            if size > 0:
                copy_bytes(out, at, header_value_data, np.int64(header_value_ends[header]), size)
                at += size
    return at


@njit(cache=True, nogil=True)
def decode_base64(ends, data, letters, out_ends, out):
    """Decode values of text into values of bytes. `letters` has the six bits of each letter, 64 for other bytes.

    Returns the row that is not in base64, or -1.
    """
    to = np.int64(0)
    for row in range(len(ends) - 1):
        at = np.int64(ends[row])
        end = np.int64(ends[row + 1])
        if (end - at) % 4:
            return row
        while at < end:
            missing = np.int64(0)
            if end - at == 4:
                missing = np.int64(data[at + 3] == 61) + np.int64(data[at + 2] == 61 and data[at + 3] == 61)
            bits = np.int64(0)
            for i in range(4):
                six = np.int64(0) if i >= 4 - missing else np.int64(letters[data[at + i]])
                if six > 63:
                    return row
                bits = bits << 6 | six
            for i in range(3 - missing):
                out[to] = np.uint8(bits >> (16 - 8 * i))
                to += 1
            at += 4
        out_ends[row + 1] = to
    return -1
