"""Writes a partition's log as a broker does: segments, their indexes, leader epochs. Batches are written unchanged.

The last segment is empty and begins where the log ends. A log may therefore end after its last batch, and a broker's
recovery after a crash never reaches back into what was written here. A broker that finds the indexes loads a segment
without reading it, so that it does not rebuild the state of old producers from it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.crc import crc32c
from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders
from maxbrod.batch.transactions import transaction_events
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.logdir.format import EPOCHS, encode_epochs, own_like, write_file
from maxbrod.model import INT32_MAX, AbortedTransaction
from maxbrod.storage.beneath import sync_folder
from maxbrod.storage.local import Writeback

SEGMENT_BYTES: Final = 1 << 30
"""Kafka's default."""
_INTERVAL_BITS: Final = 12
"""The first batch that begins in each 4 KiB has an entry: Kafka's default of `index.interval.bytes`."""
_OFFSETS: Final = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIMES: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_ABORTED_ENTRY: Final = struct.Struct(">hqqqq")
_ABORTED_VERSION: Final = 0
_NO_TIMESTAMP: Final = -1
NO_PRODUCERS: Final = struct.pack(">hIi", 1, crc32c(np.zeros(4, np.uint8)), 0)
"""A snapshot without producers: version, checksum of the rest, number of producers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLog:
    base: int
    """The name of the first segment."""
    start: int
    end: int
    bytes: int
    records: int
    segments: int
    """Without the empty one at the end."""
    last_epoch: int
    """-1 if no batch has one."""


class LogWriter:
    """Writes one partition's log into one folder or, for several replicas, into several. All of them are empty."""

    def __init__(self, folders: Sequence[Path], *, start: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folders = tuple(folders)
        self._segment_bytes = min(segment_bytes, INT32_MAX)
        self._start = self._end = start
        self._base: int | None = None
        self._segment: _Segment | None = None
        self._segments = self._bytes = self._records = 0
        self._epochs: list[tuple[int, int]] = []
        self._open: dict[int, int] = {}
        """By producer, the first offset of its transaction without a marker so far."""

    def append(self, data: NDArray[np.uint8], headers: BatchHeaders) -> None:
        """Appends whole batches, one after another in `data`. CorruptDataError: they do not follow all before."""
        if not len(headers):
            return
        self._refuse_disorder(headers)
        self._note_epochs(headers)
        aborted = list(self._follow_transactions(data, headers))
        last = headers.last_offset
        row = 0
        while row < len(headers):
            segment = self._open_segment(headers, row)
            stop = row + segment.room(headers.take(slice(row, None)), self._segment_bytes)
            if stop > row:
                segment.append(data, headers.take(slice(row, stop)))
                for transaction, stable in aborted:
                    if self._end <= transaction.last_offset <= last[stop - 1]:
                        segment.indexes.add_aborted(transaction, stable)
                self._end = int(last[stop - 1]) + 1
            if stop < len(headers):
                self._close_segment()
            row = stop
        self._bytes += int(headers.size.sum())
        self._records += int(np.clip(headers["count"], 0, None).sum())

    def finish(self, end: int, aborted: Iterable[AbortedTransaction] = ()) -> WrittenLog:
        """Ends the log at `end`, at or after the last batch. All of it is on disk when this returns.

        `aborted` are known to be aborted, although their markers are after the end.
        """
        if end < self._end:
            raise CorruptDataError(f"the log reaches to {self._end}, after its end {end}", offset=end)
        self._note_undecided(aborted)
        self._close_segment()
        base = end if self._base is None else self._base
        for folder in self._folders:
            for suffix in ("log", "index", "timeindex"):
                write_file(folder / _name(end, suffix), b"", like=folder)
            if end > self._start:
                write_file(folder / _name(end, "snapshot"), NO_PRODUCERS, like=folder)
            # A follower reports its last epoch. Without any, brokers take it for a follower of an early release.
            write_file(folder / EPOCHS, encode_epochs(self._epochs or [(0, self._start)]), like=folder)
            sync_folder(folder)
        return WrittenLog(
            base=base,
            start=self._start,
            end=end,
            bytes=self._bytes,
            records=self._records,
            segments=self._segments,
            last_epoch=self._epochs[-1][0] if self._epochs else -1,
        )

    def _follow_transactions(
        self, data: NDArray[np.uint8], headers: BatchHeaders
    ) -> Iterator[tuple[AbortedTransaction, int]]:
        """The transactions that markers of these batches abort, and the last stable offset after each.

        A marker without records before it is skipped: nothing of that transaction is in the log.
        """
        for producer_id, offset, aborts in transaction_events(data, headers):
            if aborts is None:
                self._open.setdefault(producer_id, offset)
                continue
            first = self._open.pop(producer_id, None)
            if first is not None and aborts:
                stable = min(self._open.values(), default=offset + 1)
                yield AbortedTransaction(producer_id=producer_id, first_offset=first, last_offset=offset), stable

    def _note_undecided(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Indexes aborted transactions whose markers are after the end: a log ends before the first open one."""
        known = {transaction.producer_id for transaction in aborted if transaction.last_offset >= self._end - 1}
        for producer_id in sorted(self._open.keys() & known, key=self._open.__getitem__):
            if self._segment is not None:
                first, last = self._open[producer_id], self._end - 1
                transaction = AbortedTransaction(producer_id=producer_id, first_offset=first, last_offset=last)
                self._segment.indexes.add_aborted(transaction, self._end)

    def discard(self) -> None:
        """Closes open files, and leaves them."""
        if self._segment is not None:
            self._segment.discard()

    def _refuse_disorder(self, headers: BatchHeaders) -> None:
        first, last = headers["base_offset"], headers.last_offset
        wrong = np.flatnonzero(first <= np.append(np.int64(self._end - 1), last[:-1]))
        # A log may begin within its first batch: records before its start are not visible.
        if self._base is None and wrong.size and wrong[0] == 0 and int(last[0]) >= self._start:
            wrong = wrong[1:]
        if wrong.size:
            offset = int(first[wrong[0]])
            raise CorruptDataError("a batch does not follow the one before", offset=offset)

    def _note_epochs(self, headers: BatchHeaders) -> None:
        """Records where each epoch begins. Epochs rise: a lower one counts as part of the epoch before."""
        epochs = headers["leader_epoch"].astype(np.int64)
        known = self._epochs[-1][0] if self._epochs else -1
        highest = np.maximum.accumulate(np.append(np.int64(known), epochs))
        for row in np.flatnonzero(highest[1:] > highest[:-1]).tolist():
            start = self._start if not self._epochs else int(headers["base_offset"][row])
            self._epochs.append((int(epochs[row]), start))

    def _open_segment(self, headers: BatchHeaders, row: int) -> _Segment:
        if self._segment is None:
            first, last = int(headers["base_offset"][row]), int(headers.last_offset[row])
            # It begins at the end of the log, as with a broker; after a hole that 32 bits cannot span, with the batch.
            base = min(self._end, first)
            if last - base > INT32_MAX:
                # A compressed message of magic 0 or 1 has only its last offset.
                base = first if int(headers["magic"][row]) == NEWEST_MAGIC else last - INT32_MAX
            self._base = base if self._base is None else self._base
            self._segment = _Segment(self._folders, base)
            self._segments += 1
        return self._segment

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None


class _Segment:
    """One segment, as the same file in each folder."""

    def __init__(self, folders: Sequence[Path], base_offset: int) -> None:
        self._folders = folders
        self._base_offset = base_offset
        self._size = 0
        self.indexes = SegmentIndexes(base_offset)
        self._files: list[tuple[int, Writeback]] = []
        for folder in folders:
            path = folder / _name(base_offset, "log")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            self._files.append((descriptor, Writeback(descriptor)))
            own_like(descriptor, folder)

    def room(self, headers: BatchHeaders, bytes_max: int) -> int:
        """The number of these batches that fit; if the segment is empty, at least one."""
        full = self._size + np.cumsum(headers.size) > bytes_max
        full |= headers.last_offset - self._base_offset > INT32_MAX
        count = int(np.argmax(np.append(full, True)))
        return max(count, 1) if self._size == 0 else count

    def append(self, data: NDArray[np.uint8], headers: BatchHeaders) -> None:
        first = int(headers.position[0])
        stop = int(headers.position[-1] + headers.size[-1])
        position = headers.position - first + self._size
        self.indexes.add(position, headers.last_offset, headers["max_timestamp"].astype(np.int64))
        for descriptor, writeback in self._files:
            view = memoryview(data[first:stop])
            while view:
                count = os.write(descriptor, view)
                writeback.wrote(count)
                view = view[count:]
        self._size += stop - first

    def close(self) -> None:
        # The log is durable before its indexes exist, because a broker that finds indexes does not read the log.
        for descriptor, _ in self._files:
            os.fsync(descriptor)
        self.discard()
        for folder in self._folders:
            for suffix, data in self.indexes.files().items():
                write_file(folder / _name(self._base_offset, suffix), data, like=folder)

    def discard(self) -> None:
        files, self._files = self._files, []
        for descriptor, _ in files:
            os.close(descriptor)


def _name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}.{suffix}"


class SegmentIndexes:
    """The indexes of one segment whose batches are added in order, as a broker would build them."""

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
        """Adds batches, by their positions, last offsets and highest timestamps."""
        if not len(position):
            return
        blocks = position >> _INTERVAL_BITS
        fresh = np.flatnonzero(blocks != np.append(np.int64(self._block), blocks[:-1]))
        self._block = int(blocks[-1])
        entries = np.empty(len(fresh), _OFFSETS)
        entries["offset"], entries["position"] = last_offset[fresh] - self._base_offset, position[fresh]
        self._offsets.append(entries)
        # With each entry, the highest timestamp so far if it has risen, and the batch that has it.
        before = np.append(np.int64(self._highest), np.maximum.accumulate(timestamp)[:-1])
        rising = timestamp > np.maximum(before, self._highest)
        # The row of the batch that last raised it; 0 means one before these.
        row = np.maximum.accumulate(np.where(rising, np.arange(1, len(timestamp) + 1), 0))
        highest = np.append(np.int64(self._highest), timestamp)[row]
        places = np.append(np.int64(self._highest_at), last_offset)[row]
        times = np.empty(len(fresh), _TIMES)
        times["timestamp"], times["offset"] = highest[fresh], places[fresh] - self._base_offset
        kept = highest[fresh] > np.append(np.int64(self._noted), highest[fresh][:-1])
        self._times.append(times[kept])
        if kept.any():
            self._noted = int(highest[fresh][kept][-1])
        self._highest, self._highest_at = int(highest[-1]), int(places[-1])

    def add_aborted(self, transaction: AbortedTransaction, last_stable_offset: int) -> None:
        """Adds a transaction whose marker is in this segment, and the last stable offset after it."""
        self._aborted.append(
            _ABORTED_ENTRY.pack(
                _ABORTED_VERSION,
                transaction.producer_id,
                transaction.first_offset,
                transaction.last_offset,
                last_stable_offset,
            )
        )

    def files(self) -> dict[str, bytes]:
        """The files by suffix. As with a broker, the index of aborted transactions exists only if there are some."""
        last = np.empty(0 if self._highest <= self._noted else 1, _TIMES)
        last["timestamp"], last["offset"] = self._highest, self._highest_at - self._base_offset
        files = {
            "index": b"".join(offset.tobytes() for offset in self._offsets),
            "timeindex": b"".join(entry.tobytes() for entry in (*self._times, last)),
        }
        return files | ({"txnindex": b"".join(self._aborted)} if self._aborted else {})
