"""Writes the batches of one partition: cuts them into segments and slices, and decides how each is stored."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.errors import CorruptDataError
from maxbrod.layouts.kafka.aborted import AbortedTransactions
from maxbrod.layouts.kafka.compression import CompressionMode
from maxbrod.layouts.kafka.cutting import at_holes, where_full
from maxbrod.layouts.kafka.frames import encode_frame
from maxbrod.layouts.kafka.names import segment_path
from maxbrod.layouts.kafka.pieces import DescribedBatches, as_piece
from maxbrod.layouts.kafka.slicing import SliceWriter
from maxbrod.model import Codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.batch.looking import Look
    from maxbrod.layouts.kafka.compression import Compression
    from maxbrod.layouts.kafka.objects import Objects, OpenObject
    from maxbrod.layouts.kafka.slices import SegmentLimits, Slice
    from maxbrod.layouts.kafka.unpacking import Unpacker

SAMPLE_BYTES: Final = 1 << 20
"""So much of a segment is compressed on trial."""
SAMPLE_LEVEL: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionName:
    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """What every partition of a task has in common."""

    compression: Compression
    limits: SegmentLimits
    exact_timestamps: bool
    look: Look | None
    unpacker: Unpacker


class PartitionWriter:
    """Takes whole, checked batches in order of offsets. Nothing of it exists before the archive's block has ended."""

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
        """A hole this wide is shown by the catalog, and therefore must lie between two batches."""
        return self._how.limits.hole_offsets_min

    @property
    def slices(self) -> tuple[Slice, ...]:
        """What is to be committed to the catalog, once the archive's block has ended well."""
        return tuple(self._finished)

    def append(self, data: NDArray[np.uint8], headers: BatchHeaders, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """`data` may be used again when this returns. `aborted` is what the fetch answer said (producer, first)."""
        if not len(headers):
            return
        self._aborted.learn(aborted, int(headers["base_offset"][0]))
        for piece in self._pieces(data, headers):
            self._refuse_disorder(piece)
            self._waiting.extend(at_holes(piece, self._how.limits))
            self._drain(last=False)
        self._waiting = deque(piece.copied() for piece in self._waiting)

    def close(self) -> None:
        """End the last segment. Without a batch there is none."""
        self._drain(last=True)
        self._end_segment()

    def _pieces(self, data: NDArray[np.uint8], headers: BatchHeaders) -> Iterator[DescribedBatches]:
        if self._how.compression.mode is CompressionMode.ZSTD:
            for unpacked, found, codec in self._how.unpacker.unpack(data, headers):
                yield as_piece(unpacked, found, exact=True, codec=codec)
        else:
            yield as_piece(data, headers, exact=self._how.exact_timestamps, look=self._how.look)

    def _refuse_disorder(self, piece: DescribedBatches) -> None:
        """Rows must tile, so an offset that comes twice is not written at all."""
        facts = piece.facts
        before = np.append(np.int64(self._last_offset), facts.last_offset[:-1])
        wrong = np.flatnonzero(facts.first_offset <= before)
        if wrong.size:
            raise CorruptDataError(
                "a batch does not come after the one before it",
                operation="archive",
                object_name=str(self._name),
                offset=int(facts.first_offset[wrong[0]]),
                hint="read the partition again; if it stays so, the broker's log is damaged there",
            )
        self._last_offset = int(facts.last_offset[-1])

    def _drain(self, *, last: bool) -> None:
        """Write what waits, unless it takes more of it to decide how."""
        while self._waiting:
            if self._framed is None:
                self._framed = self._choose_framed(last=last)
                if self._framed is None:
                    return
            piece = self._waiting.popleft()
            batches = where_full(piece, self._how.limits, self._segment_bytes, self._segment_records)
            self._write(piece if batches is None else piece.take(slice(batches)))
            if batches is not None:
                self._end_segment()
                if batches < len(piece):
                    self._waiting.appendleft(piece.take(slice(batches, None)))

    def _choose_framed(self, *, last: bool) -> bool | None:
        """Whether the next segment goes into frames; None while there is too little of it to say."""
        mode = self._how.compression.mode
        if mode is not CompressionMode.AUTO:
            return mode is CompressionMode.ZSTD
        if not last and sum(len(piece.log) for piece in self._waiting) < SAMPLE_BYTES:
            return None
        return shrinks_to_half(self._waiting)

    def _write(self, piece: DescribedBatches) -> None:
        hole = self._how.limits.hole_offsets_min
        if self._slice is not None and int(piece.facts.first_offset[0]) - self._slice.tally.end_offset >= hole:
            self._end_slice()
        if self._slice is None:
            self._slice = self._open_slice(int(piece.facts.first_offset[0]), framed=bool(self._framed))
        self._slice.add(piece)
        self._aborted.end(piece)
        self._segment_bytes += len(piece.log)
        self._segment_records += int(piece.facts.records.sum())

    def _open_slice(self, base_offset: int, *, framed: bool) -> SliceWriter:
        level = self._how.compression.level if framed else None
        if self._packed:
            return SliceWriter(self._objects.pack(framed=framed, owner=self), level)
        if self._object is None:
            self._object = self._objects.create(self._segment_path(base_offset, framed=framed))
        return SliceWriter(self._object, level)

    def _segment_path(self, base_offset: int, *, framed: bool) -> str:
        name = self._name
        return segment_path(
            topic=name.topic,
            topic_id=name.topic_id,
            partition=name.partition,
            base_offset=base_offset,
            framed=framed,
        )

    def _end_slice(self) -> None:
        if self._slice is not None:
            tally = self._slice.tally
            self._finished.append(self._slice.finish(self._aborted.touching(tally.base_offset, tally.end_offset)))
            self._slice = None

    def make_way(self) -> None:
        """Another partition needs the pack: end the slice there. What comes next will be another slice."""
        self._end_slice()
        self._framed = None

    def _end_segment(self) -> None:
        self._end_slice()
        self._framed = None
        self._segment_bytes = self._segment_records = 0
        if self._object is not None:
            written, self._object = self._object, None
            self._objects.commit(written)


def shrinks_to_half(pieces: Iterable[DescribedBatches]) -> bool:
    """Whether the first of these bytes compress to half or less. Batches that came compressed never do."""
    sample: list[Any] = []
    wanted = SAMPLE_BYTES
    worth = False
    for piece in pieces:
        sample.append(piece.log[:wanted])
        worth = worth or bool((piece.headers.codec == Codec.NONE).any())
        wanted -= len(sample[-1])
        if not wanted:
            break
    if not worth:
        return False
    joined = sample[0] if len(sample) == 1 else np.concatenate(sample)
    return 2 * len(encode_frame(joined, SAMPLE_LEVEL)) <= len(joined)
