"""Loads slices of an archive in chunks: whole record batches, checked, as a broker would send them.

A chunk has about 4 MiB. Where it begins is known once the one before it was loaded. So a slice is explored from its
start on, and can be read at random after that. Everything here blocks, and runs in threads.

The leader epoch of every batch becomes -1. A consumer that moves on to another cluster must not carry over an epoch
that means nothing there. The checksum of a batch does not cover the field.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import numpy as np

from maxbrod.batch.headers import LOG_OVERHEAD_BYTES, NEWEST_MAGIC, BatchHeaders, walk, walk_sound
from maxbrod.errors import CorruptDataError, MaxbrodError, TruncatedDataError, naming
from maxbrod.layouts.kafka.format import Slice, is_framed
from maxbrod.layouts.kafka.frames import FrameDecoder, measure_frame
from maxbrod.layouts.kafka.reader import HINT
from maxbrod.layouts.reader import read_logs
from maxbrod.storage.interface import ByteRange

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.batch.cuts import Cut
    from maxbrod.storage.interface import Storage

    Pieces = Iterator[tuple[NDArray[np.uint8], BatchHeaders]]

CHUNK_BYTES: Final = 4 << 20
_EPOCH_BYTES: Final = np.arange(12, 16)
"""Where a batch of magic 2 has its leader epoch. In older messages this is the checksum."""
_OPEN_MAX: Final = 64
"""Segments of other layouts that are being read at a time. Each holds what its decoder holds."""


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk begins in its slice.

    In the native layout: a stored byte, and the bytes of the log to skip from there, because a frame is decoded from
    its start. In other layouts: the number of a piece, and of a chunk in it.
    """

    position: int = 0
    skip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedChunk:
    """Whole batches in the order of offsets; none if all were cut off. The arrays have one value for each batch."""

    place: ChunkPlace
    data: NDArray[np.uint8]
    headers: BatchHeaders
    ends: NDArray[np.int64]
    """The first offset after each batch."""
    edges: NDArray[np.int64]
    """The first byte after each batch."""
    reach: int
    """The first offset that a later chunk may hold."""

    @property
    def bytes(self) -> int:
        return self.data.nbytes

    def first_from(self, offset: int) -> int:
        """The number of the batch that contains the offset, or of the first one after it."""
        return int(np.searchsorted(self.ends, offset, side="right"))

    def part(self, first: int, bytes_max: int) -> tuple[memoryview, int]:
        """The batches from this one on that fit, at least one; and the number after the last."""
        start = int(self.headers.position[first])
        after = max(int(np.searchsorted(self.edges, start + bytes_max, side="right")), first + 1)
        return memoryview(self.data)[start : int(self.edges[after - 1])], after


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Chunks that follow each other, where the next one begins, and what is wrong there."""

    chunks: tuple[ServedChunk, ...]
    following: ChunkPlace | None
    """None: the slice ends."""
    failure: MaxbrodError | None = None


class SliceSource(Protocol):
    """One slice, to be loaded from any place that is known."""

    def load(self, place: ChunkPlace, reached: int, count: int) -> Loaded:
        """Load about `count` chunks from a place, of which every batch ends after the offset `reached`.

        Damage is in the result, after the sound batches before it. UnavailableError: the store did not answer.
        ObjectNotFoundError: the object is gone.
        """


def source_of(storage: Storage, stored: Slice, cut: Cut) -> SliceSource:
    """The source of a slice, of which only the records that `cut` selects are served."""
    if stored.details is not None or stored.erased is not None:
        return _Converted(storage, stored, cut)
    return (_Framed if is_framed(stored.path) else _Plain)(storage, stored, cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Portion:
    """Bytes of a log, in memory of our own, whether more follow, and the place so many bytes after its start."""

    log: NDArray[np.uint8]
    more: bool
    after: Callable[[int], ChunkPlace]


class _Native:
    """A slice of the native layout."""

    def __init__(self, storage: Storage, stored: Slice, cut: Cut) -> None:
        self._storage, self._stored, self._limits = storage, stored, cut

    def load(self, place: ChunkPlace, reached: int, count: int) -> Loaded:
        size = count * CHUNK_BYTES
        with naming(self._storage.name_of(self._stored.path)):
            while True:
                portion = self._read(place, size)
                headers, error = walk_sound(portion.log)
                if len(headers) or error is not None or not portion.more:
                    break
                # The first batch is larger than all that was read.
                size = max(2 * size, _batch_bytes(portion.log))
            if error is None and not portion.more and headers.tail:
                error = TruncatedDataError(f"the last batch is cut off after {headers.tail} bytes", hint=HINT)
            headers, misplaced = _in_place(headers, reached, self._stored.end_offset)
            failure = misplaced or error
            if failure is not None:
                failure.object_name = failure.object_name or self._storage.name_of(self._stored.path)
            groups = list(_groups(headers))
            if failure is None and portion.more:
                # The last one may go on in what was not read: a chunk is the same wherever its loading began.
                complete = [
                    rows for rows in groups if int(headers.position[rows.start]) + CHUNK_BYTES <= portion.log.size
                ]
                groups = complete or groups[:1]
            end = int(headers.position[groups[-1].stop - 1] + headers.size[groups[-1].stop - 1]) if groups else 0
            return Loaded(
                chunks=tuple(_cut_out(portion.log, headers, groups, portion.after, self._limits)),
                following=portion.after(end) if portion.more or failure is not None else None,
                failure=failure,
            )

    def _read(self, place: ChunkPlace, size: int) -> _Portion:
        """Read about so many bytes of the log."""
        raise NotImplementedError

    def _stored_bytes(self, start: int, size: int) -> list[memoryview]:
        """Bytes of the slice, in requests of the size of a chunk, which a store answers at the same time."""
        first, end = self._stored.position + start, self._stored.position + min(start + size, self._stored.bytes)
        parts = [ByteRange(start=at, size=min(CHUNK_BYTES, end - at)) for at in range(first, end, CHUNK_BYTES)]
        return list(self._storage.get_ranges(self._stored.path, parts))


class _Plain(_Native):
    def _read(self, place: ChunkPlace, size: int) -> _Portion:
        parts = self._stored_bytes(place.position, size)
        log = np.concatenate([np.frombuffer(part, np.uint8) for part in parts] or [np.empty(0, np.uint8)])
        more = place.position + len(log) < self._stored.bytes
        return _Portion(log=log, more=more, after=lambda size: ChunkPlace(place.position + size))


class _Framed(_Native):
    """A log in independent zstd frames."""

    def _read(self, place: ChunkPlace, size: int) -> _Portion:
        wanted = place.skip + size
        ask = int(wanted * min(1.1 * self._stored.bytes / max(self._stored.raw_bytes, 1), 1.0)) + CHUNK_BYTES // 16
        while True:
            data = memoryview(b"".join(self._stored_bytes(place.position, ask)))
            frames = _frames_in(data, place.position, wanted)
            whole = place.position + len(data) >= self._stored.bytes
            if frames or whole:
                break
            ask *= 2
        if not frames and data:
            raise TruncatedDataError(f"the last frame is cut off after {len(data)} bytes", hint=HINT)
        content = sum(size for _, _, size in frames)
        decoder = FrameDecoder(content)
        end = frames[-1][0] + frames[-1][1] if frames else 0
        log = np.concatenate([np.empty(0, np.uint8), *decoder.decode(data[:end])])
        stored = [place.position + at for at, _, _ in frames]
        edges = np.cumsum([0, *(size for _, _, size in frames)])

        def after(size: int) -> ChunkPlace:
            target = place.skip + size
            frame = int(np.searchsorted(edges, target, side="right")) - 1
            start = stored[frame] if frame < len(stored) else place.position + end
            return ChunkPlace(start, target - int(edges[frame]))

        return _Portion(log=log[place.skip :], more=place.position + end < self._stored.bytes, after=after)


def _frames_in(data: memoryview, done: int, wanted: int) -> list[tuple[int, int, int]]:
    """Position, stored size and content size of the frames that hold so many bytes: a few can claim any number."""
    found: list[tuple[int, int, int]] = []
    at = content = 0
    while content <= wanted and (frame := measure_frame(data, at, done)) is not None:
        found.append((at, *frame))
        at, content = at + frame[0], content + frame[1]
    return found


class _Converted:
    """A segment of another layout, or one with erased records: its records are encoded into batches on the way.

    Such a segment is read from its start. Where a consumer reads on, so does the open reader.
    """

    _opened: ClassVar[OrderedDict[_Converted, None]] = OrderedDict()
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, storage: Storage, stored: Slice, cut: Cut) -> None:
        self._storage, self._stored, self._limits = storage, stored, cut
        self._lock = threading.Lock()
        self._pieces: Pieces | None = None
        self._next = 0

    def load(self, place: ChunkPlace, reached: int, count: int) -> Loaded:
        del reached, count  # pieces are as large as the layout makes them, and its reader checks them
        with self._lock:
            pieces = self._pieces_up_to(place.position)
            try:
                for data, headers in pieces:
                    number, self._next = self._next, self._next + 1
                    if number == place.position:
                        return self._piece(data, headers, place)
            except MaxbrodError as error:
                self._close()
                if error.retryable:
                    raise
                return Loaded(chunks=(), following=ChunkPlace(self._next), failure=error)
            self._close()
            return Loaded(chunks=(), following=None)

    def _piece(self, data: NDArray[np.uint8], headers: BatchHeaders, place: ChunkPlace) -> Loaded:
        positions = headers.position.tolist()
        starts: dict[int, int] = {}

        def after(size: int) -> ChunkPlace:
            return ChunkPlace(place.position, starts.setdefault(size, len(starts)))

        # Memory of our own: readers may yield the same buffer again.
        log = data[: int(headers.position[-1] + headers.size[-1])].copy() if positions else data[:0]
        chunks = _cut_out(log, headers, list(_groups(headers)), after, self._limits)
        rest = tuple(chunk for chunk in chunks if chunk.place.skip >= place.skip)
        return Loaded(chunks=rest, following=ChunkPlace(place.position + 1))

    def _pieces_up_to(self, number: int) -> Pieces:
        if self._pieces is None or self._next > number:
            self._pieces, self._next = read_logs(self._storage, self._stored), 0
        with self._guard:
            self._opened[self] = None
            self._opened.move_to_end(self)
            idle = next(iter(self._opened)) if len(self._opened) > _OPEN_MAX else None
            if idle is not None:
                del self._opened[idle]
                idle._pieces = None  # noqa: SLF001 - one of the same class; it begins again if it is needed
        return self._pieces

    def _close(self) -> None:
        self._pieces = None
        with self._guard:
            self._opened.pop(self, None)


def _batch_bytes(log: NDArray[np.uint8]) -> int:
    """The size of the first batch by its header; 0 if that is incomplete."""
    if log.size < LOG_OVERHEAD_BYTES:
        return 0
    return LOG_OVERHEAD_BYTES + int.from_bytes(log[LOG_OVERHEAD_BYTES - 4 : LOG_OVERHEAD_BYTES].tobytes(), "big")


def _in_place(headers: BatchHeaders, reached: int, end: int) -> tuple[BatchHeaders, CorruptDataError | None]:
    """The batches up to the first misplaced one. No checksum of a batch covers its base offset."""
    ends = headers.last_offset + 1
    misplaced = (np.diff(ends, prepend=reached) <= 0) | (ends > end)
    if not misplaced.any():
        return headers, None
    first = int(misplaced.argmax())
    sound = headers.take(slice(first))
    sound = BatchHeaders(
        position=sound.position, size=sound.size, fields=sound.fields, end=int(headers.position[first])
    )
    message = f"a batch says that it ends with offset {int(ends[first]) - 1}"
    return sound, CorruptDataError(message, position=sound.end, offset=reached, hint=HINT)


def _groups(headers: BatchHeaders) -> Iterator[slice]:
    """The rows of each chunk: as many batches as fit, at least one."""
    edges, first = headers.position + headers.size, 0
    while first < len(headers):
        limit = int(headers.position[first]) + CHUNK_BYTES
        after = max(int(np.searchsorted(edges, limit, side="right")), first + 1)
        yield slice(first, after)
        first = after


def _cut_out(
    log: NDArray[np.uint8],
    headers: BatchHeaders,
    groups: list[slice],
    after: Callable[[int], ChunkPlace],
    cut: Cut,
) -> Iterator[ServedChunk]:
    """Make a chunk of each group. Each has memory of its own, so that memory is free once a chunk is."""
    for group in groups:
        rows = headers.take(group)
        start, end = int(rows.position[0]), int(rows.position[-1] + rows.size[-1])
        data = log if len(groups) == 1 and not start else log[start:end].copy()
        moved = BatchHeaders(position=rows.position - start, size=rows.size, fields=rows.fields, end=end - start)
        yield _chunk(data, moved, after(start), cut)


def _chunk(data: NDArray[np.uint8], headers: BatchHeaders, place: ChunkPlace, cut: Cut) -> ServedChunk:
    reach = int(headers.last_offset[-1]) + 1
    if cut.end_offset is not None:
        headers = headers.take(headers.last_offset < cut.end_offset)
    if cut.until_ms is not None:
        data, headers = _until(data, headers, cut)
    newest = headers.position[headers["magic"] == NEWEST_MAGIC]
    if not data.flags.writeable:
        data = data.copy()
    data[newest[:, None] + _EPOCH_BYTES] = 0xFF
    return ServedChunk(
        place=place,
        data=data,
        headers=headers,
        ends=headers.last_offset + 1,
        edges=headers.position + headers.size,
        reach=reach,
    )


def _until(data: NDArray[np.uint8], headers: BatchHeaders, cut: Cut) -> tuple[NDArray[np.uint8], BatchHeaders]:
    """The batches without records at or after the time. Only batches that the time divides are written anew."""
    headers = headers.take(cut.touches(headers))
    outside, across = cut.outside_and_across(data, headers)
    # The highest timestamp of a compressed message of magic 0 or 1 may be unknown.
    across |= headers["magic"] != NEWEST_MAGIC
    if not outside.any() and not across.any():
        kept = headers
    else:
        kept = headers.take(~outside)
        across = across[~outside]
    pieces = []
    for row, (start, size) in enumerate(zip(kept.position.tolist(), kept.size.tolist(), strict=True)):
        piece = _kept_records(data, kept.take(np.array([row])), cut) if across[row] else data[start : start + size]
        pieces.append(piece)
    log = np.concatenate([np.empty(0, np.uint8), *pieces])
    return log, walk(log, check_crc=False)


def _kept_records(data: NDArray[np.uint8], headers: BatchHeaders, cut: Cut) -> NDArray[np.uint8]:
    """One batch with those of its records that `cut` keeps."""
    # Loading numba costs seconds, and few batches are divided.
    from maxbrod.batch.columns import number_array, number_column  # noqa: PLC0415
    from maxbrod.batch.decode import decode  # noqa: PLC0415
    from maxbrod.batch.encode import encode  # noqa: PLC0415

    records = decode(data, headers)
    offset, timestamp = (number_column(records.column(name)) for name in ("offset", "timestamp_ms"))
    keep = cut.keeps(offset, timestamp)
    if keep.all():
        start = int(headers.position[0])
        return data[start : start + int(headers.size[0])]
    kept = records.filter(number_array(keep))
    return encode(kept, codec=headers.codec_at(0), batch_bytes_max=(1 << 31) - 1) if kept.num_rows else data[:0]


def last_end(source: SliceSource, first: int, end: int) -> int | None:
    """The end of the last batch of a slice that is served; None if there is none. Reads all of it."""
    place: ChunkPlace | None = ChunkPlace()
    found, reached = None, first
    while place is not None:
        loaded = source.load(place, reached, 1)
        for chunk in loaded.chunks:
            found = int(chunk.ends[-1]) if len(chunk.ends) else found
            reached = chunk.reach
        if loaded.failure is not None:
            # What lies behind is unknown: the log goes on, and whoever gets here is told.
            return end
        place = loaded.following
    return found
