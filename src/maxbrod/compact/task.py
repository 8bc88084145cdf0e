"""Merges groups of slices in a worker: copies whole batches in order of offsets into one object for each group.

The digest of every source and the CRC of every batch are checked on the way. The records stay as they are, unless they
are to be compressed anew. A damaged source is an answer, not an error: its group stays as it is, the others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.headers import BatchHeaders, walk
from maxbrod.compact.plan import Written
from maxbrod.errors import CorruptDataError, MaxbrodError, TruncatedDataError, UnsupportedFormatError
from maxbrod.layouts.kafka.contents import Entry
from maxbrod.layouts.kafka.format import Compression, CompressionMode, Slice, is_framed, segment_path
from maxbrod.layouts.kafka.frames import FRAME_BYTES, FrameEncoder, SliceDigest, Unpacker, encode_frame
from maxbrod.layouts.kafka.reader import HINT, read_log, read_logs
from maxbrod.layouts.kafka.writer import SAMPLE_BYTES, SAMPLE_LEVEL, OpenObject
from maxbrod.model import Codec
from maxbrod.storage.interface import Storage, Writer
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.work.reach import Place

_LARGE_BYTES: Final = 4 << 20
"""A log of this size is read in parts, and its stored bytes are copied as they are. Smaller ones are read whole."""
_TINY_BYTES: Final = 128 << 10
"""Logs below this size are checked and written together, because each call costs more than their bytes."""
_BLOCK_BYTES: Final = 4 << 20
_FRAME_HEADER_BYTES: Final = 64
"""The most that a frame adds to bytes that do not shrink: its header, and those of its blocks."""
_BLOCK_SLICES: Final = 512
_BLOCKS_AHEAD: Final = 6
_READERS: Final = 8
"""Threads that wait for a distant store: it takes long to answer, also for a few bytes.

A directory is read without threads. Merging 0.5 GB in one took 0.94 s of processor time with buffers that were filled
ahead, and 0.64 s without. About half of the difference were page faults of those buffers.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeItem:
    """A group as a worker gets it. `number` identifies its answer."""

    number: int
    topic: str
    topic_id: str
    partition: int
    parts: tuple[tuple[Slice, ...], ...]
    slices: tuple[Slice, ...]
    """The slice of each part, for the table of contents; its place is not known yet."""
    run_id: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutcome:
    number: int
    written: tuple[Written, ...] = ()
    failure: MaxbrodError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeContext:
    """The context that all tasks share. Contains secrets."""

    place: Place
    compression: Compression


def merge_groups(context: MergeContext, items: Sequence[MergeItem]) -> list[MergeOutcome]:
    """Merge groups one after the other."""
    storage = open_storage(context.place.url, context.place.storage)
    return [merge_group(storage, item, context.compression) for item in items]


def merge_group(storage: Storage, item: MergeItem, compression: Compression) -> MergeOutcome:
    """Never raises what concerns this group alone."""
    try:
        return MergeOutcome(number=item.number, written=tuple(_merge(storage, item, compression)))
    except MaxbrodError as error:
        return MergeOutcome(number=item.number, failure=error)


class _LargerError(Exception):
    """The written object is larger than its sources."""


def _merge(storage: Storage, item: MergeItem, compression: Compression) -> list[Written]:
    sources = [source for part in item.parts for source in part]
    framed = _choose_framed(storage, sources, compression)
    if framed and compression.mode is CompressionMode.AUTO:
        plain = sum(source.raw_bytes for source in sources if not is_framed(source.path))
        headers = _FRAME_HEADER_BYTES * (len(sources) + plain // FRAME_BYTES)
        with suppress(_LargerError):
            return _write(storage, item, compression, bytes_max=headers + sum(source.bytes for source in sources))
        # The frames of the sources are of a higher level: they are copied, and cost what they did.
        return _write(storage, item, compression, framed=True, as_stored=True)
    return _write(storage, item, compression, framed=framed)


def _write(
    storage: Storage,
    item: MergeItem,
    compression: Compression,
    *,
    framed: bool = True,
    as_stored: bool = False,
    bytes_max: int | None = None,
) -> list[Written]:
    """Write the object. `as_stored`: frames are not made anew. _LargerError: it takes more bytes; nothing is left."""
    path = segment_path(
        topic=item.topic,
        topic_id=item.topic_id,
        partition=item.partition,
        base_offset=item.parts[0][0].base_offset,
        framed=framed,
    )
    found = []
    pool = ThreadPoolExecutor(_READERS, "read") if storage.distant else nullcontext()
    with pool as readers, storage.create(path) as writer:
        opened = OpenObject(path, writer, strong=storage.signing is not None)
        for part, joined in zip(item.parts, item.slices, strict=True):
            out = _NewSlice(path, writer, compression, framed=framed, strong=opened.strong)
            for block, logs in _read_blocks(storage, part, readers, whole=not as_stored):
                if logs is None:
                    for source in block:
                        _copy_large(storage, source, out, readers)
                else:
                    _copy_small(storage, block, logs, out)
            written = out.finish()
            found.append(written)
            opened.entries.append(
                Entry(
                    topic=item.topic,
                    topic_id=item.topic_id,
                    partition=item.partition,
                    slice=replace(joined, **{field.name: getattr(written, field.name) for field in fields(written)}),
                    epochs=tuple(out.epochs),
                )
            )
        if bytes_max is not None and sum(written.bytes for written in found) > bytes_max:
            raise _LargerError
        opened.finish(item.run_id, level=item.level)
    return found


def _choose_framed(storage: Storage, sources: Sequence[Slice], compression: Compression) -> bool:
    """True if the object is stored in frames: if some of it was, or if a sample shrinks to half.

    Without frames, what was in frames would take its raw bytes again. What does not shrink costs a few bytes in frames.
    """
    if compression.mode is not CompressionMode.AUTO:
        return compression.mode is CompressionMode.ZSTD
    if any(source.bytes < source.raw_bytes for source in sources if is_framed(source.path)):
        return True
    plain = [source for source in sources if source.codec == Codec.NONE.name.lower()]
    if not plain:
        return False
    sample = _sample(storage, plain)
    return 2 * len(encode_frame(sample, SAMPLE_LEVEL)) <= len(sample)


def _sample(storage: Storage, sources: Sequence[Slice]) -> NDArray[np.uint8]:
    logs: list[NDArray[np.uint8]] = []
    for source in sources:
        large = source.raw_bytes >= _LARGE_BYTES
        logs.append(
            next(read_logs(storage, source, request_bytes=SAMPLE_BYTES))[0] if large else read_log(storage, source)
        )
        if sum(log.size for log in logs) >= SAMPLE_BYTES:
            break
    return np.concatenate(logs)[:SAMPLE_BYTES]


def _read_blocks(
    storage: Storage, sources: Sequence[Slice], readers: ThreadPoolExecutor | None, *, whole: bool
) -> Iterator[tuple[list[Slice], list[NDArray[np.uint8]] | None]]:
    """Yield blocks of sources with their logs; a large source alone, without. None has its log unless `whole`."""
    coming: deque[tuple[list[Slice], list[Callable[[], NDArray[np.uint8]]] | None]] = deque()
    ahead = 0 if readers is None else _BLOCKS_AHEAD
    for block in (*_blocks(sources), None):
        if block is not None:
            large = not whole or block[0].raw_bytes >= _LARGE_BYTES
            coming.append((block, None if large else [_reading(storage, source, readers) for source in block]))
        while len(coming) > (0 if block is None else ahead):
            first, logs = coming.popleft()
            yield first, None if logs is None else [log() for log in logs]


def _reading(storage: Storage, source: Slice, readers: ThreadPoolExecutor | None) -> Callable[[], NDArray[np.uint8]]:
    return partial(read_log, storage, source) if readers is None else readers.submit(read_log, storage, source).result


def _blocks(sources: Sequence[Slice]) -> Iterator[list[Slice]]:
    block: list[Slice] = []
    size = 0
    for source in sources:
        alone = source.raw_bytes >= _TINY_BYTES
        if block and (alone or size + source.raw_bytes > _BLOCK_BYTES or len(block) == _BLOCK_SLICES):
            yield block
            block, size = [], 0
        if alone:
            yield [source]
            continue
        block.append(source)
        size += source.raw_bytes
    if block:
        yield block


def _copy_small(storage: Storage, block: Sequence[Slice], logs: Sequence[NDArray[np.uint8]], out: _NewSlice) -> None:
    """Copy logs whose digests have been checked: their batches are checked all at once."""
    data = logs[0] if len(logs) == 1 else np.concatenate(logs)
    starts = np.cumsum([0, *(log.size for log in logs)])
    try:
        headers = walk(data, check_crc=True)
    except (CorruptDataError, UnsupportedFormatError) as error:
        place = int(np.searchsorted(starts, error.position or 0, side="right")) - 1
        raise _about(storage, block[min(place, len(block) - 1)], error) from error
    firsts = np.searchsorted(headers.position, starts)
    for source, first, stop, start in zip(
        block, firsts[:-1].tolist(), firsts[1:].tolist(), starts.tolist(), strict=False
    ):
        whole = first < len(headers) and int(headers.position[first]) == start and not headers.tail
        if not whole:
            raise _about(storage, source, TruncatedDataError("it does not consist of whole batches"))
        seen = _Seen(storage, source)
        seen.add(headers if len(block) == 1 else headers.take(slice(first, stop)))
        seen.finish()
    out.note_epochs(headers)
    out.add(data, headers)


def _copy_large(storage: Storage, source: Slice, out: _NewSlice, readers: ThreadPoolExecutor | None) -> None:
    """Copy the stored bytes while the batches are checked, if they stay as they are stored."""
    seen = _Seen(storage, source)
    same = out.keeps(framed=is_framed(source.path))
    for data, headers in read_logs(storage, source, ahead=readers, on_stored=out.copy if same else None):
        seen.add(headers)
        out.note_epochs(headers)
        if not same:
            out.add(data, headers)
    seen.finish()
    if same:
        out.raw_bytes += source.raw_bytes


class _Seen:
    """Compares the batches of a source with what the catalog says of it."""

    def __init__(self, storage: Storage, source: Slice) -> None:
        self._storage, self._source = storage, source
        self._last = source.base_offset - 1
        self._records: int | None = 0

    def add(self, headers: BatchHeaders) -> None:
        last = headers.last_offset
        wrong = np.flatnonzero(np.diff(last, prepend=np.int64(self._last)) <= 0)
        if wrong.size or int(last[-1]) >= self._source.end_offset:
            offset = int(headers["base_offset"][wrong[0] if wrong.size else -1])
            raise _about(
                self._storage,
                self._source,
                CorruptDataError(
                    "a batch is outside the offsets of its slice, or does not follow the batch before it", offset=offset
                ),
            )
        self._last = int(last[-1])
        # A compressed message of magic 0 or 1 does not say how many it holds.
        unknown = self._records is None or bool((headers["count"] < 0).any())
        self._records = None if unknown else (self._records or 0) + int(headers["count"].sum())

    def finish(self) -> None:
        if self._records is not None and self._records != self._source.records:
            message = f"it has {self._records} records, but the catalog says {self._source.records}"
            raise _about(self._storage, self._source, CorruptDataError(message))


def _about(storage: Storage, source: Slice, error: MaxbrodError) -> MaxbrodError:
    """The error with the object and the offset that it concerns."""
    error.object_name = storage.name_of(source.path)
    error.offset = source.base_offset if error.offset is None else error.offset
    error.hint = error.hint or HINT
    return error


class _NewSlice:
    """One row's slice of the new object."""

    def __init__(
        self, path: str, writer: Writer, compression: Compression, *, framed: bool, strong: bool = False
    ) -> None:
        self._path, self._writer, self._framed = path, writer, framed
        self._position = writer.size
        self._digest = SliceDigest(strong=strong)
        self._frames = FrameEncoder(compression.level) if framed else None
        self._unpacker = Unpacker() if compression.mode is CompressionMode.ZSTD else None
        self.raw_bytes = 0
        self.epochs: list[tuple[int, int]] = []
        """The beginnings of leader epochs: offset and epoch."""

    def note_epochs(self, headers: BatchHeaders) -> None:
        epochs = headers["leader_epoch"]
        new = np.ones(len(epochs), np.bool_)
        new[1:] = epochs[1:] != epochs[:-1]
        new[0] = not self.epochs or int(epochs[0]) != self.epochs[-1][1]
        self.epochs += zip(headers["base_offset"][new].tolist(), epochs[new].tolist(), strict=True)

    def keeps(self, *, framed: bool) -> bool:
        """True if bytes that are stored in frames, or not, may be copied as they are."""
        return framed == self._framed and self._unpacker is None

    def add(self, data: NDArray[np.uint8], headers: BatchHeaders) -> None:
        if self._unpacker is None:
            self._add_log(data)
            return
        for unpacked, found, _ in self._unpacker.unpack(data, headers):
            self._add_log(unpacked[: found.end])

    def copy(self, stored: NDArray[np.uint8]) -> None:
        """Append stored bytes; the caller counts what they are a log of."""
        self._flush()
        self._store(stored)

    def finish(self) -> Written:
        self._flush()
        return Written(
            path=self._path,
            position=self._position,
            bytes=self._writer.size - self._position,
            raw_bytes=self.raw_bytes,
            digest=str(self._digest),
        )

    def _add_log(self, log: NDArray[np.uint8]) -> None:
        self.raw_bytes += log.size
        if self._frames is None:
            self._store(log)
            return
        for frame in self._frames.encode(log):
            self._store(frame)

    def _flush(self) -> None:
        if self._frames is not None:
            for frame in self._frames.finish():
                self._store(frame)

    def _store(self, data: NDArray[np.uint8]) -> None:
        self._writer.write(data)
        self._digest.add(data)
