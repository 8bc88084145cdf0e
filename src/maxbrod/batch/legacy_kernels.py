"""The compiled loops over messages of magic 0 and 1. The same rules as `kernels`: checked, bounded, no allocation."""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from maxbrod.batch.kernels import BAD_LENGTH, INT32_MAX, OK, TOO_LARGE

BAD_MAGIC: Final = 10
BAD_CRC: Final = 11
NESTED: Final = 12
BAD_OFFSET: Final = 13

MEANING: Final = {
    BAD_MAGIC: "a message inside a compressed one has another magic than its wrapper",
    BAD_CRC: "a message inside a compressed one has a wrong checksum",
    NESTED: "a compressed message contains a compressed one",
    BAD_OFFSET: "the offsets inside a compressed message do not rise",
}


def _crc_tables() -> np.ndarray:
    """Tables for CRC-32 as in zlib, eight bytes at a time."""
    tables = np.zeros((8, 256), np.uint32)
    register = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        register = np.where(register & 1, (register >> 1) ^ np.uint32(0xEDB88320), register >> 1)
    tables[0] = register
    for slice_ in range(1, 8):
        tables[slice_] = tables[0][tables[slice_ - 1] & 0xFF] ^ (tables[slice_ - 1] >> 8)
    return tables


_CRC: Final = _crc_tables()


@njit(cache=True, nogil=True)
def _crc32(data, at, end):
    crc = np.uint32(0xFFFFFFFF)
    while end - at >= 8:
        low = crc ^ (
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
        crc = (
            _CRC[7, low & np.uint32(0xFF)]
            ^ _CRC[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
            ^ _CRC[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
            ^ _CRC[4, low >> np.uint32(24)]
            ^ _CRC[3, data[at + 4]]
            ^ _CRC[2, data[at + 5]]
            ^ _CRC[1, data[at + 6]]
            ^ _CRC[0, data[at + 7]]
        )
        at += 8
    while at < end:
        crc = _CRC[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@njit(cache=True, nogil=True, inline="always")
def _int32(data, at):
    raw = (
        np.uint32(data[at]) << np.uint32(24)
        | np.uint32(data[at + 1]) << np.uint32(16)
        | np.uint32(data[at + 2]) << np.uint32(8)
        | np.uint32(data[at + 3])
    )
    return np.int64(np.int32(raw))


@njit(cache=True, nogil=True, inline="always")
def _int64(data, at):
    return (_int32(data, at) << np.int64(32)) | (_int32(data, at + 4) & np.int64(0xFFFFFFFF))


@njit(cache=True, nogil=True, inline="always")
def _overhead(magic):
    """An entry with null key and null value."""
    return 34 if magic == 1 else 26


@njit(cache=True, nogil=True)
def walk(data, at, bytes_max, position, size, offset, magic, attributes, timestamp, crc, computed):
    """Read the headers of the whole messages from `at` on, as far as the arrays go.

    Returns the number and where it stopped: at a batch of magic 2, a cut message, or an impossible one.
    """
    row = 0
    end = np.int64(len(data))
    while row < len(position) and end - at >= 18:
        length = _int32(data, at + 8)
        kind = data[at + 16]
        if kind > 1 or length + 12 < _overhead(kind) or length + 12 > bytes_max or length + 12 > end - at:
            break
        position[row] = at
        size[row] = length + 12
        offset[row] = _int64(data, at)
        crc[row] = np.uint32(_int32(data, at + 12) & np.int64(0xFFFFFFFF))
        magic[row] = kind
        attributes[row] = data[at + 17]
        timestamp[row] = _int64(data, at + 18) if kind == 1 else np.int64(-1)
        computed[row] = _crc32(data, at + 16, at + 12 + length)
        at += 12 + length
        row += 1
    return row, at


@njit(cache=True, nogil=True)
def count_inner(data, at, end, magic, check_crc):
    """Check the messages inside a wrapper. Returns (status, count, offset field of the last one)."""
    count = 0
    last = np.int64(-1)
    while at < end:
        if end - at < 26:
            return BAD_LENGTH, count, last
        length = _int32(data, at + 8)
        if data[at + 16] != magic:
            return BAD_MAGIC, count, last
        if length + 12 < _overhead(magic) or length + 12 > end - at:
            return BAD_LENGTH, count, last
        if data[at + 17] & 0x07:
            return NESTED, count, last
        stored = np.uint32(_int32(data, at + 12) & np.int64(0xFFFFFFFF))
        if check_crc and stored != _crc32(data, at + 16, at + 12 + length):
            return BAD_CRC, count, last
        offset = _int64(data, at)
        if offset <= last:
            return BAD_OFFSET, count, last
        last = offset
        at += 12 + length
        count += 1
    return OK, count, last


@njit(cache=True, nogil=True)
def scan(
    buffer,
    arena,
    in_arena,
    starts,
    base_offset,
    fixed_timestamp,
    wrapper_timestamp,
    count,
    offset,
    timestamp,
    timestamp_type,
    key_at,
    key_ends,
    key_valid,
    value_at,
    value_ends,
    value_valid,
):
    """Locate every field of every message of each run, whose messages have been counted.

    Returns (status, run, message of the run).
    """
    row = 0
    key_total = np.int64(0)
    value_total = np.int64(0)
    key_ends[0] = 0
    value_ends[0] = 0
    for run in range(len(starts)):
        data = arena if in_arena[run] else buffer
        at = starts[run]
        for message in range(count[run]):
            stop = at + 12 + _int32(data, at + 8)
            magic = data[at + 16]
            offset[row] = base_offset[run] + _int64(data, at)
            if fixed_timestamp[run]:
                timestamp[row] = wrapper_timestamp[run]
                timestamp_type[row] = 1
            elif magic == 1:
                timestamp[row] = _int64(data, at + 18)
                timestamp_type[row] = 1 if data[at + 17] & 0x08 else 0
            else:
                timestamp[row] = -1
                timestamp_type[row] = -1
            at += 26 if magic == 1 else 18
            size = _int32(data, at)
            at += 4
            if size < -1 or size > stop - at - 4:
                return BAD_LENGTH, run, message
            key_at[row] = at
            key_valid[row] = size >= 0
            key_total += max(size, np.int64(0))
            at += max(size, np.int64(0))
            size = _int32(data, at)
            at += 4
            if size < -1 or max(size, np.int64(0)) != stop - at:
                return BAD_LENGTH, run, message
            value_at[row] = at
            value_valid[row] = size >= 0
            value_total += max(size, np.int64(0))
            at = stop
            if max(key_total, value_total) > INT32_MAX:
                return TOO_LARGE, run, message
            key_ends[row + 1] = key_total
            value_ends[row + 1] = value_total
            row += 1
    return OK, 0, 0
