"""The codecs of Kafka's record batches: bytes to bytes, and many batches into one arena.

What Kafka's own clients require beyond the codec: lz4 frames of independent blocks (the Java client refuses
linked ones), snappy in the framing of the xerial library (other clients write bare snappy, which is read too).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import cramjam
import numpy as np

from maxbrod.errors import CorruptDataError
from maxbrod.model import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

# No batch can legitimately exceed this: a broker keeps a batch's length in 31 bits and holds it in memory whole.
DECOMPRESSED_BYTES_MAX: Final = 1 << 30

LZ4_BLOCK_BYTES: Final = 64 << 10
"""The most that a block unpacks to."""
# Magic, FLG 0x60 (version 1, independent blocks, no checksums), BD 0x40 (64 KiB blocks), header checksum.
LZ4_FRAME_START: Final = bytes.fromhex("04224d18604082")
_LZ4_SIZE_BYTES: Final = 4
_LZ4_STORED: Final = 0x80000000
"""Set in a block's size if it is not compressed."""
_LZ4_FRAME_END: Final = bytes(_LZ4_SIZE_BYTES)
_LZ4_BEFORE: Final = len(LZ4_FRAME_START) + _LZ4_SIZE_BYTES
_LZ4_START: Final = np.frombuffer(LZ4_FRAME_START, np.uint8)

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_START: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 << 10
# Rust's std::io, through every decoder of cramjam, when the output slice is full.
_NO_ROOM: Final = "failed to write whole buffer"


class Arena:
    """Decompressed bytes of many batches, one after another, in one buffer that grows as it must."""

    def __init__(self, capacity: int) -> None:
        # Untouched pages cost nothing, so a generous first guess is cheaper than growing.
        self.data: NDArray[np.uint8] = np.empty(capacity, np.uint8)
        self.size = 0

    def append(self, codec: Codec, compressed: NDArray[np.uint8], *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> int:
        """Decompress onto the end and return how many bytes that gave; CorruptDataError if it cannot be done."""
        room = self.data.size - self.size
        while True:
            try:
                written = _decompress_into(codec, compressed, self.data[self.size : self.size + min(room, bytes_max)])
            except cramjam.DecompressionError as error:
                if _NO_ROOM not in str(error):
                    raise CorruptDataError(f"{codec.name.lower()} records cannot be decompressed: {error}") from error
                if room >= bytes_max:
                    raise CorruptDataError(
                        f"{codec.name.lower()} records unpack to more than {bytes_max} bytes",
                        hint="a batch this large cannot come from a broker; the bytes are damaged or hostile",
                    ) from error
                room = self._grow(bytes_max)
                continue
            self.size += written
            return written

    def append_block(self, block: memoryview) -> bool:
        """Decompress one lz4 block onto the end; False, and nothing has changed, where that cannot be done."""
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
        grown = np.empty(max(self.data.size + self.data.size // 2, self.size + room), np.uint8)
        grown[: self.size] = self.data[: self.size]
        self.data = grown
        return self.data.size - self.size


def decompress(
    codec: Codec, compressed: NDArray[np.uint8], *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> NDArray[np.uint8]:
    arena = Arena(max(4096, 8 * compressed.size))
    arena.append(codec, compressed, bytes_max=bytes_max)
    return arena.data[: arena.size]


def compress(codec: Codec, records: NDArray[np.uint8], level: int | None = None) -> bytes:
    """One batch's records as Kafka's Java client would accept them; `level` is for gzip and zstd."""
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
    """Frames as Kafka's clients write them, block by block: setting the frame decoder up takes longer than 16 KB do."""
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
    # Whatever is unusual (cut, more frames after this one) is left to the decoder that knows what to say.
    if end - position != _LZ4_SIZE_BYTES or compressed[position:].any():
        return int(cramjam.lz4.decompress_into(compressed, out))
    return written


def _decompress_lz4_block(block: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    try:
        return int(cramjam.lz4.decompress_block_into(block, out, output_len=out.size))
    except cramjam.DecompressionError:
        # A full-sized output is enough for any block, so then it is the block that is wrong.
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
    # The length is asked first: the decoder's own "output too small" is another message than the others'.
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
    """A frame with its header checksum made right: old clients computed it wrongly in messages of magic 0."""
    flags = int(compressed[4]) if compressed.size > len(LZ4_FRAME_START) else 0
    end = 6 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    if compressed.size <= max(end, len(LZ4_FRAME_START)):
        return compressed
    fixed = compressed.copy()
    fixed[end] = _xxh32_short(compressed[4:end].tobytes()) >> 8 & 0xFF
    return fixed


def _xxh32_short(data: bytes) -> int:
    """xxHash32, seed 0, of fewer than 16 bytes: all that a frame descriptor needs."""
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
