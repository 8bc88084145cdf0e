"""The compiled hash functions: MurmurHash3 of values, headers and whole records, and murmur2 as Kafka's Java client
hashes keys. They allocate nothing and cannot fail.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_MURMUR2_SEED = np.uint32(0x9747B28C)
_MURMUR2_FACTOR = np.uint32(0x5BD1E995)
_C1 = np.uint64(0x87C37B91114253D5)
_C2 = np.uint64(0x4CF5AD432745937F)
_M5A = np.uint64(0x52DCE729)
_M5B = np.uint64(0x38495AB5)
_FIVE = np.uint64(5)
_F1 = np.uint64(0xFF51AFD7ED558CCD)
_F2 = np.uint64(0xC4CEB9FE1A85EC53)
_S33 = np.uint64(33)
_S31 = np.uint64(31)
_S27 = np.uint64(27)
_S64 = np.uint64(64)
_S8 = np.uint64(8)
_S32 = np.uint64(32)
_S61 = np.uint64(61)
_S3 = np.uint64(3)
_ZERO = np.uint64(0)
_LOW = np.uint64(0xFFFFFFFF)
_PRIME = np.uint64((1 << 61) - 1)
# A null differs from every value: its two words are digits of pi, which no hash of a value is built from.
_NULL1 = np.uint64(0x243F6A8885A308D3)
_NULL2 = np.uint64(0x13198A2E03707344)


@njit(cache=True, nogil=True, inline="always")
def _rotated(word, left):
    return (word << left) | (word >> (_S64 - left))


@njit(cache=True, nogil=True, inline="always")
def _finished(word):
    word = (word ^ (word >> _S33)) * _F1
    word = (word ^ (word >> _S33)) * _F2
    return word ^ (word >> _S33)


@njit(cache=True, nogil=True, inline="always")
def _absorbed(first, second, a, b):
    """Mix in one block of 16 bytes, as MurmurHash3 does."""
    first ^= _rotated(a * _C1, _S31) * _C2
    first = (_rotated(first, _S27) + second) * _FIVE + _M5A
    second ^= _rotated(b * _C2, _S33) * _C1
    second = (_rotated(second, _S31) + first) * _FIVE + _M5B
    return first, second


@njit(cache=True, nogil=True, inline="always")
def _ended(first, second, length):
    first ^= length
    second ^= length
    first += second
    second += first
    first = _finished(first)
    second = _finished(second)
    first += second
    second += first
    return first, second


@njit(cache=True, nogil=True, inline="always")
def _word(data, at):
    """Eight bytes, the lowest first; compiled into one load."""
    return (
        np.uint64(data[at])
        | np.uint64(data[at + 1]) << np.uint64(8)
        | np.uint64(data[at + 2]) << np.uint64(16)
        | np.uint64(data[at + 3]) << np.uint64(24)
        | np.uint64(data[at + 4]) << np.uint64(32)
        | np.uint64(data[at + 5]) << np.uint64(40)
        | np.uint64(data[at + 6]) << np.uint64(48)
        | np.uint64(data[at + 7]) << np.uint64(56)
    )


@njit(cache=True, nogil=True, inline="always")
def _some(data, at, end):
    """Fewer than eight bytes, the lowest first."""
    word = _ZERO
    while end > at:
        end -= 1
        word = (word << _S8) | np.uint64(data[end])
    return word


@njit(cache=True, nogil=True)
def hash_values(ends, data, valid, first_out, second_out):
    """MurmurHash3 (x64, 128 bits, seed 0) of every value of a binary column."""
    for row in range(len(valid)):
        if not valid[row]:
            first_out[row] = _NULL1
            second_out[row] = _NULL2
            continue
        at = np.int64(ends[row])
        end = np.int64(ends[row + 1])
        length = np.uint64(end - at)
        first = _ZERO
        second = _ZERO
        while end - at >= 16:
            first, second = _absorbed(first, second, _word(data, at), _word(data, at + 8))
            at += 16
        if end - at > 8:
            second ^= _rotated(_some(data, at + 8, end) * _C2, _S33) * _C1
        if end > at:
            first ^= _rotated(_some(data, at, min(end, at + 8)) * _C1, _S31) * _C2
        first_out[row], second_out[row] = _ended(first, second, length)


@njit(cache=True, nogil=True)
def hash_headers(ends, key_first, key_second, value_first, value_second, first_out, second_out):
    """Hash the headers of each record, from the hashes of their keys and values, in order and with duplicates."""
    for row in range(len(first_out)):
        first = _ZERO
        second = _ZERO
        for entry in range(np.int64(ends[row]), np.int64(ends[row + 1])):
            first, second = _absorbed(first, second, key_first[entry], key_second[entry])
            first, second = _absorbed(first, second, value_first[entry], value_second[entry])
        first_out[row], second_out[row] = _ended(first, second, np.uint64(ends[row + 1] - ends[row]))


@njit(cache=True, nogil=True, inline="always")
def _multiplied(a, b):
    """The product of two numbers in the field of 2**61 - 1."""
    a_high = a >> _S32
    a_low = a & _LOW
    b_high = b >> _S32
    b_low = b & _LOW
    lowest = a_low * b_low
    middle = a_high * b_low + (lowest >> _S32)
    other = a_low * b_high + (middle & _LOW)
    high = a_high * b_high + (middle >> _S32) + (other >> _S32)
    low = (other << _S32) | (lowest & _LOW)
    found = (low & _PRIME) + ((low >> _S61) | (high << _S3))
    found = (found & _PRIME) + (found >> _S61)
    return found - _PRIME if found >= _PRIME else found


@njit(cache=True, nogil=True, inline="always")
def _appended(sum_so_far, base, value):
    value = (value & _PRIME) + (value >> _S61)
    found = _multiplied(sum_so_far, base) + (value - _PRIME if value >= _PRIME else value)
    return found - _PRIME if found >= _PRIME else found


@njit(cache=True, nogil=True)
def fold_records(places, words, used, bases, state):
    """Add records to a digest. `words` has a row for each field, two words a record; `used` says which fields count.

    `state`: two sums of the sequence, two of the set.
    """
    for record in range(len(places)):
        first = _ZERO
        second = _ZERO
        for number in range(len(used)):
            if used[number]:
                first, second = _absorbed(first, second, words[number, 0, record], words[number, 1, record])
        first, second = _ended(first, second, _ZERO)
        state[2] += first
        state[3] += second
        first, second = _absorbed(first, second, np.uint64(places[record]), _ZERO)
        first, second = _ended(first, second, _ZERO)
        state[0] = _appended(state[0], bases[0], first)
        state[1] = _appended(state[1], bases[1], second)


@njit(cache=True, nogil=True, inline="always")
def _word32(data, at):
    """Four bytes, the lowest first."""
    return (
        np.uint32(data[at])
        | np.uint32(data[at + 1]) << np.uint32(8)
        | np.uint32(data[at + 2]) << np.uint32(16)
        | np.uint32(data[at + 3]) << np.uint32(24)
    )


@njit(cache=True, nogil=True, inline="always")
def _murmur2(data, at, end):
    value = _MURMUR2_SEED ^ np.uint32(end - at)
    while end - at >= 4:
        word = np.uint32(_word32(data, at) * _MURMUR2_FACTOR)
        word = np.uint32((word ^ (word >> np.uint32(24))) * _MURMUR2_FACTOR)
        value = np.uint32(np.uint32(value * _MURMUR2_FACTOR) ^ word)
        at += 4
    left = end - at
    if left == 3:
        value ^= np.uint32(data[at + 2]) << np.uint32(16)
    if left >= 2:
        value ^= np.uint32(data[at + 1]) << np.uint32(8)
    if left >= 1:
        value = np.uint32((value ^ np.uint32(data[at])) * _MURMUR2_FACTOR)
    value = np.uint32((value ^ (value >> np.uint32(13))) * _MURMUR2_FACTOR)
    return value ^ (value >> np.uint32(15))


@njit(cache=True, nogil=True)
def partitions(ends, data, valid, count, out):
    """The partition of every key that is not null. For null keys `out` is unchanged."""
    for row in range(len(valid)):
        if valid[row]:
            # As in Java: the sign bit is cleared; it is not the absolute value.
            positive = np.int64(_murmur2(data, np.int64(ends[row]), np.int64(ends[row + 1]))) & np.int64(0x7FFFFFFF)
            out[row] = np.int32(positive % count)
