"""The compiled loop over the message indexes of Protobuf values in Confluent's format."""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from maxbrod.batch.kernels import read_varint

LEVELS_MAX: Final = 7
INDEX_MAX: Final = 254


@njit(cache=True, nogil=True)
def read_indexes(data, starts, ends, places):
    """Move each start behind its list of indexes, and write the list as one number: a byte for each index, plus one.

    An empty list means the first message, and so does a list of one zero: both are 0. If there is no valid list, the
    start becomes -1.
    """
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        count, at = read_varint(data, starts[row], ends[row])
        if at < 0 or count < 0 or count > LEVELS_MAX:
            starts[row] = -1
            continue
        place = np.int64(0)
        for level in range(count):
            index, at = read_varint(data, at, ends[row])
            if at < 0 or index < 0 or index > INDEX_MAX:
                at = np.int64(-1)
                break
            place |= (index + 1) << (8 * level)
        if place == 1:
            place = np.int64(0)
        places[row] = place
        starts[row] = at
