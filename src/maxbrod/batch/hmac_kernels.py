"""HMAC-SHA256 of every key of a binary column, compiled: a ledger of erasures has keys in no other form.

A call of `hashlib` for each record would take longer than decoding it. The state of SHA-256 after the padded salt is
the same for all keys, so that a short key costs two rounds of compression.
"""

from __future__ import annotations

import numpy as np
from numba import njit

BLOCK_BYTES = 64
# fmt: off
_K = np.array(
    [
        0x428A2F98, 0x71374491, 0xB5C0FBCF, 0xE9B5DBA5, 0x3956C25B, 0x59F111F1, 0x923F82A4, 0xAB1C5ED5,
        0xD807AA98, 0x12835B01, 0x243185BE, 0x550C7DC3, 0x72BE5D74, 0x80DEB1FE, 0x9BDC06A7, 0xC19BF174,
        0xE49B69C1, 0xEFBE4786, 0x0FC19DC6, 0x240CA1CC, 0x2DE92C6F, 0x4A7484AA, 0x5CB0A9DC, 0x76F988DA,
        0x983E5152, 0xA831C66D, 0xB00327C8, 0xBF597FC7, 0xC6E00BF3, 0xD5A79147, 0x06CA6351, 0x14292967,
        0x27B70A85, 0x2E1B2138, 0x4D2C6DFC, 0x53380D13, 0x650A7354, 0x766A0ABB, 0x81C2C92E, 0x92722C85,
        0xA2BFE8A1, 0xA81A664B, 0xC24B8B70, 0xC76C51A3, 0xD192E819, 0xD6990624, 0xF40E3585, 0x106AA070,
        0x19A4C116, 0x1E376C08, 0x2748774C, 0x34B0BCB5, 0x391C0CB3, 0x4ED8AA4A, 0x5B9CCA4F, 0x682E6FF3,
        0x748F82EE, 0x78A5636F, 0x84C87814, 0x8CC70208, 0x90BEFFFA, 0xA4506CEB, 0xBEF9A3F7, 0xC67178F2,
    ],
    np.uint32,
)
# fmt: on
INITIAL = np.array(
    [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19], np.uint32
)


@njit(cache=True, nogil=True, inline="always")
def _turned(word, right):
    return (word >> np.uint32(right)) | (word << np.uint32(32 - right))


@njit(cache=True, nogil=True)
def compress(state, block, schedule):
    """Mix one block of 64 bytes into the state. `schedule` is room for 64 words."""
    for number in range(16):
        at = 4 * number
        schedule[number] = (
            np.uint32(block[at]) << np.uint32(24)
            | np.uint32(block[at + 1]) << np.uint32(16)
            | np.uint32(block[at + 2]) << np.uint32(8)
            | np.uint32(block[at + 3])
        )
    for number in range(16, 64):
        early, late = schedule[number - 15], schedule[number - 2]
        low = _turned(early, 7) ^ _turned(early, 18) ^ (early >> np.uint32(3))
        high = _turned(late, 17) ^ _turned(late, 19) ^ (late >> np.uint32(10))
        schedule[number] = np.uint32(np.uint32(schedule[number - 16] + low) + np.uint32(schedule[number - 7] + high))
    a, b, c, d = state[0], state[1], state[2], state[3]
    e, f, g, h = state[4], state[5], state[6], state[7]
    for number in range(64):
        mixed = _turned(e, 6) ^ _turned(e, 11) ^ _turned(e, 25)
        chosen = (e & f) ^ (~e & g)
        first = np.uint32(np.uint32(h + mixed) + np.uint32(np.uint32(chosen + _K[number]) + schedule[number]))
        mixed = _turned(a, 2) ^ _turned(a, 13) ^ _turned(a, 22)
        second = np.uint32(mixed + ((a & b) ^ (a & c) ^ (b & c)))
        h, g, f, e = g, f, e, np.uint32(d + first)
        d, c, b, a = c, b, a, np.uint32(first + second)
    state[0] += a
    state[1] += b
    state[2] += c
    state[3] += d
    state[4] += e
    state[5] += f
    state[6] += g
    state[7] += h


@njit(cache=True, nogil=True)
def _finish(state, data, at, end, before, block, schedule):
    """Mix in the bytes [at, end) of `data` and the padding; `before` bytes were mixed in already."""
    bits = np.uint64(before + (end - at)) * np.uint64(8)
    while end - at >= 64:
        compress(state, data[at : at + 64], schedule)
        at += 64
    left = end - at
    block[:left] = data[at:end]
    block[left] = 0x80
    block[left + 1 :] = 0
    if left >= 56:
        compress(state, block, schedule)
        block[:] = 0
    for place in range(8):
        block[63 - place] = np.uint8((bits >> np.uint64(8 * place)) & np.uint64(0xFF))
    compress(state, block, schedule)


@njit(cache=True, nogil=True)
def hash_keys(ends, data, valid, inner, outer, out):
    """Write the HMAC of each key into a row of `out`, as eight words. Rows of null keys are unchanged."""
    block = np.empty(64, np.uint8)
    schedule = np.empty(64, np.uint32)
    state = np.empty(8, np.uint32)
    digest = np.empty(32, np.uint8)
    for row in range(len(valid)):
        if not valid[row]:
            continue
        state[:] = inner
        _finish(state, data, np.int64(ends[row]), np.int64(ends[row + 1]), 64, block, schedule)
        for number in range(8):
            word = state[number]
            for place in range(4):
                digest[4 * number + place] = np.uint8((word >> np.uint32(24 - 8 * place)) & np.uint32(0xFF))
        state[:] = outer
        _finish(state, digest, 0, 32, 64, block, schedule)
        out[row] = state
