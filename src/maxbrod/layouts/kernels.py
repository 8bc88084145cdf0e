"""The compiled loops that layouts of other tools share. The rules of `maxbrod.batch.kernels` hold here, too.

They read only positions that a layout's own kernel has checked, and stay inside the given arrays.

A kernel of a layout takes `RecordBuffers` or `Room` whole, and unpacks the arrays before its loop. Loops over records
share no functions that take arrays or tuples of them: numba counts a reference at each call, by which writing took five
to seventeen times as long (measured with 100,000 records of 100 bytes).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from maxbrod.batch.kernels import INT32_MAX, copy_bytes


@njit(cache=True, nogil=True)
def running_ends(length, ends):
    """Arrow's ends of parts of these lengths (-1: null) from 0 on. Returns their sum, or -1 above Arrow's 2 GiB."""
    total = np.int64(0)
    ends[0] = 0
    for part in range(len(length)):
        if length[part] > 0:
            total += length[part]
        if total > INT32_MAX:
            return np.int64(-1)
        ends[part + 1] = total
    return total


@njit(cache=True, nogil=True)
def gather(data, at, ends, out):
    """Copies the parts that begin at `at` one after another."""
    for part in range(len(at)):
        to = np.int64(ends[part])
        copy_bytes(out, to, data, at[part], np.int64(ends[part + 1]) - to)


@njit(cache=True, nogil=True, inline="always")
def length_of(ends, valid, row):
    return np.int64(ends[row + 1]) - np.int64(ends[row]) if valid[row] else np.int64(-1)
