"""Finds, for many batches at once, the frames that are one lz4 block and nothing else: what most producers send.

Such a frame needs no frame decoder, and looking at it by itself takes longer than unpacking it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_BYTES: Final = 64 << 10
"""The most that a block unpacks to."""
# Magic, FLG 0x60 (version 1, independent blocks, no checksums), BD 0x40 (64 KiB blocks), header checksum.
FRAME_START: Final = bytes.fromhex("04224d18604082")
SIZE_BYTES: Final = 4
STORED: Final = 0x80000000
"""Set in a block's size if it is not compressed."""
FRAME_END: Final = bytes(SIZE_BYTES)
_BEFORE: Final = len(FRAME_START) + SIZE_BYTES
_START: Final = np.frombuffer(FRAME_START, np.uint8)


def find_blocks(
    data: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """From where to where the only block of each frame goes; -1 twice where it is not like that."""
    first, last = np.full(len(start), -1, np.int64), np.full(len(start), -1, np.int64)
    rows = np.flatnonzero(end - start > _BEFORE + SIZE_BYTES)
    before = data[start[rows, None] + np.arange(_BEFORE)]
    after = data[end[rows, None] - np.arange(1, SIZE_BYTES + 1)]
    size = np.ascontiguousarray(before[:, len(FRAME_START) :]).view("<u4").reshape(-1).astype(np.int64)
    alone = start[rows] + _BEFORE + size + SIZE_BYTES == end[rows]
    found = (before[:, : len(FRAME_START)] == _START).all(axis=1) & alone & ~after.any(axis=1)
    first[rows[found]], last[rows[found]] = start[rows[found]] + _BEFORE, end[rows[found]] - SIZE_BYTES
    return first, last
