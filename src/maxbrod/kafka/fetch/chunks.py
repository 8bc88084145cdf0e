"""Selects the whole batches of a range from a fetch response and checks them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.headers import LOG_OVERHEAD_BYTES, NEWEST_MAGIC, BatchHeaders, check_crc, walk
from maxbrod.errors import CorruptDataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.kafka.fetch.request import FetchedPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """All that the log holds for the offsets from `start` to `end` (exclusive). The chunks of a range tile it.

    `data` is whole batches and nothing else. It is empty where compaction or retention has left nothing. An offset
    below `log_start_offset` that no batch covers was deleted by retention. If the log start offset lies within a batch,
    which brokers keep whole, `ranges` trims that batch. If `start` lies within a batch, that batch begins before it.
    """

    start: int
    end: int
    data: NDArray[np.uint8]
    headers: BatchHeaders
    aborted: tuple[tuple[int, int], ...] = ()
    """Producer id and first offset of aborted transactions, for `batch.transactions.from_fetch`."""
    log_start_offset: int
    last_stable_offset: int = -1
    high_watermark: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The batches of a response that belong to a range. Checksums are not checked yet."""

    start: int
    end: int
    last_epoch: int
    """The leader epoch of the newest batch of the response."""
    data: NDArray[np.uint8]
    headers: BatchHeaders
    """The headers of `data`."""
    found: FetchedPartition

    def checked(self, object_name: str) -> Chunk:
        """Check every CRC. Raises CorruptDataError as `batch.headers.walk` does."""
        if (self.headers["magic"] != NEWEST_MAGIC).any():
            return self._chunk(self.data, self.end, walk(self.data, whole=True, object_name=object_name))
        check_crc(self.data, self.headers, object_name=object_name)
        return self._chunk(self.data, self.end, self.headers)

    def sound_before(self, error: CorruptDataError, object_name: str) -> Chunk | None:
        """The batches before the one that the error is about, if any."""
        if not error.position or error.offset is None or not self.start < error.offset < self.end:
            return None
        data = self.data[: error.position]
        return self._chunk(data, error.offset, walk(data, whole=True, object_name=object_name))

    def _chunk(self, data: NDArray[np.uint8], end: int, headers: BatchHeaders) -> Chunk:
        return Chunk(
            start=self.start,
            end=end,
            data=data,
            headers=headers,
            aborted=tuple(each for each in self.found.aborted if each[1] < end),
            log_start_offset=self.found.log_start_offset,
            last_stable_offset=self.found.last_stable_offset,
            high_watermark=self.found.high_watermark,
        )


def select(
    found: FetchedPartition, headers: BatchHeaders, start: int, end: int, *, floor: int | None = None
) -> Selection:
    """The batches with a base offset in [start, end), from a response to a fetch at `start` that has batches.

    With a `floor` below `start`, the batch that contains `start` is included unless it begins before the floor.
    """
    _check_order(headers)
    base = headers["base_offset"]
    first, last = np.searchsorted(base, [start, end]).tolist()
    if first and floor is not None and floor <= base[first - 1] and start <= headers.last_offset[first - 1]:
        first -= 1
    # A batch beyond the range proves that the rest of the range is empty.
    covered = end if last < len(base) else min(end, int(headers.last_offset[-1]) + 1)
    if covered <= start:
        raise CorruptDataError("all batches of a response lie before the requested offset", offset=start)
    begin = stop = 0
    if last > first:
        begin, stop = int(headers.position[first]), int(headers.position[last - 1] + headers.size[last - 1])
    chosen = headers.take(slice(first, last))
    return Selection(
        start=start,
        end=covered,
        last_epoch=int(headers["leader_epoch"][-1]),
        data=found.records[begin:stop],
        headers=replace(chosen, position=chosen.position - begin, end=stop - begin, tail=0),
        found=found,
    )


def announced_bytes(records: NDArray[np.uint8]) -> int | None:
    """The length in the header of the first batch, if that field is present."""
    if len(records) < LOG_OVERHEAD_BYTES:
        return None
    return LOG_OVERHEAD_BYTES + int.from_bytes(records[LOG_OVERHEAD_BYTES - 4 : LOG_OVERHEAD_BYTES].tobytes(), "big")


def empty_chunk(start: int, end: int, *, log_start_offset: int) -> Chunk:
    """A chunk for offsets without batches."""
    data = np.empty(0, np.uint8)
    return Chunk(start=start, end=end, data=data, headers=walk(data), log_start_offset=log_start_offset)


def _check_order(headers: BatchHeaders) -> None:
    """The CRC covers neither offset nor leader epoch. That they only grow is all that can be checked."""
    base, epoch = headers["base_offset"], headers["leader_epoch"]
    wrong = np.flatnonzero((base[1:] <= headers.last_offset[:-1]) | (epoch[1:] < epoch[:-1]))
    if wrong.size:
        row = int(wrong[0]) + 1
        raise CorruptDataError(
            "the offset or leader epoch of a batch is lower than that of the batch before it",
            offset=int(base[row]),
            position=int(headers.position[row]),
        )
