"""The compiled loops over the records of one batch's block, which begins with its first record: varints, and bytes;
and those of the checksum, CRC-64.

The rules of `maxbrod.batch.kernels` hold: no position is read before it is compared with its end, every loop moves
forward, nothing is allocated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from maxbrod.batch.kernels import copy_bytes, read_varint, sealed, varint_bytes, write_varint
from maxbrod.layouts.kernels import length_of

if TYPE_CHECKING:
    from collections.abc import Buffer

OK: Final = 0
BAD_VARINT: Final = 1
BAD_LENGTH: Final = 2
BAD_OFFSET: Final = 3
BAD_HEADER: Final = 4
BAD_COUNT: Final = 5
NO_ROOM: Final = 6

MEANING: Final = {
    BAD_VARINT: "a number of a record runs over the end of its batch",
    BAD_LENGTH: "a key or value has an impossible length",
    BAD_OFFSET: "a record's offset does not rise, or is not its batch's first",
    BAD_HEADER: "a record's header has an impossible length",
    BAD_COUNT: "the batch holds more bytes than its records",
}

_INT64_MAX: Final = (1 << 63) - 1
_POLYNOMIAL: Final = 0xC96C5795D7870F42  # ECMA-182, bits reversed
_SLICES: Final = 16
_ALL: Final = (1 << 64) - 1


@njit(cache=True, nogil=True)
def scan(data, base_offset, count, room):
    """Find every part of every record of a block, and check all of it.

    Returns (status, record).
    """
    offset, timestamp = room.offset, room.timestamp_ms
    (key_at, key_length), (value_at, value_length) = room.key, room.value
    header_at, header_ends = room.header_at, room.header_ends
    end = np.int64(len(data))
    headers = np.int64(0)
    before = np.int64(-1)
    at = np.int64(0)
    for row in range(count):
        delta, at = read_varint(data, at, end)
        if at < 0:
            return BAD_VARINT, row
        if delta <= before or delta > _INT64_MAX - base_offset or (row == 0 and delta != 0):
            return BAD_OFFSET, row
        before = delta
        # A batch has no base timestamp: deltas count from 0.
        time, at = read_varint(data, at, end)
        if at < 0:
            return BAD_VARINT, row

        size, at = read_varint(data, at, end)
        if at < 0:
            return BAD_VARINT, row
        if size < -1 or size > end - at:
            return BAD_LENGTH, row
        key_at[row] = at
        key_length[row] = size
        at += max(size, np.int64(0))

        size, at = read_varint(data, at, end)
        if at < 0:
            return BAD_VARINT, row
        if size < -1 or size > end - at:
            return BAD_LENGTH, row
        value_at[row] = at
        value_length[row] = size
        at += max(size, np.int64(0))

        entries, at = read_varint(data, at, end)
        if at < 0:
            return BAD_VARINT, row
        # A header has two bytes at least, so this bounds the loop by the bytes that exist.
        if entries < 0 or entries > (end - at) // 2:
            return BAD_HEADER, row
        header_at[row] = at
        for _ in range(entries):
            size, at = read_varint(data, at, end)
            if at < 0:
                return BAD_VARINT, row
            if size < 0 or size > end - at:
                return BAD_HEADER, row
            size, at = read_varint(data, at + size, end)
            if at < 0:
                return BAD_VARINT, row
            if size < -1 or size > end - at:
                return BAD_HEADER, row
            at += max(size, np.int64(0))
        headers += entries
        offset[row] = base_offset + delta
        timestamp[row] = time
        header_ends[row] = headers
    if at != end:
        return BAD_COUNT, count
    return OK, count


@njit(cache=True, nogil=True)
def scan_headers(data, header_at, header_ends, key, value):
    """Find the parts of the headers. Reads only what `scan` has checked."""
    key_at, key_length = key
    value_at, value_length = value
    header = np.int64(0)
    end = np.int64(len(data))
    for row in range(len(header_at)):
        at = header_at[row]
        while header < header_ends[row]:
            size, at = read_varint(data, at, end)
            key_at[header] = at
            key_length[header] = size
            size, at = read_varint(data, at + size, end)
            value_at[header] = at
            value_length[header] = size
            at += max(size, np.int64(0))
            header += 1


@njit(cache=True, nogil=True)
def fill(records, row, last, first_offset, bytes_max, out, at):
    """Add the rows from `row` up to `last` to a block, up to the one that makes it as large as `bytes_max`.

    Returns (status, row, at, bytes needed): the first row that was not added, and the end of the block. NO_ROOM: that
    row needs this number of bytes after `at`.
    """
    offset, timestamp = records.offset, records.timestamp
    key_ends, key_data, key_valid = records.key
    value_ends, value_data, value_valid = records.value
    header_ends, (header_key_ends, header_key_data, _) = records.header_ends, records.header_key
    header_value_ends, header_value_data, header_value_valid = records.header_value
    while row < last and at < bytes_max:
        key = length_of(key_ends, key_valid, row)
        value = length_of(value_ends, value_valid, row)
        headers = np.int64(header_ends[row + 1]) - np.int64(header_ends[row])
        size = varint_bytes(offset[row] - first_offset) + varint_bytes(timestamp[row])
        size += varint_bytes(key) + max(key, np.int64(0)) + varint_bytes(value) + max(value, np.int64(0))
        size += varint_bytes(headers)
        for header in range(header_ends[row], header_ends[row + 1]):
            part = np.int64(header_key_ends[header + 1]) - np.int64(header_key_ends[header])
            size += varint_bytes(part) + part
            part = length_of(header_value_ends, header_value_valid, header)
            size += varint_bytes(part) + max(part, np.int64(0))
        if size > len(out) - at:
            return NO_ROOM, row, at, size

        at = write_varint(out, at, offset[row] - first_offset)
        at = write_varint(out, at, timestamp[row])
        at = write_varint(out, at, key)
        if key > 0:
            copy_bytes(out, at, key_data, np.int64(key_ends[row]), key)
            at += key
        at = write_varint(out, at, value)
        if value > 0:
            copy_bytes(out, at, value_data, np.int64(value_ends[row]), value)
            at += value
        at = write_varint(out, at, headers)
        for header in range(header_ends[row], header_ends[row + 1]):
            part = np.int64(header_key_ends[header + 1]) - np.int64(header_key_ends[header])
            at = write_varint(out, at, part)
            copy_bytes(out, at, header_key_data, np.int64(header_key_ends[header]), part)
            at += part
            part = length_of(header_value_ends, header_value_valid, header)
            at = write_varint(out, at, part)
            if part > 0:
                copy_bytes(out, at, header_value_data, np.int64(header_value_ends[header]), part)
                at += part
        row += 1
    return OK, row, at, np.int64(0)


def _after_a_zero_byte(register: NDArray[np.uint64]) -> NDArray[np.uint64]:
    one = np.uint64(1)
    for _ in range(8):
        register = np.where(register & one, (register >> one) ^ np.uint64(_POLYNOMIAL), register >> one)
    return register


def _tables() -> NDArray[np.uint64]:
    """Table k is the effect of a byte on the register if k more bytes follow."""
    tables = np.zeros((_SLICES, 256), np.uint64)
    tables[0] = _after_a_zero_byte(np.arange(256, dtype=np.uint64))
    for row in range(1, _SLICES):
        before = tables[row - 1]
        tables[row] = tables[0][(before & np.uint64(0xFF)).astype(np.int64)] ^ (before >> np.uint64(8))
    return tables


_CRC: Final = _tables()


@njit(cache=True, nogil=True, inline="always")
def _byte(word, at):
    return np.int64((word >> np.uint64(8 * at)) & np.uint64(0xFF))


@njit(cache=True, nogil=True, inline="always")
def _word(data, at):
    word = np.uint64(data[at])
    for i in range(1, 8):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@njit(cache=True, nogil=True)
def crc64_update(register, data):
    """CRC-64, 16 bytes at a time: the register after these bytes, complemented neither before nor after."""
    at = np.int64(0)
    end = np.int64(len(data))
    while end - at >= 16:
        low = _word(data, at) ^ register
        high = _word(data, at + 8)
        register = (
            _CRC[15, _byte(low, 0)]
            ^ _CRC[14, _byte(low, 1)]
            ^ _CRC[13, _byte(low, 2)]
            ^ _CRC[12, _byte(low, 3)]
            ^ _CRC[11, _byte(low, 4)]
            ^ _CRC[10, _byte(low, 5)]
            ^ _CRC[9, _byte(low, 6)]
            ^ _CRC[8, _byte(low, 7)]
            ^ _CRC[7, _byte(high, 0)]
            ^ _CRC[6, _byte(high, 1)]
            ^ _CRC[5, _byte(high, 2)]
            ^ _CRC[4, _byte(high, 3)]
            ^ _CRC[3, _byte(high, 4)]
            ^ _CRC[2, _byte(high, 5)]
            ^ _CRC[1, _byte(high, 6)]
            ^ _CRC[0, _byte(high, 7)]
        )
        at += 16
    while at < end:
        register = _CRC[0, _byte(register, 0) ^ np.int64(data[at])] ^ (register >> np.uint64(8))
        at += 1
    return register


@njit(cache=True, nogil=True)
def _times(matrix, vector):
    total = np.uint64(0)
    row = 0
    while vector:
        if vector & np.uint64(1):
            total ^= matrix[row]
        vector >>= np.uint64(1)
        row += 1
    return total


@njit(cache=True, nogil=True)
def crc64_advance(register, zeros, step, squared):
    """The register after `zeros` zero bytes. `step` is the matrix of one zero byte; both are overwritten."""
    while zeros:
        if zeros & 1:
            register = _times(step, register)
        zeros >>= 1
        for row in range(64):
            squared[row] = _times(step, step[row])
        step[:] = squared
    return register


def crc64(data: Buffer, value: int = 0) -> int:
    """The CRC-64/XZ of `data`; with `value`, of bytes that have this checksum followed by `data`, like `zlib.crc32`.

    `crc64(b"123456789")` is 0x995DC9BBDF1939FA.
    """
    return int(crc64_update(np.uint64(value ^ _ALL), sealed(np.frombuffer(data, np.uint8)))) ^ _ALL


def combine(first: int, second: int, second_bytes: int) -> int:
    """The checksum of two parts that follow each other, from their own ones. The second is not read again."""
    # Complements cancel out: the one at the end of the first part equals the one at the beginning of the second.
    one_zero_byte = _after_a_zero_byte(np.uint64(1) << np.arange(64, dtype=np.uint64))
    return int(crc64_advance(np.uint64(first), second_bytes, one_zero_byte, np.empty(64, np.uint64))) ^ second
