"""The compiled loop over bytes in base64, of which segments of the first versions are made."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def decode_base64(ends, data, letters, out_ends, out):
    """Values of text into values of bytes; `letters` gives each letter's six bits, or 64 for what is none.

    Returns the row that is not in base64, or -1.
    """
    to = np.int64(0)
    for row in range(len(ends) - 1):
        at = np.int64(ends[row])
        end = np.int64(ends[row + 1])
        if (end - at) % 4:
            return row
        while at < end:
            missing = np.int64(0)
            if end - at == 4:
                missing = np.int64(data[at + 3] == 61) + np.int64(data[at + 2] == 61 and data[at + 3] == 61)
            bits = np.int64(0)
            for i in range(4):
                six = np.int64(0) if i >= 4 - missing else np.int64(letters[data[at + i]])
                if six > 63:
                    return row
                bits = bits << 6 | six
            for i in range(3 - missing):
                out[to] = np.uint8(bits >> (16 - 8 * i))
                to += 1
            at += 4
        out_ends[row + 1] = to
    return -1
