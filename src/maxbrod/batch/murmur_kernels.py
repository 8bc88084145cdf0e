"""The compiled loop that hashes keys as Kafka's Java client does. The rules of `kernels` hold here too."""

from __future__ import annotations

import numpy as np
from numba import njit

_SEED = np.uint32(0x9747B28C)
_MULTIPLIER = np.uint32(0x5BD1E995)


@njit(cache=True, nogil=True, inline="always")
def _word(data, at):
    """Four bytes, the lowest first."""
    return (
        np.uint32(data[at])
        | np.uint32(data[at + 1]) << np.uint32(8)
        | np.uint32(data[at + 2]) << np.uint32(16)
        | np.uint32(data[at + 3]) << np.uint32(24)
    )


@njit(cache=True, nogil=True, inline="always")
def _murmur2(data, at, end):
    value = _SEED ^ np.uint32(end - at)
    while end - at >= 4:
        word = np.uint32(_word(data, at) * _MULTIPLIER)
        word = np.uint32((word ^ (word >> np.uint32(24))) * _MULTIPLIER)
        value = np.uint32(np.uint32(value * _MULTIPLIER) ^ word)
        at += 4
    left = end - at
    if left == 3:
        value ^= np.uint32(data[at + 2]) << np.uint32(16)
    if left >= 2:
        value ^= np.uint32(data[at + 1]) << np.uint32(8)
    if left >= 1:
        value = np.uint32((value ^ np.uint32(data[at])) * _MULTIPLIER)
    value = np.uint32((value ^ (value >> np.uint32(13))) * _MULTIPLIER)
    return value ^ (value >> np.uint32(15))


@njit(cache=True, nogil=True)
def partitions(ends, data, valid, count, out):
    """The partition of every key that is not null; `out` keeps what it has for the others."""
    for row in range(len(valid)):
        if valid[row]:
            # As Java: the sign bit is cut off, not taken for the absolute value.
            positive = np.int64(_murmur2(data, np.int64(ends[row]), np.int64(ends[row + 1]))) & np.int64(0x7FFFFFFF)
            out[row] = np.int32(positive % count)
