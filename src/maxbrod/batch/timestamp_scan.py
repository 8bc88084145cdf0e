"""Finds the lowest timestamps of batches without compiled code, within a small budget.

Loading numba takes longer than a small backup. Here all batches advance together, one record at each step, by a few
numpy operations over all of them. That is fast for many batches of few records. A `TimestampScan` keeps the budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.compression import Arena, append, compressed_rows
from maxbrod.batch.headers import HEADER_BYTES, BatchHeaders
from maxbrod.errors import MaxbrodError
from maxbrod.model import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOOKED_INTO_BYTES: Final = 16 << 20
"""The limit for a task, in archived bytes. Small runs make archives of many segments; large runs exceed it."""
STEPS: Final = 2048
"""Each takes about 40 microseconds."""
UNPACKED_BYTES: Final = 64 << 20
_WORD_BYTES: Final = 8
_PADDING: Final = bytes(4 * _WORD_BYTES)
_RECORD_BYTES_MIN: Final = 6
_INT64_MAX: Final = 2**63 - 1
_STOPS: Final = np.uint64(0x8080808080808080)
# Groups of 7 bits in bytes become groups of 14, 28 and 56: what to keep, what to move, and how far.
_FOLDS: Final = tuple(
    (np.uint64(keep), np.uint64(move), np.uint64(bits))
    for keep, move, bits in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
_ONE: Final = np.uint64(1)


def look_into(bytes_expected: int) -> TimestampScan | None:
    """A `TimestampScan` for a task that writes about `bytes_expected`; None if that is too much."""
    return TimestampScan() if bytes_expected <= LOOKED_INTO_BYTES else None


class TimestampScan:
    """The remaining budget of one task, and the scan within it."""

    def __init__(self, *, steps: int = STEPS, unpacked_bytes: int = UNPACKED_BYTES) -> None:
        self._steps = steps
        self._room = unpacked_bytes

    def lowest_timestamps(
        self, data: NDArray[np.uint8], headers: BatchHeaders
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The lowest timestamp of each batch of magic 2, and whether it was computed and the batch is sound."""
        lowest, sound = np.zeros(len(headers), np.int64), np.zeros(len(headers), np.bool_)
        steps = int(headers["count"].max(initial=0))
        # All or nothing: a segment's lowest time is unknown if that of one batch is.
        if steps > self._steps or int(headers.size.sum()) > self._room:
            self._steps = 0
            return lowest, sound
        self._steps -= steps
        unpacked = self._unpack(data, headers)
        if unpacked is not None:
            lowest, sound = _walk(*unpacked, headers["base_timestamp"], headers["count"])
        return lowest, sound

    def _unpack(
        self, data: NDArray[np.uint8], headers: BatchHeaders
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]] | None:
        """All records in one buffer, and where those of each batch begin and end. None if they exceed the budget."""
        blocks = dict(compressed_rows(data, headers, bytes_max=max(self._room, 1)))
        arena = Arena(4 * int(headers.size.sum()) + len(_PADDING))
        ends = np.zeros(len(headers) + 1, np.int64)
        for row, (at, size) in enumerate(zip(headers.position.tolist(), headers.size.tolist(), strict=True)):
            block = blocks.get(row)
            try:
                if block is None or not arena.append_block(block):
                    append(arena, headers, row, data[at + HEADER_BYTES : at + size], max(self._room - arena.size, 0))
            except MaxbrodError:
                # Too large or damaged: readers of the records report it.
                self._room = 0
                return None
            ends[row + 1] = arena.size
        self._room -= arena.size
        arena.append(Codec.NONE, np.frombuffer(_PADDING, np.uint8))
        return arena.data[: arena.size], ends[:-1], ends[1:]


def _walk(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    base: NDArray[np.int64],
    count: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Advance every batch by one record at each step. A batch whose lengths do not add up is not sound and stops."""
    words: NDArray[np.uint64] = np.ndarray((data.size - _WORD_BYTES + 1,), "<u8", data, strides=(1,))
    order = np.argsort(-count, kind="stable")
    at, end, base, count = start[order], end[order], base[order], count[order]
    lowest, sound = np.full(len(order), _INT64_MAX), count > 0
    # The batches with more records than steps taken; they are sorted to the front.
    live = np.searchsorted(-count, -np.arange(int(count[0]) if len(count) else 0), side="left")
    for rows in map(slice, live.tolist()):
        length, size = _varints(words[at[rows]])
        inside = at[rows] + size
        fits = (length >= _RECORD_BYTES_MIN) & (length <= end[rows] - inside)
        # After a byte of attributes.
        delta, size = _varints(words[np.where(fits, inside + 1, 0)])
        fits &= size < length
        sound[rows] &= fits
        lowest[rows] = np.minimum(lowest[rows], base[rows] + delta)
        at[rows] = np.where(sound[rows], inside + length, 0)
    sound &= at == end
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return lowest[back], sound[back]


def _varints(word: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The zig-zag numbers at the start of these words, and their sizes. Over 8 bytes, the size exceeds any record."""
    stop = ~word & _STOPS
    below = (stop & (~stop + _ONE)) - _ONE
    raw = word & below & ~_STOPS
    for keep, move, bits in _FOLDS:
        raw = (raw & keep) | ((raw & move) >> bits)
    value = (raw >> _ONE).view(np.int64) ^ -(raw & _ONE).view(np.int64)
    size = np.where(stop == 0, _INT64_MAX >> 1, (np.bitwise_count(below).astype(np.int64) + 1) >> 3)
    return value, size
