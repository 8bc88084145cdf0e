"""The compiled loops that layouts of other tools share. The rules of `maxbrod.batch.kernels` hold here, too."""

from __future__ import annotations

import numpy as np
from numba import njit

from maxbrod.batch.kernels import copy_bytes


@njit(cache=True, nogil=True)
def gather(data, part_at, part_ends, out):
    """Bring one part of every record (the keys, or the values) together."""
    for row in range(len(part_at)):
        to = np.int64(part_ends[row])
        copy_bytes(out, to, data, part_at[row], np.int64(part_ends[row + 1]) - to)


@njit(cache=True, nogil=True, inline="always")
def length_of(ends, valid, row):
    return np.int64(ends[row + 1]) - np.int64(ends[row]) if valid[row] else np.int64(-1)
