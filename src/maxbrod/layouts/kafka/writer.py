"""Writes a native archive in a task: segments of single partitions, and packs that small partitions share.

Readers of the catalog see nothing before its rows are committed, and nothing is committed here. If the `with` block
ends without an error, everything is durable. If it ends in an error, open objects never become visible, and objects
that were complete before are garbage that no row names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from threading import Thread
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.headers import BatchHeaders
from maxbrod.batch.transactions import abort_markers
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.kafka.contents import Contents, Entry, encode_contents, has_contents
from maxbrod.layouts.kafka.described_batches import DescribedBatches, SliceTally, TimestampScan, describe
from maxbrod.layouts.kafka.format import (
    Compression,
    CompressionMode,
    PartitionName,
    SegmentLimits,
    Slice,
    is_framed,
    pack_path,
)
from maxbrod.layouts.kafka.frames import FrameEncoder, SliceDigest, Unpacker, encode_frame
from maxbrod.model import AbortedTransaction, Codec, now_ms
from maxbrod.storage.interface import Storage, Writer

SAMPLE_BYTES: Final = 1 << 20
"""The bytes of a segment that are compressed on trial."""
SAMPLE_LEVEL: Final = 1
_OPEN: Final = (1 << 63) - 1  # the last offset of a transaction that has not ended


PACK_BYTES_MAX: Final = 1 << 30
"""A pack of this size takes no further slice."""


@dataclass(frozen=True, slots=True)
class OpenObject:
    path: str
    writer: Writer
    entries: list[Entry] = field(default_factory=list)
    """The slices written so far, for the table of contents."""
    strong: bool = False
    """True if slices get a digest that withstands a forger."""

    def finish(self, run_id: str, *, level: int = 0) -> None:
        """Write the table of contents, if an object of this name has one. Nothing may be written after it."""
        if self.entries and has_contents(self.path):
            contents = Contents(run_id=run_id, written_at=now_ms(), entries=tuple(self.entries), level=level)
            end = encode_contents(contents, framed=is_framed(self.path))
            self.writer.write(np.frombuffer(end, np.uint8))


class SliceWriter:
    """Appends one slice of a partition to `out`, and collects its digest and what the catalog records of it.

    While the slice is open, nothing else may be written to `out`.
    """

    def __init__(self, name: PartitionName, out: OpenObject, level: int | None) -> None:
        """`level` is the zstd level of a log in frames; None: no frames."""
        self._name = name
        self._out = out
        self._position = out.writer.size
        self._frames = None if level is None else FrameEncoder(level)
        self._digest = SliceDigest(strong=out.strong)
        self.tally = SliceTally()

    def add(self, batches: DescribedBatches) -> None:
        self.tally.add(batches)
        for part in [batches.log] if self._frames is None else self._frames.encode(batches.log):
            self._write(part)

    def finish(self, aborted: tuple[AbortedTransaction, ...], *, codec: str | None = None) -> Slice:
        """End the slice. `codec`: that of the source, if the headers no longer show it."""
        for frame in () if self._frames is None else self._frames.finish():
            self._write(frame)
        size = self._out.writer.size - self._position
        written = self.tally.as_slice(
            path=self._out.path, position=self._position, size=size, aborted=aborted, digest=str(self._digest)
        )
        written = written if codec is None else replace(written, codec=codec)
        self._out.entries.append(
            Entry(
                topic=self._name.topic,
                topic_id=self._name.topic_id,
                partition=self._name.partition,
                slice=written,
                epochs=tuple(self.tally.epochs),
            )
        )
        return written

    def _write(self, data: NDArray[np.uint8]) -> None:
        self._out.writer.write(data)
        self._digest.add(data)


class ArchiveWriter:
    """The writer of one task, and its open objects. Uses a few megabytes of memory for any amount of data."""

    def __init__(
        self,
        storage: Storage,
        *,
        run_id: str,
        compression: Compression | None = None,
        limits: SegmentLimits | None = None,
        exact_timestamps: bool = False,
        look: TimestampScan | None = None,
    ) -> None:
        """`exact_timestamps` reads every record for the lowest timestamp, as `zstd` does; `look` for a limited time."""
        self._storage = storage
        self._run_id = run_id
        self.compression = compression or Compression()
        self._limits = limits or SegmentLimits()
        self._exact_timestamps = exact_timestamps
        self._look = look
        self._unpacker = Unpacker()
        self._partitions: list[PartitionWriter] = []
        self._open: list[OpenObject] = []
        self._packs: dict[bool, OpenObject] = {}
        self._pack_owners: dict[bool, PartitionWriter] = {}
        self._commit: Future[None] | None = None

    def partition(
        self, *, topic: str, topic_id: str, partition: int, packed: bool, every_hole: bool = False
    ) -> PartitionWriter:
        """`packed`: its slices go into packs that it shares with the other partitions of the task.

        `every_hole`: a hole of any width ends a slice. If no hole is expected, each one needs a row of its own.
        """
        name = PartitionName(topic=topic, topic_id=topic_id, partition=partition)
        limits = replace(self._limits, hole_offsets_min=1) if every_hole else self._limits
        writer = PartitionWriter(name, self, limits, packed=packed)
        self._partitions.append(writer)
        return writer

    def describe(self, data: NDArray[np.uint8], headers: BatchHeaders) -> Iterator[DescribedBatches]:
        """The batches as they are stored, a few at a time if they are decompressed."""
        if self.compression.mode is CompressionMode.ZSTD:
            for unpacked, found, codec in self._unpacker.unpack(data, headers):
                yield describe(unpacked, found, exact=True, codec=codec)
        else:
            yield describe(data, headers, exact=self._exact_timestamps, look=self._look)

    def create(self, path: str) -> OpenObject:
        opened = OpenObject(path, self._storage.create(path), strong=self._storage.signing is not None)
        self._open.append(opened)
        return opened

    def pack(self, *, framed: bool, owner: PartitionWriter) -> OpenObject:
        """The pack for the next slice; a task has at most one of each kind at a time.

        Slices are contiguous: the previous owner's open slice is ended first.
        """
        before = self._pack_owners.get(framed, owner)
        if before is not owner:
            before.make_way()
        self._pack_owners[framed] = owner
        pack = self._packs.get(framed)
        if pack is not None and pack.writer.size >= PACK_BYTES_MAX:
            self.commit(pack)
            pack = None
        if pack is None:
            pack = self._packs[framed] = self.create(pack_path(run_id=self._run_id, framed=framed))
        return pack

    def commit(self, opened: OpenObject) -> None:
        """Make an object durable in the background, one at a time; the next commit raises the error of this one."""
        self._settle()
        opened.finish(self._run_id)
        self._open.remove(opened)
        self._commit = Future()
        Thread(target=_run, args=(opened.writer.commit, self._commit), name="commit", daemon=True).start()

    def _settle(self) -> None:
        commit, self._commit = self._commit, None
        if commit is not None:
            commit.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for partition in self._partitions:
                    partition.close()
                while self._open:
                    self.commit(self._open[0])
                self._settle()
        finally:
            with suppress(Exception):
                self._settle()
            while self._open:
                self._open.pop().writer.abort()


def _run(action: Callable[[], None], outcome: Future[None]) -> None:
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - raised by `result`
        outcome.set_exception(error)
    else:
        outcome.set_result(None)


class PartitionWriter:
    """Cuts whole, checked batches, in order of offsets, into segments and slices, and decides how each is stored.

    Nothing is visible before the archive's block has ended.
    """

    def __init__(self, name: PartitionName, archive: ArchiveWriter, limits: SegmentLimits, *, packed: bool) -> None:
        self.name = name
        self.limits = limits
        self._archive = archive
        self._packed = packed
        self._aborted = AbortedTransactions()
        self._waiting: deque[DescribedBatches] = deque()
        self._framed: bool | None = None
        self._object: OpenObject | None = None
        self._slice: SliceWriter | None = None
        self._segment_bytes = self._segment_records = 0
        self._finished: list[Slice] = []
        self._last_offset = -1

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices to commit to the catalog after the archive's block has ended without an error."""
        return tuple(self._finished)

    def append(self, data: NDArray[np.uint8], headers: BatchHeaders, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """The caller may reuse `data` afterwards. `aborted`: the producer ids and first offsets of the fetch answer."""
        if not len(headers):
            return
        self._aborted.learn(aborted, int(headers["base_offset"][0]))
        for batches in self._archive.describe(data, headers):
            self._refuse_disorder(batches)
            self._waiting.extend(at_holes(batches, self.limits))
            self._drain(last=False)
        self._waiting = deque(batches.copied() for batches in self._waiting)

    def close(self) -> None:
        """End the last segment. Without a batch there is none."""
        self._drain(last=True)
        self._end_segment()

    def _refuse_disorder(self, batches: DescribedBatches) -> None:
        """Rows must tile, so an offset that occurs twice is refused."""
        facts = batches.facts
        before = np.append(np.int64(self._last_offset), facts.last_offset[:-1])
        wrong = np.flatnonzero(facts.first_offset <= before)
        if wrong.size:
            raise CorruptDataError(
                "a batch does not come after the one before it",
                operation="archive",
                object_name=str(self.name),
                offset=int(facts.first_offset[wrong[0]]),
                hint="read the partition again; if it persists, the broker's log is damaged there",
            )
        self._last_offset = int(facts.last_offset[-1])

    def _drain(self, *, last: bool) -> None:
        """Write the waiting batches, unless more of them are needed to choose how to store them."""
        while self._waiting:
            if self._framed is None:
                self._framed = self._choose_framed(last=last)
                if self._framed is None:
                    return
            batches = self._waiting.popleft()
            count = where_full(batches, self.limits, self._segment_bytes, self._segment_records)
            self._write(batches if count is None else batches.take(slice(count)))
            if count is not None:
                self._end_segment()
                if count < len(batches):
                    self._waiting.appendleft(batches.take(slice(count, None)))

    def _choose_framed(self, *, last: bool) -> bool | None:
        """Return True to store the next segment in frames; None while there is too little of it to decide."""
        mode = self._archive.compression.mode
        if mode is not CompressionMode.AUTO:
            return mode is CompressionMode.ZSTD
        if not last and sum(len(batches.log) for batches in self._waiting) < SAMPLE_BYTES:
            return None
        return shrinks_to_half(self._waiting)

    def _write(self, batches: DescribedBatches) -> None:
        first_offset = int(batches.facts.first_offset[0])
        if self._slice is not None and first_offset - self._slice.tally.end_offset >= self.limits.hole_offsets_min:
            self._end_slice()
        if self._slice is None:
            self._slice = self._open_slice(first_offset, framed=bool(self._framed))
        self._slice.add(batches)
        self._aborted.end(batches)
        self._segment_bytes += len(batches.log)
        self._segment_records += int(batches.facts.records.sum())

    def _open_slice(self, base_offset: int, *, framed: bool) -> SliceWriter:
        level = self._archive.compression.level if framed else None
        if self._packed:
            return SliceWriter(self.name, self._archive.pack(framed=framed, owner=self), level)
        if self._object is None:
            self._object = self._archive.create(self.name.segment_path(base_offset, framed=framed))
        return SliceWriter(self.name, self._object, level)

    def _end_slice(self) -> None:
        if self._slice is not None:
            tally = self._slice.tally
            aborted = self._aborted.touching(tally.base_offset, tally.end_offset)
            self._finished.append(self._slice.finish(aborted))
            self._slice = None

    def make_way(self) -> None:
        """Another partition needs the pack: end the slice in it. Further batches start another slice."""
        self._end_slice()
        self._framed = None

    def _end_segment(self) -> None:
        self._end_slice()
        self._framed = None
        self._segment_bytes = self._segment_records = 0
        if self._object is not None:
            written, self._object = self._object, None
            self._archive.commit(written)


def shrinks_to_half(described: Iterable[DescribedBatches]) -> bool:
    """True if the first SAMPLE_BYTES compress to half or less. Batches that are already compressed never do."""
    sample: list[Any] = []
    left = SAMPLE_BYTES
    worth = False
    for batches in described:
        sample.append(batches.log[:left])
        worth = worth or bool((batches.headers.codec == Codec.NONE).any())
        left -= len(sample[-1])
        if not left:
            break
    if not worth:
        return False
    joined = sample[0] if len(sample) == 1 else np.concatenate(sample)
    return 2 * len(encode_frame(joined, SAMPLE_LEVEL)) <= len(joined)


class AbortedTransactions:
    """Aborted transactions of a partition while it is written: fetch answers name them, markers end them."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], int | None] = {}
        self._ended_by: dict[tuple[int, int], int] = {}
        """The last possible end offset of those that fetch answers no longer name."""

    def learn(self, aborted: Iterable[tuple[int, int]], base_offset: int) -> None:
        """Record the producer id and first offset of each; every fetch answer repeats those that overlap it.

        So a transaction that the answer for `base_offset` no longer names has ended, even if its marker is never seen:
        it may be damaged or compacted away. If it stayed open it would hide what its producer committed later.
        """
        named = set(aborted)
        for key in self._ends:
            if key not in named:
                self._ended_by.setdefault(key, base_offset - 1)
        for key in named:
            self._ends.setdefault(key, None)

    def end(self, batches: DescribedBatches) -> None:
        """Record the abort markers of these batches. Batches must be added in order of offsets."""
        if not self._ends or not batches.headers.control.any():
            return
        markers = abort_markers(batches.data, batches.headers)
        for key, known in self._ends.items():
            if known is None:
                producer_id, first_offset = key
                after = (offset for producer, offset in markers if producer == producer_id and offset > first_offset)
                found = next(after, None)
                if found is not None and found <= self._ended_by.get(key, found):
                    self._ends[key] = found

    def touching(self, base_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The transactions that overlap a range; one that has not ended extends to the range's last offset.

        Ranges must be requested in order: transactions that ended before one are dropped.
        """
        last = {key: self._ended_by.get(key, _OPEN) if end is None else end for key, end in self._ends.items()}
        self._ends = {key: end for key, end in self._ends.items() if last[key] >= base_offset}
        self._ended_by = {key: end for key, end in self._ended_by.items() if key in self._ends}
        found = [
            AbortedTransaction(
                producer_id=producer_id,
                first_offset=first_offset,
                last_offset=min(last[producer_id, first_offset], end_offset - 1),
            )
            for producer_id, first_offset in self._ends
            if first_offset < end_offset
        ]
        return tuple(sorted(found, key=lambda transaction: (transaction.first_offset, transaction.producer_id)))


def at_holes(batches: DescribedBatches, limits: SegmentLimits) -> Iterator[DescribedBatches]:
    """Split batches at wide holes."""
    facts = batches.facts
    wide = facts.first_offset[1:] - facts.last_offset[:-1] > limits.hole_offsets_min
    if not wide.any():
        yield batches
        return
    edges = [0, *(np.flatnonzero(wide) + 1).tolist(), len(batches)]
    for start, end in pairwise(edges):
        yield batches.take(slice(start, end))


def where_full(batches: DescribedBatches, limits: SegmentLimits, raw_bytes: int, records: int) -> int | None:
    """Return how many batches fit a segment of `raw_bytes` and `records`; None: all, and it is not yet full."""
    full = np.flatnonzero(np.cumsum(batches.headers.size) + raw_bytes >= limits.bytes_max)
    if limits.records_max is not None:
        counted = np.flatnonzero(np.cumsum(batches.facts.records) + records >= limits.records_max)
        full = counted if not full.size or (counted.size and counted[0] < full[0]) else full
    return int(full[0]) + 1 if full.size else None
