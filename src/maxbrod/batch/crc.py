"""CRC32C of batches, and how it changes with a few bytes, without reading the rest.

A CRC is linear: crc(a xor d) = crc(a) xor L(d), where L is the CRC register run over d from zero. So when 14
bytes of a batch header change, the new CRC follows from the old one and those 14 bytes alone. That is faster
than a pass over the records, and it keeps the protection of the old checksum: a batch that was corrupt before
is still corrupt afterwards, whereas a freshly computed CRC would hide the damage.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli, bits reversed
_LENGTH_DIGITS: Final = 4  # a batch's length is a positive int32
_ROWS: Final = 512
"""At once, so that what is looked up for them fits a core's cache."""
_BITS: Final = np.arange(32, dtype=np.uint32)


def crc32c(data: NDArray[np.uint8]) -> int:
    """CRC32C of a contiguous array. The C extension accepts neither a memoryview nor a bytearray."""
    value: int = google_crc32c.value(data)
    return value


def crc32c_change(difference: NDArray[np.uint8], zeros_after: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The value to xor into each CRC if `difference` (a row a batch) is xored into bytes `zeros_after` from its end."""
    parts = [
        _change(difference[start : start + _ROWS], zeros_after[start : start + _ROWS])
        for start in range(0, len(difference), _ROWS)
    ]
    return np.concatenate([np.empty(0, np.uint32), *parts])


def _change(difference: NDArray[np.uint8], zeros_after: NDArray[np.int64]) -> NDArray[np.uint32]:
    columns = np.flatnonzero(difference.any(axis=0))
    if not columns.size:  # only bytes before the checksum changed, which it does not cover
        return np.zeros(len(difference), np.uint32)
    table = _column_tables(difference.shape[1])[columns]
    register: NDArray[np.uint32] = np.bitwise_xor.reduce(table[np.arange(columns.size), difference[:, columns]], axis=1)
    for digit in range(_LENGTH_DIGITS):
        values = (zeros_after >> 8 * digit) & 0xFF
        if values.any():
            register = _advanced(_zero_runs(digit)[values], register)
    return register


def _advanced(maps: NDArray[np.uint32], register: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Apply a linear map to each register. A map has the image of each bit."""
    bits = (register[:, None] >> _BITS) & 1
    result: NDArray[np.uint32] = np.bitwise_xor.reduce(maps * bits, axis=1)
    return result


@cache
def _byte_table() -> NDArray[np.uint32]:
    register = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        register = np.where(register & 1, (register >> 1) ^ np.uint32(_POLYNOMIAL), register >> 1)
    return register


@cache
def _column_tables(width: int) -> NDArray[np.uint32]:
    """For each byte of a row and each of its values, the register after the rest of the row, all zeros."""
    step = _byte_table()
    tables = [step]
    for _ in range(width - 1):
        tables.append(step[tables[-1] & 0xFF] ^ (tables[-1] >> 8))
    return np.stack(tables[::-1])


@cache
def _zero_runs(digit: int) -> NDArray[np.uint32]:
    """For each value of a base-256 digit of a length, the linear map "run the register over so many zero bytes"."""
    identity = np.uint32(1) << _BITS
    if digit == 0:
        one = _byte_table()[identity & 0xFF] ^ (identity >> 8)
    else:
        before = _zero_runs(digit - 1)
        one = _composed(before[255], before[1])
    maps = [identity, one]
    while len(maps) < 256:
        maps.append(_composed(one, maps[-1]))
    return np.stack(maps)


def _composed(second: NDArray[np.uint32], first: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return _advanced(second[None, :], first)
