"""Batches that stand for nothing: many records with null key and null value, to bring an empty partition to an offset.

A million of them take about 0.7 MB on the wire and in the target's log, until `DeleteRecords` removes them. Loads no
numba: such records are so regular that numpy writes them column by column.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.compression import compress
from maxbrod.batch.headers import HEADER_DTYPE, NEWEST_MAGIC
from maxbrod.batch.joining import join
from maxbrod.model import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNT_MAX: Final = 1 << 20
"""Offset deltas of three bytes. More in one batch would make a broker unpack tens of megabytes to check it."""

_FIXED_BYTES: Final = 5  # attributes, timestamp delta, two lengths, header count: a byte each
_NULL: Final = 0x01  # the length -1, zig-zag
_LEVEL: Final = 5  # of 1 to 19 it gives the fewest bytes for this pattern (706 KB a million), in 30 ms


def filler_batch(count: int, *, timestamp_ms: int = -1) -> NDArray[np.uint8]:
    """One batch of `count` records, 1 to COUNT_MAX, zstd. The caller's to patch; without a producer yet."""
    if not 1 <= count <= COUNT_MAX:
        raise ValueError(f"a filler batch has 1 to {COUNT_MAX} records, not {count}")
    headers = np.zeros(1, HEADER_DTYPE)
    headers["magic"] = NEWEST_MAGIC
    headers["attributes"] = int(Codec.ZSTD)
    headers["last_offset_delta"] = count - 1
    headers["base_timestamp"] = headers["max_timestamp"] = timestamp_ms
    for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        headers[name] = -1
    headers["count"] = count
    return join(headers, [_packed(count)])


@lru_cache(maxsize=2)  # nearly all are of one size, and the last of what is left
def _packed(count: int) -> bytes:
    records = np.concatenate([_records(first, end) for first, end in _same_width(count)])
    return compress(Codec.ZSTD, records, _LEVEL)


def _same_width(count: int) -> list[tuple[int, int]]:
    """Records whose offset deltas take one byte, two, three: each seven bits, one of all is the sign."""
    return [(first, min(end, count)) for first, end in pairwise((0, 1 << 6, 1 << 13, 1 << 20)) if first < count]


def _records(first: int, end: int) -> NDArray[np.uint8]:
    """Records from `first` up to `end`, all of one size."""
    delta = np.arange(first, end, dtype=np.int64) << 1
    width = max(1, -(-int(delta[-1]).bit_length() // 7))
    rows = np.zeros((end - first, 1 + _FIXED_BYTES + width), np.uint8)
    rows[:, 0] = (_FIXED_BYTES + width) << 1
    for byte in range(width):
        more = 0x80 if byte < width - 1 else 0
        rows[:, 3 + byte] = (delta >> (7 * byte)) & 0x7F | more
    rows[:, 3 + width] = rows[:, 4 + width] = _NULL
    return rows.reshape(-1)
