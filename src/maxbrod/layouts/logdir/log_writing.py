"""Writes a partition's log as a broker has it: segments, their indexes, leader epochs. Bytes go as they come.

The last segment is empty and begins where the log ends. So a log may end behind its last batch, and what a broker
recovers after a crash never reaches back into what was written here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.headers import NEWEST_MAGIC
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.logdir.checkpoint_writing import encode_epochs, own_like, write_file
from maxbrod.layouts.logdir.log_transactions import LogTransactions
from maxbrod.layouts.logdir.names import EPOCHS
from maxbrod.layouts.logdir.segment_indexes import NO_PRODUCERS, SegmentIndexes
from maxbrod.model import AbortedTransaction
from maxbrod.storage.beneath import sync_folder
from maxbrod.storage.writeback import Writeback

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders

SEGMENT_BYTES: Final = 1 << 30
"""Kafka's default."""
INT32_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLog:
    base: int
    """The name of the first segment."""
    start: int
    end: int
    bytes: int
    records: int
    segments: int
    """The empty one at the end is not counted."""
    last_epoch: int
    """-1 where no batch has one."""


class LogWriter:
    """One partition's log in one folder or, for several replicas, in each of some; all of them are empty."""

    def __init__(self, folders: Sequence[Path], *, start: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folders = tuple(folders)
        self._segment_bytes = min(segment_bytes, INT32_MAX)
        self._start = self._end = start
        self._base: int | None = None
        self._segment: _Segment | None = None
        self._segments = self._bytes = self._records = 0
        self._epochs: list[tuple[int, int]] = []
        self._transactions = LogTransactions()

    def append(self, data: NDArray[np.uint8], headers: BatchHeaders) -> None:
        """Whole batches, one after another in `data`, behind all before. CorruptDataError: they are not."""
        if not len(headers):
            return
        self._refuse_disorder(headers)
        self._note_epochs(headers)
        aborted = list(self._transactions.follow(data, headers))
        row = 0
        while row < len(headers):
            segment = self._open_segment(headers, row)
            stop = row + segment.room(headers.take(slice(row, None)), self._segment_bytes)
            if stop > row:
                segment.append(data, headers.take(slice(row, stop)))
                for at, transaction, stable in aborted:
                    if row <= at < stop:
                        segment.indexes.add_aborted(transaction, stable)
                self._end = int(headers.last_offset[stop - 1]) + 1
            if stop < len(headers):
                self._close_segment()
            row = stop
        self._bytes += int(headers.size.sum())
        self._records += int(np.clip(headers["count"], 0, None).sum())

    def finish(self, end: int, aborted: Iterable[AbortedTransaction] = ()) -> WrittenLog:
        """Ends the log at `end`, at or behind the last batch. All of it is on the disk when this returns.

        `aborted` are known to be, though their markers stand behind the end.
        """
        if end < self._end:
            raise CorruptDataError(f"the log reaches to {self._end}, behind its end {end}", offset=end)
        self._note_undecided(aborted)
        self._close_segment()
        base = end if self._base is None else self._base
        for folder in self._folders:
            for suffix in ("log", "index", "timeindex"):
                write_file(folder / _name(end, suffix), b"", like=folder)
            if end > self._start:
                write_file(folder / _name(end, "snapshot"), NO_PRODUCERS, like=folder)
            # A follower says which epoch it has last; without any, it is taken for one of Kafka's early days.
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

    def _note_undecided(self, aborted: Iterable[AbortedTransaction]) -> None:
        """A log ends before the first transaction that was open, and so perhaps before the markers of others."""
        undecided = self._transactions.undecided
        told = {each.producer_id for each in aborted if each.last_offset >= self._end - 1}
        for producer_id in sorted(undecided.keys() & told, key=undecided.__getitem__):
            if self._segment is not None:
                first, last = undecided[producer_id], self._end - 1
                transaction = AbortedTransaction(producer_id=producer_id, first_offset=first, last_offset=last)
                self._segment.indexes.add_aborted(transaction, self._end)

    def discard(self) -> None:
        """Closes what is open, and leaves it."""
        if self._segment is not None:
            self._segment.discard()

    def _refuse_disorder(self, headers: BatchHeaders) -> None:
        first, last = headers["base_offset"], headers.last_offset
        wrong = np.flatnonzero(first <= np.append(np.int64(self._end - 1), last[:-1]))
        # A log may begin within its first batch: records before its start are not seen.
        if self._base is None and wrong.size and wrong[0] == 0 and int(last[0]) >= self._start:
            wrong = wrong[1:]
        if wrong.size:
            offset = int(first[wrong[0]])
            raise CorruptDataError("a batch does not stand behind the one before", offset=offset)

    def _note_epochs(self, headers: BatchHeaders) -> None:
        """Where each epoch begins. They rise: one that does not is a follower's of the epoch before."""
        epochs = headers["leader_epoch"].astype(np.int64)
        known = self._epochs[-1][0] if self._epochs else -1
        highest = np.maximum.accumulate(np.append(np.int64(known), epochs))
        for row in np.flatnonzero(highest[1:] > highest[:-1]).tolist():
            start = self._start if not self._epochs else int(headers["base_offset"][row])
            self._epochs.append((int(epochs[row]), start))

    def _open_segment(self, headers: BatchHeaders, row: int) -> _Segment:
        if self._segment is None:
            base = self._segment_base(headers, row)
            self._base = base if self._base is None else self._base
            self._segment = _Segment(self._folders, base)
            self._segments += 1
        return self._segment

    def _segment_base(self, headers: BatchHeaders, row: int) -> int:
        """As a broker names it: by where the log ended. Behind a hole that 32 bits cannot span, by its first batch."""
        first, last = int(headers["base_offset"][row]), int(headers.last_offset[row])
        base = min(self._end, first)
        if last - base <= INT32_MAX:
            return base
        # A compressed message of magic 0 or 1 says only where it ends.
        return first if int(headers["magic"][row]) == NEWEST_MAGIC else last - INT32_MAX

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None


class _Segment:
    """The same file in each folder."""

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
        """How many of these batches it takes; the first one in any case, if it is empty."""
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
            writeback.wrote(stop - first)
            view = memoryview(data[first:stop])
            while view:
                view = view[os.write(descriptor, view) :]
        self._size += stop - first

    def close(self) -> None:
        for descriptor, writeback in self._files:
            writeback.settle()
            os.fsync(descriptor)
        self.discard()
        for folder in self._folders:
            for suffix, data in self.indexes.files().items():
                write_file(folder / _name(self._base_offset, suffix), data, like=folder)

    def discard(self) -> None:
        files, self._files = self._files, []
        for descriptor, writeback in files:
            try:
                writeback.settle()
            finally:
                os.close(descriptor)


def _name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}.{suffix}"
