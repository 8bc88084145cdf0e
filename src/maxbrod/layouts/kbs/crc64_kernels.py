"""CRC-64 as compiled loops: of bytes, 16 at a time, and of two parts that follow each other."""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

POLYNOMIAL: Final = 0xC96C5795D7870F42  # ECMA-182, bits reversed
_SLICES: Final = 16


def _tables() -> np.ndarray:
    """Table k is the effect of a byte on the register if k more bytes follow."""
    tables = np.zeros((_SLICES, 256), np.uint64)
    register = np.arange(256, dtype=np.uint64)
    one = np.uint64(1)
    for _ in range(8):
        register = np.where(register & one, (register >> one) ^ np.uint64(POLYNOMIAL), register >> one)
    tables[0] = register
    for each in range(1, _SLICES):
        before = tables[each - 1]
        tables[each] = tables[0][(before & np.uint64(0xFF)).astype(np.int64)] ^ (before >> np.uint64(8))
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
def update(register, data):
    """The register after these bytes, complemented neither before nor after."""
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
def advance(register, zeros, step, squared):
    """The register after `zeros` zero bytes. `step` is the matrix of one zero byte; both are overwritten."""
    while zeros:
        if zeros & 1:
            register = _times(step, register)
        zeros >>= 1
        for row in range(64):
            squared[row] = _times(step, step[row])
        step[:] = squared
    return register
