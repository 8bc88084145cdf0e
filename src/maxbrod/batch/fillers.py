"""Batches of empty records that advance the end of a log: a million records with null key and value take 0.8 MB.

Bytes only. The records of a batch differ only in their offset delta, so they are written as columns of bytes, one
block for each length of the delta's varint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.compression import compress
from maxbrod.batch.headers import HEADER_DTYPE, NEWEST_MAGIC
from maxbrod.batch.patch import join
from maxbrod.model import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILLER_RECORDS_MAX: Final = 1_000_000
"""Slightly more would exceed the default message.max.bytes of a broker."""
_NULL: Final = 1  # a length of -1, as a varint
_VARINT_BYTES_MAX: Final = 3  # of an offset delta below a million


def filler(count: int, *, timestamp_ms: int) -> NDArray[np.uint8]:
    """One batch of `count` empty records with this timestamp and offsets from 0."""
    if not 1 <= count <= FILLER_RECORDS_MAX:
        raise ValueError(f"a filler has 1 to {FILLER_RECORDS_MAX} records, not {count}")
    header = _header(base_timestamp=timestamp_ms, max_timestamp=timestamp_ms)
    header["attributes"] = int(Codec.ZSTD)
    header["last_offset_delta"], header["count"] = count - 1, count
    return join(header, [compress(Codec.ZSTD, _records(count))])


def emptied(offset: int, *, leader_epoch: int, last_offset: int | None = None) -> NDArray[np.uint8]:
    """A batch without a record, as compaction leaves it. It preserves the leader epoch at that offset.

    It covers one offset, or all up to `last_offset`.
    """
    delta = 0 if last_offset is None else last_offset - offset
    return join(_header(base_offset=offset, leader_epoch=leader_epoch, last_offset_delta=delta), [b""])


def _header(**fields: int) -> NDArray[Any]:
    header = np.zeros(1, HEADER_DTYPE)
    header["magic"] = NEWEST_MAGIC
    none = ("leader_epoch", "base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence")
    for name, value in {**dict.fromkeys(none, -1), **fields}.items():
        header[name] = value
    return header


def _records(count: int) -> NDArray[np.uint8]:
    blocks = []
    first = 0
    for size in range(1, _VARINT_BYTES_MAX + 1):
        end = min(count, 1 << (7 * size - 1))
        if first < end:
            blocks.append(_block(np.arange(first, end), size))
        first = end
    return np.concatenate(blocks)


def _block(deltas: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """Length, attributes, timestamp delta, offset delta in `size` bytes, null key, null value, no headers."""
    rows = np.zeros((len(deltas), size + 6), np.uint8)
    rows[:, 0] = (size + 5) * 2
    for place in range(size):
        more = 0x80 if place < size - 1 else 0
        rows[:, 3 + place] = ((deltas * 2) >> (7 * place)) & 0x7F | more
    rows[:, 3 + size] = rows[:, 4 + size] = _NULL
    return rows.reshape(-1)
