"""The compiled loop that finds the lowest timestamp of each batch. The rules of `kernels` hold here too."""

from __future__ import annotations

import numpy as np
from numba import njit

from maxbrod.batch.kernels import read_varint


@njit(cache=True, nogil=True)
def lowest(buffer, arena, in_arena, starts, ends, base_timestamp, count, out, sound):
    """Of each record only its length and its timestamp are read. A batch whose records do not add up is not sound."""
    for batch in range(len(starts)):
        data = arena if in_arena[batch] else buffer
        at = starts[batch]
        end = ends[batch]
        base = base_timestamp[batch]
        best = np.int64(9223372036854775807)
        for _ in range(count[batch]):
            length, at = read_varint(data, at, end)
            if at < 0 or length < 6 or length > end - at:
                at = np.int64(-1)
                break
            delta, after = read_varint(data, at + 1, at + length)
            if after < 0:
                at = np.int64(-1)
                break
            best = min(best, base + delta)
            at += length
        if at != end:
            sound[batch] = False
        else:
            out[batch] = best
