"""Decompresses the records of batches and locates them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.compression import DECOMPRESSED_BYTES_MAX, LZ4_BLOCK_BYTES, Arena, find_lz4_blocks
from maxbrod.batch.headers import HEADER_BYTES, BatchHeaders
from maxbrod.errors import CorruptDataError
from maxbrod.model import Codec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

ENOUGH_BYTES: Final = 32 << 20
"""Small batches may unpack to a gigabyte each: with this much unpacked, the rest waits for the next call."""

_GROUP_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The records of batch i are at `start[i]` to `end[i]` of the arena or of the buffer."""

    arena: Arena
    in_arena: NDArray[np.bool_]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)


def portions(
    data: NDArray[np.uint8], headers: BatchHeaders, arena: Arena, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[tuple[BatchHeaders, Unpacked]]:
    """Yield all batches, a few at a time, unpacked into the same arena, which overwrites the previous ones.

    A portion fits a core's cache, unless its batches unpack to far more than their size.
    """
    group_of = (np.cumsum(headers.size) - headers.size) // _GROUP_BYTES
    edges = [0, *(np.flatnonzero(np.diff(group_of)) + 1).tolist(), len(headers)]
    for start, end in pairwise(edges):
        done = start
        while done < end:
            arena.size = 0
            rest = headers.take(slice(done, end))
            unpacked = unpack(data, rest, arena, bytes_max=bytes_max)
            yield rest.take(slice(len(unpacked))), unpacked
            done += len(unpacked)


def unpack(
    data: NDArray[np.uint8], headers: BatchHeaders, arena: Arena, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Unpacked:
    """Decompress compressed batches into `arena`. Uncompressed ones stay in the buffer, uncopied.

    Stops before a compressed batch when the arena holds ENOUGH_BYTES, so it may unpack fewer than all.
    """
    in_arena = headers.codec != Codec.NONE
    start = headers.position + HEADER_BYTES
    end = headers.position + headers.size
    for row, block in compressed_rows(data, headers, bytes_max=bytes_max):
        if arena.size > ENOUGH_BYTES:
            return Unpacked(arena, in_arena[:row], start[:row], end[:row])
        before = arena.size
        # An emptied batch keeps its codec bits but has no bytes to unpack.
        if (block is None or not arena.append_block(block)) and start[row] < end[row]:
            append(arena, headers, row, data[start[row] : end[row]], bytes_max)
        start[row], end[row] = before, arena.size
    return Unpacked(arena, in_arena, start, end)


def compressed_rows(
    data: NDArray[np.uint8], headers: BatchHeaders, *, bytes_max: int
) -> Iterator[tuple[int, memoryview | None]]:
    """The rows of compressed batches, each with its lz4 block if the frame is one block and nothing else."""
    rows = np.flatnonzero(headers.codec != Codec.NONE)
    first = last = np.full(len(rows), -1, np.int64)
    if bytes_max >= LZ4_BLOCK_BYTES and (headers.codec == Codec.LZ4).any():
        first, last = find_lz4_blocks(
            data, headers.position[rows] + HEADER_BYTES, (headers.position + headers.size)[rows]
        )
        first = np.where(headers.codec[rows] == Codec.LZ4, first, -1)
    view = memoryview(data)
    for row, at, stop in zip(rows.tolist(), first.tolist(), last.tolist(), strict=True):
        yield row, view[at:stop] if at >= 0 else None


def append(arena: Arena, headers: BatchHeaders, row: int, packed: NDArray[Any], bytes_max: int) -> None:
    """Decompress one batch. An error names it."""
    codec = headers.codec_at(row)
    try:
        arena.append(codec, packed, bytes_max=bytes_max)
    except CorruptDataError as error:
        error.offset, error.position = int(headers["base_offset"][row]), int(headers.position[row])
        raise
