"""The indexes of one segment, as a broker would build them from its log. Pure: batches' columns in, files' bytes out.

A broker that finds them loads the segment without reading it. That is also how the state of old producers stays out:
it is rebuilt from whatever a broker has to read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.crc import crc32c

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.model import AbortedTransaction

_INTERVAL_BITS: Final = 12
"""An entry for the first batch that begins in each 4 KiB: Kafka's own `index.interval.bytes`."""
_OFFSETS: Final = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIMES: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_ABORTED: Final = struct.Struct(">hqqqq")
_ABORTED_VERSION: Final = 0
_NO_TIMESTAMP: Final = -1

NO_PRODUCERS: Final = struct.pack(">hIi", 1, crc32c(np.zeros(4, np.uint8)), 0)
"""A snapshot of producers that knows none: version, checksum of the rest, how many."""


class SegmentIndexes:
    """Of one segment, whose batches are told in order."""

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._offsets: list[NDArray[Any]] = []
        self._times: list[NDArray[Any]] = []
        self._aborted: list[bytes] = []
        self._block = 0
        self._highest = _NO_TIMESTAMP
        self._highest_at = base_offset
        self._noted = _NO_TIMESTAMP

    def add(self, position: NDArray[np.int64], last_offset: NDArray[np.int64], timestamp: NDArray[np.int64]) -> None:
        """Batches by the byte at which each begins, its last offset and its highest timestamp."""
        if not len(position):
            return
        blocks = position >> _INTERVAL_BITS
        fresh = np.flatnonzero(blocks != np.append(np.int64(self._block), blocks[:-1]))
        self._block = int(blocks[-1])
        entries = np.empty(len(fresh), _OFFSETS)
        entries["offset"], entries["position"] = last_offset[fresh] - self._base_offset, position[fresh]
        self._offsets.append(entries)
        self._add_times(fresh, last_offset, timestamp)

    def _add_times(self, fresh: NDArray[np.intp], last_offset: NDArray[np.int64], timestamp: NDArray[np.int64]) -> None:
        """With each entry the highest timestamp so far, where that has risen, and the batch that has it."""
        before = np.append(np.int64(self._highest), np.maximum.accumulate(timestamp)[:-1])
        rising = timestamp > np.maximum(before, self._highest)
        # The row of the batch that last raised it; 0 stands for one before these.
        row = np.maximum.accumulate(np.where(rising, np.arange(1, len(timestamp) + 1), 0))
        highest = np.append(np.int64(self._highest), timestamp)[row]
        places = np.append(np.int64(self._highest_at), last_offset)[row]
        entries = np.empty(len(fresh), _TIMES)
        entries["timestamp"], entries["offset"] = highest[fresh], places[fresh] - self._base_offset
        kept = highest[fresh] > np.append(np.int64(self._noted), highest[fresh][:-1])
        self._times.append(entries[kept])
        if kept.any():
            self._noted = int(highest[fresh][kept][-1])
        self._highest, self._highest_at = int(highest[-1]), int(places[-1])

    def add_aborted(self, transaction: AbortedTransaction, last_stable_offset: int) -> None:
        """A transaction whose marker stands in this segment, and where the stable offsets end after it."""
        self._aborted.append(
            _ABORTED.pack(
                _ABORTED_VERSION,
                transaction.producer_id,
                transaction.first_offset,
                transaction.last_offset,
                last_stable_offset,
            )
        )

    def files(self) -> dict[str, bytes]:
        """By suffix. An index of aborted transactions is there only where there are some, as with a broker."""
        last = np.empty(0 if self._highest <= self._noted else 1, _TIMES)
        last["timestamp"], last["offset"] = self._highest, self._highest_at - self._base_offset
        files = {
            "index": b"".join(each.tobytes() for each in self._offsets),
            "timeindex": b"".join(each.tobytes() for each in (*self._times, last)),
        }
        return files | ({"txnindex": b"".join(self._aborted)} if self._aborted else {})
