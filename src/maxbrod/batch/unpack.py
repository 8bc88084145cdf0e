"""Decompresses the records of batches, and says where each batch's records stand after that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.compression import DECOMPRESSED_BYTES_MAX, Arena, codec_of
from maxbrod.batch.headers import HEADER_BYTES, BatchHeaders
from maxbrod.errors import CorruptDataError
from maxbrod.model import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RATIO: Final = 8  # first guess of what compressed bytes unpack to


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The records of batch i are `start[i]` to `end[i]` of the arena, or of the buffer itself."""

    arena: Arena
    in_arena: NDArray[np.bool_]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def source(self, data: NDArray[np.uint8], batch: int) -> NDArray[np.uint8]:
        return self.arena.data if self.in_arena[batch] else data


def unpack(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    arena: Arena | None = None,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Unpacked:
    """Decompress into `arena` what is compressed; batches that are not stay in the buffer, uncopied."""
    codecs = headers.codec
    in_arena = codecs != Codec.NONE
    start = headers.position + HEADER_BYTES
    end = headers.position + headers.size
    arena = arena or Arena(_RATIO * int((end - start)[in_arena].sum()))
    for row in np.flatnonzero(in_arena).tolist():
        packed = data[start[row] : end[row]]
        start[row] = arena.size
        # An emptied batch keeps its codec bits but has no bytes to unpack.
        if packed.size:
            append(arena, headers, row, packed, bytes_max)
        end[row] = arena.size
    return Unpacked(arena, in_arena, start, end)


def append(arena: Arena, headers: BatchHeaders, row: int, packed: NDArray[Any], bytes_max: int) -> None:
    """Decompress one batch; an error names it."""
    offset, position = int(headers["base_offset"][row]), int(headers.position[row])
    codec = codec_of(int(headers["attributes"][row]), offset=offset, position=position)
    try:
        arena.append(codec, packed, bytes_max=bytes_max)
    except CorruptDataError as error:
        error.offset, error.position = offset, position
        raise
