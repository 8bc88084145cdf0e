"""The lowest timestamp in each batch, which no header tells: a record may be older than its batch's first."""

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
"""So much is unpacked before it is looked at: it is then still in the core's cache."""


def lowest_timestamps(
    buffer: Any,  # noqa: ANN401 - anything with a buffer
    headers: BatchHeaders,
    *,
    look_into_all: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For each batch of magic 2 the lowest timestamp of its records, and whether that could be found.

    It cannot where there are no records, or where they cannot be unpacked or do not add up. With log-append time the
    header tells, so that such a batch is looked into only if `look_into_all`.
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
    """As many of the batches as make a group: in the arena or not, from where to where, and whether readable."""
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
