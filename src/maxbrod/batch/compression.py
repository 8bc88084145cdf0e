"""The codecs of Kafka's record batches: bytes to bytes, and the records of many batches into one arena.

Kafka's clients require more than the codec: lz4 frames of independent blocks (the Java client refuses linked ones) and
snappy in the framing of the xerial library. Other clients write bare snappy, which is read as well.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import cramjam
import numpy as np

from maxbrod.batch.headers import HEADER_BYTES, BatchHeaders
from maxbrod.bounds import DOCUMENT_BYTES_MAX
from maxbrod.errors import BatchLimitError, CorruptDataError
from maxbrod.model import Codec

if TYPE_CHECKING:
    from collections.abc import Buffer

    from numpy.typing import NDArray


DECOMPRESSED_BYTES_MAX: Final = 1 << 30
"""The most that a batch may unpack to. Kafka has no limit: a record of 1.5 GB can take 46 kB."""

LZ4_BLOCK_BYTES: Final = 64 << 10
"""The maximum size of an unpacked block."""
# Magic, FLG 0x60 (version 1, independent blocks, no checksums), BD 0x40 (64 KiB blocks), header checksum.
LZ4_FRAME_START: Final = bytes.fromhex("04224d18604082")
_LZ4_SIZE_BYTES: Final = 4
_LZ4_STORED: Final = 0x80000000
"""The bit of a block's size that says it is not compressed."""
_LZ4_FRAME_END: Final = bytes(_LZ4_SIZE_BYTES)
_LZ4_BEFORE: Final = len(LZ4_FRAME_START) + _LZ4_SIZE_BYTES
_LZ4_START: Final = np.frombuffer(LZ4_FRAME_START, np.uint8)

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_START: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 << 10
# Rust's std::io, through every decoder of cramjam, when the output slice is full.
_NO_ROOM: Final = "failed to write whole buffer"

ENOUGH_BYTES: Final = 32 << 20
"""Small batches may unpack to a gigabyte each: with this much unpacked, the rest waits for the next call."""
_GROUP_BYTES: Final = 256 << 10


class Arena:
    """The decompressed bytes of many batches in one growing buffer."""

    def __init__(self, capacity: int) -> None:
        # Untouched pages cost nothing, so a large first capacity is cheaper than growing.
        self.data: NDArray[np.uint8] = np.empty(capacity, np.uint8)
        self.size = 0

    def append(self, codec: Codec, compressed: NDArray[np.uint8], *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> int:
        """Decompress onto the end and return the number of bytes. CorruptDataError if they cannot be decompressed."""
        room = self.data.size - self.size
        while True:
            try:
                written = _decompress_into(codec, compressed, self.data[self.size : self.size + min(room, bytes_max)])
            except cramjam.DecompressionError as error:
                if _NO_ROOM not in str(error):
                    raise CorruptDataError(f"{codec.name.lower()} records cannot be decompressed: {error}") from error
                if room >= bytes_max:
                    raise BatchLimitError(
                        f"{codec.name.lower()} records unpack to more than {bytes_max} bytes, which is the limit",
                        hint="a restore takes the batch as it is; a query can leave it out by its offsets",
                    ) from error
                room = self._grow(bytes_max)
                continue
            self.size += written
            return written

    def append_block(self, block: memoryview) -> bool:
        """Decompress one lz4 block onto the end. If it cannot be decompressed, return False and change nothing."""
        if self.data.size - self.size < LZ4_BLOCK_BYTES:
            self._grow(LZ4_BLOCK_BYTES)
        room = self.data[self.size : self.size + LZ4_BLOCK_BYTES]
        try:
            self.size += cramjam.lz4.decompress_block_into(block, room, output_len=LZ4_BLOCK_BYTES)
        except cramjam.DecompressionError:
            return False
        return True

    def _grow(self, room_max: int) -> int:
        room = min(max(2 * (self.data.size - self.size), 1 << 16), room_max)
        if not self.size:
            # Nothing has to be copied, so both need not be held at once.
            capacity, self.data = self.data.size, np.empty(0, np.uint8)
            self.data = np.empty(max(capacity + capacity // 2, room), np.uint8)
            return self.data.size
        grown = np.empty(max(self.data.size + self.data.size // 2, self.size + room), np.uint8)
        grown[: self.size] = self.data[: self.size]
        self.data = grown
        return self.data.size - self.size


def decompress(
    codec: Codec, compressed: NDArray[np.uint8], *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> NDArray[np.uint8]:
    arena = Arena(max(4096, min(8 * compressed.size, bytes_max)))
    arena.append(codec, compressed, bytes_max=bytes_max)
    return arena.data[: arena.size]


def unpack_document(packed: Buffer) -> bytes:
    """The text of a document that is kept in zstd. CorruptDataError: it is damaged, or larger than any of ours."""
    return decompress(Codec.ZSTD, np.frombuffer(packed, np.uint8), bytes_max=DOCUMENT_BYTES_MAX).tobytes()


def compress(codec: Codec, records: NDArray[np.uint8], level: int | None = None) -> bytes:
    """Compress the records of one batch so that Kafka's Java client accepts them. `level` is for gzip and zstd."""
    match codec:
        case Codec.NONE:
            return records.tobytes()
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(records, level=6 if level is None else level))
        case Codec.SNAPPY:
            return _compress_xerial(records)
        case Codec.LZ4:
            return _compress_lz4(records)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(records, level=3 if level is None else level))


def _decompress_into(codec: Codec, compressed: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    match codec:
        case Codec.NONE:
            if compressed.size > out.size:
                raise cramjam.DecompressionError(_NO_ROOM)
            out[: compressed.size] = compressed
            return compressed.size
        case Codec.GZIP:
            return int(cramjam.gzip.decompress_into(compressed, out))
        case Codec.SNAPPY:
            return _decompress_snappy(compressed, out)
        case Codec.LZ4:
            return _decompress_lz4(compressed, out)
        case Codec.ZSTD:
            return int(cramjam.zstd.decompress_into(compressed, out))


def _decompress_lz4(compressed: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    """Decompress block by block: setting up the frame decoder takes longer than decompressing 16 KB."""
    if compressed[: len(LZ4_FRAME_START)].tobytes() != LZ4_FRAME_START:
        return int(cramjam.lz4.decompress_into(compressed, out))
    written, position, end = 0, len(LZ4_FRAME_START), compressed.size
    while end - position > _LZ4_SIZE_BYTES:
        size = int.from_bytes(compressed[position : position + _LZ4_SIZE_BYTES].tobytes(), "little")
        position += _LZ4_SIZE_BYTES
        block = compressed[position : position + (size & ~_LZ4_STORED)]
        position += size & ~_LZ4_STORED
        room = out[written : written + LZ4_BLOCK_BYTES]
        if not size or position > end:
            break
        written += _store_block(block, room) if size & _LZ4_STORED else _decompress_lz4_block(block, room)
    # Unusual frames (cut, or followed by more frames) go to the frame decoder, which reports what is wrong.
    if end - position != _LZ4_SIZE_BYTES or compressed[position:].any():
        return int(cramjam.lz4.decompress_into(compressed, out))
    return written


def _decompress_lz4_block(block: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    try:
        return int(cramjam.lz4.decompress_block_into(block, out, output_len=out.size))
    except cramjam.DecompressionError:
        # A full-sized output is enough for any valid block, so the block itself is wrong.
        if out.size < LZ4_BLOCK_BYTES:
            raise cramjam.DecompressionError(_NO_ROOM) from None
        raise


def _store_block(block: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    if block.size > out.size:
        raise cramjam.DecompressionError(_NO_ROOM if out.size < LZ4_BLOCK_BYTES else "a stored block is too large")
    out[: block.size] = block
    return block.size


def _decompress_snappy(compressed: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    if compressed[: len(_XERIAL_MAGIC)].tobytes() != _XERIAL_MAGIC:
        return _decompress_snappy_block(compressed, out)
    written, position = 0, len(_XERIAL_START)
    while position < compressed.size:
        length = int.from_bytes(compressed[position : position + 4].tobytes(), "big")
        block = compressed[position + 4 : position + 4 + length]
        if compressed.size - position < 4 or block.size < length:
            raise cramjam.DecompressionError("a snappy block is cut short")
        written += _decompress_snappy_block(block, out[written:])
        position += 4 + length
    return written


def _decompress_snappy_block(block: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    # Compare lengths first: the decoder's own "output too small" message differs from the other decoders'.
    if cramjam.snappy.decompress_raw_len(block) > out.size:
        raise cramjam.DecompressionError(_NO_ROOM)
    return int(cramjam.snappy.decompress_raw_into(block, out))


def find_lz4_blocks(
    data: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The start and end of the only block of each lz4 frame, for many batches at once; -1 twice for any other frame.

    Most producers send such frames. One needs no frame decoder, whose set-up takes longer than unpacking the block.
    """
    first, last = np.full(len(start), -1, np.int64), np.full(len(start), -1, np.int64)
    rows = np.flatnonzero(end - start > _LZ4_BEFORE + _LZ4_SIZE_BYTES)
    before = data[start[rows, None] + np.arange(_LZ4_BEFORE)]
    after = data[end[rows, None] - np.arange(1, _LZ4_SIZE_BYTES + 1)]
    size = np.ascontiguousarray(before[:, len(LZ4_FRAME_START) :]).view("<u4").reshape(-1).astype(np.int64)
    alone = start[rows] + _LZ4_BEFORE + size + _LZ4_SIZE_BYTES == end[rows]
    found = (before[:, : len(LZ4_FRAME_START)] == _LZ4_START).all(axis=1) & alone & ~after.any(axis=1)
    first[rows[found]], last[rows[found]] = start[rows[found]] + _LZ4_BEFORE, end[rows[found]] - _LZ4_SIZE_BYTES
    return first, last


def _compress_xerial(records: NDArray[np.uint8]) -> bytes:
    parts = [_XERIAL_START]
    for start in range(0, records.size, _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(records[start : start + _XERIAL_BLOCK_BYTES]))
        parts += [len(block).to_bytes(4, "big"), block]
    return b"".join(parts)


def _compress_lz4(records: NDArray[np.uint8]) -> bytes:
    parts = [LZ4_FRAME_START]
    for start in range(0, records.size, LZ4_BLOCK_BYTES):
        block = records[start : start + LZ4_BLOCK_BYTES]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < block.size:
            parts += [len(packed).to_bytes(4, "little"), packed]
        else:
            parts += [(block.size | _LZ4_STORED).to_bytes(4, "little"), block.tobytes()]
    parts.append(_LZ4_FRAME_END)
    return b"".join(parts)


def fix_lz4_header(compressed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The frame with a corrected header checksum: old clients computed it wrongly in messages of magic 0."""
    flags = int(compressed[4]) if compressed.size > len(LZ4_FRAME_START) else 0
    end = 6 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    if compressed.size <= max(end, len(LZ4_FRAME_START)):
        return compressed
    fixed = compressed.copy()
    fixed[end] = _xxh32_short(compressed[4:end].tobytes()) >> 8 & 0xFF
    return fixed


def _xxh32_short(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes, which is enough for a frame descriptor."""
    prime1, prime2, prime3, prime4, prime5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    mask = 0xFFFFFFFF
    value = (prime5 + len(data)) & mask
    whole = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        value = (value + word * prime3) & mask
        value = ((value << 17 | value >> 15) & mask) * prime4 & mask
    for byte in data[whole:]:
        value = (value + byte * prime5) & mask
        value = ((value << 11 | value >> 21) & mask) * prime1 & mask
    value = (value ^ value >> 15) * prime2 & mask
    value = (value ^ value >> 13) * prime3 & mask
    return value ^ value >> 16


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The records of batch i are at `start[i]` to `end[i]` of the arena or of the buffer."""

    arena: Arena
    in_arena: NDArray[np.bool_]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)


def portions(
    data: NDArray[np.uint8], headers: BatchHeaders, arena: Arena, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[tuple[BatchHeaders, Unpacked]]:
    """Yield all batches, a few at a time, unpacked into the same arena, which overwrites the previous ones.

    A portion fits a core's cache, unless its batches unpack to far more than their size.
    """
    group_of = (np.cumsum(headers.size) - headers.size) // _GROUP_BYTES
    edges = [0, *(np.flatnonzero(np.diff(group_of)) + 1).tolist(), len(headers)]
    for start, end in pairwise(edges):
        done = start
        while done < end:
            arena.size = 0
            rest = headers.take(slice(done, end))
            unpacked = unpack(data, rest, arena, bytes_max=bytes_max)
            yield rest.take(slice(len(unpacked))), unpacked
            done += len(unpacked)


def unpack(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    arena: Arena,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
    enough_bytes: int = ENOUGH_BYTES,
    readable: NDArray[np.bool_] | None = None,
) -> Unpacked:
    """Decompress compressed batches into `arena`. Uncompressed ones stay in the buffer, uncopied.

    Stops before a compressed batch when the arena holds `enough_bytes`, so it may unpack fewer than all. A batch that
    cannot be unpacked is an error, or becomes false in `readable`.
    """
    in_arena = headers.codec != Codec.NONE
    start = headers.position + HEADER_BYTES
    end = headers.position + headers.size
    for row, block in compressed_rows(data, headers, bytes_max=bytes_max):
        if arena.size > enough_bytes:
            return Unpacked(arena, in_arena[:row], start[:row], end[:row])
        before = arena.size
        try:
            # An emptied batch keeps its codec bits but has no bytes to unpack.
            if (block is None or not arena.append_block(block)) and start[row] < end[row]:
                append(arena, headers, row, data[start[row] : end[row]], bytes_max)
        except CorruptDataError:
            if readable is None:
                raise
            readable[row] = False
        start[row], end[row] = before, arena.size
    return Unpacked(arena, in_arena, start, end)


def compressed_rows(
    data: NDArray[np.uint8], headers: BatchHeaders, *, bytes_max: int
) -> Iterator[tuple[int, memoryview | None]]:
    """The rows of compressed batches, each with its lz4 block if the frame is one block and nothing else."""
    rows = np.flatnonzero(headers.codec != Codec.NONE)
    first = last = np.full(len(rows), -1, np.int64)
    if bytes_max >= LZ4_BLOCK_BYTES and (headers.codec == Codec.LZ4).any():
        first, last = find_lz4_blocks(
            data, headers.position[rows] + HEADER_BYTES, (headers.position + headers.size)[rows]
        )
        first = np.where(headers.codec[rows] == Codec.LZ4, first, -1)
    view = memoryview(data)
    for row, at, stop in zip(rows.tolist(), first.tolist(), last.tolist(), strict=True):
        yield row, view[at:stop] if at >= 0 else None


def append(arena: Arena, headers: BatchHeaders, row: int, packed: NDArray[Any], bytes_max: int) -> None:
    """Decompress one batch. An error names it."""
    codec = headers.codec_at(row)
    try:
        arena.append(codec, packed, bytes_max=bytes_max)
    except CorruptDataError as error:
        error.offset, error.position = int(headers["base_offset"][row]), int(headers.position[row])
        raise
