"""Writes a native archive in a task: segments of single partitions, and packs that small partitions share.

Readers of the catalog see nothing before its rows are committed, and nothing is committed here. If the `with` block
ends without an error, everything is durable. If it ends in an error, open objects never become visible, and objects
that were complete before are garbage that no row names.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from maxbrod.batch.transactions import abort_markers
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.kafka.contents import entry_of
from maxbrod.layouts.kafka.described_batches import DescribedBatches, describe
from maxbrod.layouts.kafka.format import Compression, CompressionMode, SegmentLimits, Slice, segment_path
from maxbrod.layouts.kafka.frames import Unpacker, encode_frame
from maxbrod.layouts.kafka.objects import Objects, OpenObject, SliceWriter
from maxbrod.model import AbortedTransaction, Codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.batch.timestamp_scan import TimestampScan
    from maxbrod.storage.interface import Storage

SAMPLE_BYTES: Final = 1 << 20
"""The bytes of a segment that are compressed on trial."""
SAMPLE_LEVEL: Final = 1


class ArchiveWriter:
    """The writer of one task. Uses a few megabytes of memory for any amount of data."""

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
        self._objects = Objects(storage, run_id)
        self._how = How(
            compression=compression or Compression(),
            limits=limits or SegmentLimits(),
            exact_timestamps=exact_timestamps,
            look=look,
            unpacker=Unpacker(),
        )
        self._partitions: list[PartitionWriter] = []

    def partition(
        self, *, topic: str, topic_id: str, partition: int, packed: bool, every_hole: bool = False
    ) -> PartitionWriter:
        """`packed`: its slices go into packs that it shares with the other partitions of the task.

        `every_hole`: a hole of any width ends a slice. If no hole is expected, each one needs a row of its own.
        """
        name = PartitionName(topic=topic, topic_id=topic_id, partition=partition)
        limits = replace(self._how.limits, hole_offsets_min=1) if every_hole else self._how.limits
        writer = PartitionWriter(name, self._objects, replace(self._how, limits=limits), packed=packed)
        self._partitions.append(writer)
        return writer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for partition in self._partitions:
                    partition.close()
                self._objects.commit_all()
        finally:
            self._objects.abort_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionName:
    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """The settings that all partitions of a task share."""

    compression: Compression
    limits: SegmentLimits
    exact_timestamps: bool
    look: TimestampScan | None
    unpacker: Unpacker


class PartitionWriter:
    """Cuts whole, checked batches, in order of offsets, into segments and slices, and decides how each is stored.

    Nothing is visible before the archive's block has ended.
    """

    def __init__(self, name: PartitionName, objects: Objects, how: How, *, packed: bool) -> None:
        self._name = name
        self._objects = objects
        self._how = how
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
    def name(self) -> PartitionName:
        return self._name

    @property
    def hole_offsets_min(self) -> int:
        """A hole of this width gets a row in the catalog, and therefore must lie between two batches."""
        return self._how.limits.hole_offsets_min

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices to commit to the catalog after the archive's block has ended without an error."""
        return tuple(self._finished)

    def append(self, data: NDArray[np.uint8], headers: BatchHeaders, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """The caller may reuse `data` afterwards. `aborted`: the producer ids and first offsets of the fetch answer."""
        if not len(headers):
            return
        self._aborted.learn(aborted, int(headers["base_offset"][0]))
        for batches in self._described(data, headers):
            self._refuse_disorder(batches)
            self._waiting.extend(at_holes(batches, self._how.limits))
            self._drain(last=False)
        self._waiting = deque(batches.copied() for batches in self._waiting)

    def close(self) -> None:
        """End the last segment. Without a batch there is none."""
        self._drain(last=True)
        self._end_segment()

    def _described(self, data: NDArray[np.uint8], headers: BatchHeaders) -> Iterator[DescribedBatches]:
        if self._how.compression.mode is CompressionMode.ZSTD:
            for unpacked, found, codec in self._how.unpacker.unpack(data, headers):
                yield describe(unpacked, found, exact=True, codec=codec)
        else:
            yield describe(data, headers, exact=self._how.exact_timestamps, look=self._how.look)

    def _refuse_disorder(self, batches: DescribedBatches) -> None:
        """Rows must tile, so an offset that occurs twice is refused."""
        facts = batches.facts
        before = np.append(np.int64(self._last_offset), facts.last_offset[:-1])
        wrong = np.flatnonzero(facts.first_offset <= before)
        if wrong.size:
            raise CorruptDataError(
                "a batch does not come after the one before it",
                operation="archive",
                object_name=str(self._name),
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
            count = where_full(batches, self._how.limits, self._segment_bytes, self._segment_records)
            self._write(batches if count is None else batches.take(slice(count)))
            if count is not None:
                self._end_segment()
                if count < len(batches):
                    self._waiting.appendleft(batches.take(slice(count, None)))

    def _choose_framed(self, *, last: bool) -> bool | None:
        """Return True to store the next segment in frames; None while there is too little of it to decide."""
        mode = self._how.compression.mode
        if mode is not CompressionMode.AUTO:
            return mode is CompressionMode.ZSTD
        if not last and sum(len(batches.log) for batches in self._waiting) < SAMPLE_BYTES:
            return None
        return shrinks_to_half(self._waiting)

    def _write(self, batches: DescribedBatches) -> None:
        hole = self._how.limits.hole_offsets_min
        if self._slice is not None and int(batches.facts.first_offset[0]) - self._slice.tally.end_offset >= hole:
            self._end_slice()
        if self._slice is None:
            self._slice = self._open_slice(int(batches.facts.first_offset[0]), framed=bool(self._framed))
        self._slice.add(batches)
        self._aborted.end(batches)
        self._segment_bytes += len(batches.log)
        self._segment_records += int(batches.facts.records.sum())

    def _open_slice(self, base_offset: int, *, framed: bool) -> SliceWriter:
        level = self._how.compression.level if framed else None
        if self._packed:
            return SliceWriter(self._objects.pack(framed=framed, owner=self), level)
        if self._object is None:
            self._object = self._objects.create(
                segment_path(
                    topic=self._name.topic,
                    topic_id=self._name.topic_id,
                    partition=self._name.partition,
                    base_offset=base_offset,
                    framed=framed,
                )
            )
        return SliceWriter(self._object, level)

    def _end_slice(self) -> None:
        if self._slice is not None:
            tally = self._slice.tally
            finished = self._slice.finish(self._aborted.touching(tally.base_offset, tally.end_offset))
            self._finished.append(finished)
            self._slice.out.entries.append(entry_of(self._name, finished, tally.epochs))
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
            self._objects.commit(written)


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
        last_offsets = {key: self._last_offset(key) for key in self._ends}
        self._ends = {key: end for key, end in self._ends.items() if not _is_before(last_offsets[key], base_offset)}
        self._ended_by = {key: end for key, end in self._ended_by.items() if key in self._ends}
        found = [
            AbortedTransaction(
                producer_id=producer_id,
                first_offset=first_offset,
                last_offset=end_offset - 1 if end is None else min(end, end_offset - 1),
            )
            for (producer_id, first_offset), end in ((key, last_offsets[key]) for key in self._ends)
            if first_offset < end_offset
        ]
        return tuple(sorted(found, key=lambda transaction: (transaction.first_offset, transaction.producer_id)))

    def _last_offset(self, key: tuple[int, int]) -> int | None:
        end = self._ends[key]
        return self._ended_by.get(key) if end is None else end


def _is_before(end: int | None, base_offset: int) -> bool:
    return end is not None and end < base_offset


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
