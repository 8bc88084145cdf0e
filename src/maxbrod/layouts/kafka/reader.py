"""Reads the log of a slice as it was written: fetches it, checks its digest, decodes its frames.

`read_log` returns all of it and checks it first. `read_logs` yields it in parts, in bounded memory; the digest is known
only after the last part, but every batch has been checked by its own CRC before. All intact batches before the first
damage are yielded before the error is raised, regardless of how the parts are split: how far a damaged slice can be
read depends on its bytes alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.headers import LOG_OVERHEAD_BYTES, BatchHeaders, walk_sound
from maxbrod.errors import (
    CorruptDataError,
    MaxbrodError,
    ObjectNotFoundError,
    TruncatedDataError,
    UnsupportedFormatError,
    naming,
)
from maxbrod.layouts.kafka.format import StoredSlice, is_framed
from maxbrod.layouts.kafka.frames import CHECKSUM, CONTENT_BYTES_MAX, STRONG, FrameDecoder, SliceDigest
from maxbrod.storage.interface import Storage

Part = tuple[memoryview, CorruptDataError | None]

_RATIO_MAX: Final = 1000
REQUEST_BYTES: Final = 8 << 20
"""The size of one request to the storage."""
_AHEAD: Final = 2
"""Requests under way while a part is used, where an executor is given."""
_COPIED_BYTES: Final = 4 << 20
"""A part of this size is not copied; smaller ones are, because every buffer that is yielded costs its reader."""
HINT: Final = "read it again; if it persists, the object is damaged: back these offsets up again, or use a copy"

HINT_MISSING: Final = "restore the object from a copy of the archive, or back these offsets up again"


def read_log(storage: Storage, stored: StoredSlice) -> NDArray[np.uint8]:
    """All batches of a slice. CorruptDataError, TruncatedDataError: they are not those that were written."""
    with _about(storage, stored):
        part = storage.get_range(stored.path, stored.position, stored.bytes)
        log, digest = np.frombuffer(part, np.uint8), SliceDigest.like(stored.digest)
        digest.add(log)
        _check_digest(stored, digest)
        if is_framed(stored.path):
            frames = FrameDecoder(stored.raw_bytes)
            log = np.concatenate([np.empty(0, np.uint8), *frames.decode(part)])
            frames.finish()
        _check_size(stored, log.size)
        return log


def read_logs(
    storage: Storage,
    stored: StoredSlice,
    *,
    request_bytes: int = REQUEST_BYTES,
    check_crc: bool = True,
    ahead: Executor | None = None,
    on_stored: Callable[[NDArray[np.uint8]], None] | None = None,
) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
    """The same in parts of whole batches, each with its headers. Uses about `request_bytes` of memory at a time.

    With `ahead`, the next two parts are fetched while the caller uses the current one. `on_stored` gets the stored
    bytes, in order, before they are checked.
    """
    with _about(storage, stored):
        digest, size = SliceDigest.like(stored.digest), 0
        end = stored.position + stored.bytes
        fetched = _parts(storage, stored.path, stored.position, end, request_bytes, ahead)
        frames = FrameDecoder(stored.raw_bytes) if is_framed(stored.path) else None
        parts = _log(fetched, digest, frames, on_stored)
        try:
            for data, headers in _whole_batches(parts, check_crc=check_crc):
                size += headers.end
                yield data, headers
        except UnsupportedFormatError:
            # A damaged byte may look like an unknown version: the digest distinguishes them.
            for part in fetched:
                digest.add(np.frombuffer(part, np.uint8))
            _check_digest(stored, digest)
            raise
        _check_digest(stored, digest)
        _check_size(stored, size)


def log_bytes_max(size: int) -> int:
    """Return how large the log may be that an object of this size holds: frames of zeros shrink to a thousandth."""
    return max(size * _RATIO_MAX, CONTENT_BYTES_MAX)


def read_object(
    storage: Storage, path: str, start: int, end: int, *, raw_bytes_max: int, digest: SliceDigest
) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
    """The batches from one byte of an object to another, of which nothing else is known, with their headers.

    `digest` gets the stored bytes. Errors as above; positions are those in the part that was read.
    """
    frames = FrameDecoder(raw_bytes_max) if is_framed(path) else None
    with naming(storage.name_of(path)):
        parts = _parts(storage, path, start, end, REQUEST_BYTES, None)
        yield from _whole_batches(_log(parts, digest, frames, None), check_crc=True)


def _parts(
    storage: Storage, path: str, first: int, end: int, request_bytes: int, ahead: Executor | None
) -> Iterator[memoryview]:
    """The stored bytes. If the object ends too early or is damaged, those before that, then the error."""

    def get(start: int) -> Part:
        size = min(request_bytes, end - start)
        try:
            return storage.get_range(path, start, size), None
        except CorruptDataError as error:
            # An encrypted archive knows itself where damage begins.
            stops = storage.head(path).size if error.position is None else error.position
            there = min(max(stops - start, 0), size)
            return storage.get_range(path, start, there) if there else memoryview(b""), error

    starts = range(first, end, request_bytes)
    for part, error in map(get, starts) if ahead is None else _fetched_ahead(get, starts, ahead):
        yield part
        if error is not None:
            raise error


def _fetched_ahead(get: Callable[[int], Part], starts: range, ahead: Executor) -> Iterator[Part]:
    coming = deque(ahead.submit(get, start) for start in starts[:_AHEAD])
    for start in starts[_AHEAD:]:
        part = coming.popleft().result()
        coming.append(ahead.submit(get, start))
        yield part
    while coming:
        yield coming.popleft().result()


def _log(
    parts: Iterable[memoryview],
    digest: SliceDigest,
    frames: FrameDecoder | None,
    on_stored: Callable[[NDArray[np.uint8]], None] | None,
) -> Iterator[NDArray[np.uint8]]:
    """The log, split anywhere."""
    for part in parts:
        data = np.frombuffer(part, np.uint8)
        digest.add(data)
        if on_stored is not None:
            on_stored(data)
        if frames is None:
            yield data
        else:
            yield from frames.decode(part)
    if frames is not None:
        frames.finish()


def _whole_batches(
    parts: Iterable[NDArray[np.uint8]], *, check_crc: bool
) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
    cut = _CutBatch()
    for part in parts:
        whole, rest = cut.complete(part)
        if not whole.size:
            continue
        # What the first walk leaves over is not a batch: the second one says what it is.
        left = yield from _walked(whole, check_crc=check_crc)
        if rest.size:
            left = yield from _walked(np.concatenate([left, rest]) if left.size else rest, check_crc=check_crc)
        cut = _CutBatch(left)
    if cut.size:
        raise TruncatedDataError(f"the last batch is cut off after {cut.size} bytes")


class _CutBatch:
    """The beginning of a batch that continues in the next part."""

    def __init__(self, start: NDArray[np.uint8] | None = None) -> None:
        self._held = [] if start is None or not start.size else [start]
        self.size = 0 if start is None else start.size
        # From its header; 0 if that is incomplete, too.
        self._needed = 0
        if start is not None and start.size >= LOG_OVERHEAD_BYTES:
            length = start[LOG_OVERHEAD_BYTES - 4 : LOG_OVERHEAD_BYTES].tobytes()
            self._needed = LOG_OVERHEAD_BYTES + int.from_bytes(length, "big")

    def complete(self, part: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The batch, with what follows it if that costs little, and the rest of the part. Both are empty if it goes on.

        A large part is not copied for the batch at its beginning.
        """
        if not self._held:
            return part, part[:0]
        missing = self._needed - self.size
        taken = part[:missing] if self._needed and part.size >= max(_COPIED_BYTES, missing) else part
        self._held.append(taken)
        self.size += taken.size
        # A batch may span many parts: wait for all of them and join them once.
        if self.size < self._needed:
            return part[:0], part[:0]
        return np.concatenate(self._held), part[taken.size :]


def _walked(
    data: NDArray[np.uint8], *, check_crc: bool
) -> Generator[tuple[NDArray[np.uint8], BatchHeaders], None, NDArray[np.uint8]]:
    """Yield the whole batches; return the beginning of the one after them."""
    headers, error = walk_sound(data, check_crc=check_crc)
    if len(headers):
        yield data[: headers.end], replace(headers, tail=0)
    if error is not None:
        raise error
    return data[headers.end :]


def _check_digest(stored: StoredSlice, digest: SliceDigest) -> None:
    if not stored.digest.startswith((f"{CHECKSUM}:", f"{STRONG}:")):
        raise UnsupportedFormatError(
            f"the digest {stored.digest!r} has an unknown algorithm",
            offset=stored.base_offset,
            hint="the archive was written by a newer release of maxbrod",
        )
    if stored.digest != str(digest):
        raise CorruptDataError(f"the bytes have the digest {digest}, but {stored.digest} was written")


def _check_size(stored: StoredSlice, size: int) -> None:
    if size != stored.raw_bytes:
        raise CorruptDataError(f"the log has {size} bytes, but {stored.raw_bytes} were written")


@contextmanager
def _about(storage: Storage, stored: StoredSlice) -> Iterator[None]:
    """Add the object, the offset and a hint to errors."""
    try:
        with naming(storage.name_of(stored.path)):
            yield
    except MaxbrodError as error:
        error.offset = stored.base_offset if error.offset is None else error.offset
        if isinstance(error, CorruptDataError):
            error.hint = HINT
        elif isinstance(error, ObjectNotFoundError):
            error.hint = HINT_MISSING
        raise
