"""The lowest timestamp of each batch. No header has it: a record may be older than the first of its batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch import kernels
from maxbrod.batch.compression import DECOMPRESSED_BYTES_MAX, Arena
from maxbrod.batch.headers import HEADER_BYTES, NEWEST_MAGIC, BatchHeaders, as_bytes_array
from maxbrod.batch.unpack import append, compressed_rows
from maxbrod.errors import CorruptDataError
from maxbrod.model import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GROUP_BYTES: Final = 1 << 20
"""The bytes that are unpacked before they are scanned: they are then still in the core's cache."""


def lowest_timestamps(
    buffer: Any,  # noqa: ANN401 - anything with a buffer
    headers: BatchHeaders,
    *,
    look_into_all: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The lowest timestamp of each batch of magic 2, and whether it is known.

    It is unknown if there are no records, or if they cannot be unpacked or their lengths do not add up. The header of a
    batch with log-append time has it, so such a batch is unpacked only if `look_into_all`.
    """
    data = as_bytes_array(buffer)
    lowest = headers["max_timestamp"].astype(np.int64)
    sound = (headers["count"] > 0) & (headers["magic"] == NEWEST_MAGIC)
    rows = np.flatnonzero(sound if look_into_all else sound & ~headers.log_append)
    done = 0
    arena = Arena(2 * _GROUP_BYTES)
    while done < len(rows):
        taken = headers.take(rows[done:])
        in_arena, start, end, readable = _unpack(data, taken, arena)
        group = slice(done, done + len(start))
        found = lowest[rows[group]]
        kernels.lowest_timestamps(
            kernels.sealed(data),
            kernels.sealed(arena.data),
            in_arena,
            start,
            end,
            taken["base_timestamp"][: len(start)],
            taken["count"][: len(start)],
            found,
            readable,
        )
        lowest[rows[group]], sound[rows[group]] = found, readable
        done += len(start)
    return np.where(headers.log_append, headers["max_timestamp"], lowest), sound


def _unpack(
    data: NDArray[np.uint8], headers: BatchHeaders, arena: Arena
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Unpack one group of the batches: whether each is in the arena, its start and end, and whether it is readable."""
    arena.size = 0
    in_arena = headers.codec != Codec.NONE
    start, end = headers.position + HEADER_BYTES, headers.position + headers.size
    readable = np.ones(len(headers), np.bool_)
    taken = len(headers)
    for row, block in compressed_rows(data, headers, bytes_max=DECOMPRESSED_BYTES_MAX):
        if arena.size > _GROUP_BYTES:
            taken = row
            break
        before = arena.size
        if block is None or not arena.append_block(block):
            try:
                append(arena, headers, row, data[start[row] : end[row]], DECOMPRESSED_BYTES_MAX)
            except CorruptDataError:
                readable[row] = False
        start[row], end[row] = before, arena.size
    return in_arena[:taken], start[:taken], end[:taken], readable[:taken]
