"""A log in independent zstd frames: `zstd -d` restores it, and any frame can be read without the others.

Frames may end anywhere, also within a batch. Each records the size of its content, so that a reader knows how much
memory it needs. Batches are decompressed before, so that frames compress them better, and a slice has a digest of what
is stored of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import cramjam
import google_crc32c
import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.compression import Arena
from maxbrod.batch.crc import crc32c
from maxbrod.batch.headers import (
    ATTRIBUTE_CODEC,
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NEWEST_MAGIC,
    BatchHeaders,
    header_rows,
)
from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError
from maxbrod.model import Codec

FRAME_BYTES: Final = 1 << 20
"""The content size of every frame but a slice's last."""
CONTENT_BYTES_MAX: Final = 64 << 20
"""No writer makes larger frames. A frame that claims more is refused before memory is allocated for it."""

_MAGIC: Final = 0xFD2FB528
_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_CONTENT_BYTES: Final = (0, 2, 4, 8)
_RUN: Final = 1
_RESERVED: Final = 3
CHECKSUM: Final = "crc32c"
STRONG: Final = "sha256"
"""For archives whose catalog is signed: nobody can make other bytes with the same digest."""
GROUP_BYTES: Final = 1 << 20
"""The size that is decompressed before it is passed on: it is still in the core's cache then."""
BATCH_BYTES_MAX: Final = 64 << 20
"""A larger batch stays compressed, so that a few hostile kilobytes cannot exhaust memory."""


def encode_frame(content: NDArray[np.uint8], level: int) -> NDArray[np.uint8]:
    return np.frombuffer(cramjam.zstd.compress(content, level=level), np.uint8)


class FrameEncoder:
    """Encodes a stream of bytes as frames; buffers less than one frame."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._held = np.empty(FRAME_BYTES, np.uint8)
        self._size = 0

    def encode(self, data: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
        """The frames that these bytes complete; the caller may reuse `data` after the last of them."""
        start = 0
        if self._size:
            start = min(FRAME_BYTES - self._size, data.size)
            self._hold(data[:start])
            if self._size < FRAME_BYTES:
                return
            yield from self.finish()
        while data.size - start >= FRAME_BYTES:
            yield encode_frame(data[start : start + FRAME_BYTES], self._level)
            start += FRAME_BYTES
        self._hold(data[start:])

    def finish(self) -> Iterator[NDArray[np.uint8]]:
        """The buffered bytes as a frame of their own."""
        if self._size:
            held, self._size = self._held[: self._size], 0
            yield encode_frame(held, self._level)

    def _hold(self, data: NDArray[np.uint8]) -> None:
        self._held[self._size : self._size + data.size] = data
        self._size += data.size


class FrameDecoder:
    """The inverse: decodes stored bytes, split anywhere, to the contents of complete frames."""

    def __init__(self, content_bytes_max: int) -> None:
        """`content_bytes_max` is the size that was written: a few stored bytes can claim any content size."""
        self._held = b""
        self._done = 0
        self._written = self._room = content_bytes_max

    def decode(self, stored: memoryview) -> Iterator[NDArray[np.uint8]]:
        """Errors give the position within the slice."""
        data = memoryview(self._held + bytes(stored)) if self._held else stored
        at = 0
        while (found := measure_frame(data, at, self._done)) is not None:
            size, content = found
            self._room -= content
            if self._room < 0:
                raise CorruptDataError(
                    f"its frames hold more bytes, but {self._written} were written", position=self._done + at
                )
            yield _decode_frame(data[at : at + size], content, self._done + at)
            at += size
        self._held = bytes(data[at:])
        self._done += at

    def finish(self) -> None:
        if self._held:
            raise TruncatedDataError(f"the last frame is cut off after {len(self._held)} bytes")


def measure_frame(data: memoryview, at: int, done: int = 0) -> tuple[int, int] | None:
    """Stored size and content size of the frame at `at`; None if it is incomplete."""
    if len(data) - at < 5:
        return None
    if int.from_bytes(data[at : at + 4], "little") != _MAGIC:
        raise CorruptDataError("there is no zstd frame where one should begin", position=done + at)
    descriptor = data[at + 4]
    single, size_flag = descriptor >> 5 & 1, descriptor >> 6
    content_at = at + 5 + (not single) + _DICTIONARY_BYTES[descriptor & 3]
    content_bytes = 1 if single and not size_flag else _CONTENT_BYTES[size_flag]
    if descriptor & 0x0B or not content_bytes:
        raise UnsupportedFormatError(
            "a zstd frame needs a dictionary, or does not record its content size", position=done + at
        )
    if len(data) < content_at + content_bytes:
        return None
    content = int.from_bytes(data[content_at : content_at + content_bytes], "little") + 256 * (content_bytes == 2)
    if content > CONTENT_BYTES_MAX:
        raise CorruptDataError(f"a zstd frame claims that it holds {content} bytes", position=done + at)
    end = _skip_blocks(data, content_at + content_bytes, done)
    if end is None:
        return None
    end += 4 * (descriptor >> 2 & 1)
    return None if end > len(data) else (end - at, content)


def _skip_blocks(data: memoryview, at: int, done: int) -> int | None:
    while at + 3 <= len(data):
        block = int.from_bytes(data[at : at + 3], "little")
        kind = block >> 1 & 3
        if kind == _RESERVED:
            raise CorruptDataError("a zstd frame has a block of an unknown kind", position=done + at)
        at += 3 + (1 if kind == _RUN else block >> 3)
        if block & 1:
            return at
    return None


def _decode_frame(frame: memoryview, content: int, position: int) -> NDArray[np.uint8]:
    out = np.empty(content, np.uint8)
    try:
        written = int(cramjam.zstd.decompress_into(frame, out))
    except cramjam.DecompressionError as error:
        raise CorruptDataError(f"a zstd frame cannot be decompressed: {error}", position=position) from error
    if written != content:
        raise CorruptDataError(f"a zstd frame has {written} bytes, not {content}", position=position)
    return out


class SliceDigest:
    """The digest of a slice's stored bytes, computed incrementally: CRC-32C, or SHA-256 if it must be `strong`."""

    def __init__(self, *, strong: bool = False) -> None:
        self._value = 0
        self._hash = hashlib.sha256() if strong else None

    @classmethod
    def like(cls, digest: str) -> SliceDigest:
        """One that can be compared with this digest."""
        return cls(strong=is_strong(digest))

    def add(self, data: NDArray[np.uint8]) -> None:
        if self._hash is None:
            self._value = google_crc32c.extend(self._value, data)
        else:
            self._hash.update(data)

    def __str__(self) -> str:
        return f"{CHECKSUM}:{self._value:08x}" if self._hash is None else f"{STRONG}:{self._hash.hexdigest()}"


def is_strong(digest: str) -> bool:
    """True if nobody can make other bytes with the same digest."""
    return digest.startswith(f"{STRONG}:")


class Unpacker:
    """Decompresses batches in one buffer. Only the codec bits, the length and the CRC of a batch change.

    A batch that cannot be decompressed stays as it is: the archive keeps what the broker has.
    """

    def __init__(self) -> None:
        self._arena = Arena(4 * GROUP_BYTES)

    def unpack(
        self, data: NDArray[np.uint8], headers: BatchHeaders
    ) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders, NDArray[np.int16]]]:
        """The batches, a few at a time, with the former codec of each. Each step overwrites the previous one."""
        # Markers, and batches without records, stay as they are.
        packed = (headers["magic"] == NEWEST_MAGIC) & ~headers.control
        packed &= (headers.codec != Codec.NONE) & (headers.size > HEADER_BYTES)
        if not packed.any():
            yield data, headers, headers.codec
            return
        rows = packed.tolist()
        start = 0
        while start < len(headers):
            self._arena.size = 0
            ends, unpacked = [0], []
            for row in range(start, len(headers)):
                position = int(headers.position[row])
                entry = data[position : position + int(headers.size[row])]
                unpacked.append(rows[row] and self._append_unpacked(entry, headers.codec_at(row)))
                if not unpacked[-1]:
                    self._arena.append(Codec.NONE, entry)
                ends.append(self._arena.size)
                if self._arena.size > GROUP_BYTES:
                    break
            group = headers.take(slice(start, start + len(unpacked)))
            yield *_sealed(self._arena, group, ends, np.array(unpacked)), group.codec
            start += len(unpacked)

    def _append_unpacked(self, entry: NDArray[np.uint8], codec: Codec) -> bool:
        before = self._arena.size
        self._arena.append(Codec.NONE, entry[:HEADER_BYTES])
        try:
            self._arena.append(codec, entry[HEADER_BYTES:], bytes_max=BATCH_BYTES_MAX)
        except CorruptDataError:
            self._arena.size = before
            return False
        return True


def _sealed(
    arena: Arena, headers: BatchHeaders, ends: list[int], unpacked: NDArray[np.bool_]
) -> tuple[NDArray[np.uint8], BatchHeaders]:
    """The arena's batches with their new headers."""
    out = arena.data[: arena.size]
    edges = np.array(ends, np.int64)
    position, size = edges[:-1], edges[1:] - edges[:-1]
    fields: dict[str, NDArray[Any]] = dict(headers.fields)
    codec_off = headers["attributes"] & ~np.int16(ATTRIBUTE_CODEC)
    fields["attributes"] = np.where(unpacked, codec_off, headers["attributes"])
    fields["batch_length"] = (size - LOG_OVERHEAD_BYTES).astype(np.int32)
    _write_headers(out, fields, position, unpacked)
    changed = [
        crc32c(out[start + CRC_START : end]) if new else old
        for (start, end), new, old in zip(pairwise(ends), unpacked.tolist(), headers["crc"].tolist(), strict=True)
    ]
    fields["crc"] = np.array(changed, np.uint32)
    _write_headers(out, fields, position, unpacked)
    return out, BatchHeaders(position=position, size=size, fields=fields, end=out.size)


def _write_headers(
    out: NDArray[np.uint8], fields: dict[str, NDArray[Any]], position: NDArray[np.int64], rows: NDArray[np.bool_]
) -> None:
    places = position[rows, None] + np.arange(HEADER_BYTES)
    out[places] = header_rows(fields)[rows].view(np.uint8).reshape(-1, HEADER_BYTES)
