"""The codecs of a segment's body: one stream of all its records.

zstd is one frame that does not state the size of its content, so it is streamed. lz4 is a size (u32) and one raw block,
so it is held in memory whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import cramjam
import numpy as np
import pyarrow as pa

from maxbrod.errors import CorruptDataError, TruncatedDataError
from maxbrod.layouts.backups import SEGMENT_BYTES_LIMIT
from maxbrod.layouts.kbak.schema import SegmentCodec

if TYPE_CHECKING:
    from collections.abc import Buffer

    from numpy.typing import NDArray

_SIZE_BYTES: Final = 4
_LZ4_RATIO_MAX: Final = 255  # bytes that one byte of a block can stand for


def compress(codec: SegmentCodec, body: NDArray[np.uint8], level: int | None) -> list[Buffer]:
    """The stored form of a body, in pieces."""
    match codec:
        case SegmentCodec.NONE:
            return [body]
        case SegmentCodec.ZSTD:
            # One frame, which unlike the tool's own states the size of its content. Arrow's encoder takes two thirds of
            # the time of cramjam's for a body of many megabytes.
            return [pa.Codec("zstd", compression_level=level).compress(pa.py_buffer(body))]
        case SegmentCodec.LZ4:
            size = len(body).to_bytes(_SIZE_BYTES, "little")
            return [size, memoryview(cramjam.lz4.compress_block(body, store_size=False))]


def open_body(codec: SegmentCodec, stored: pa.NativeFile, size: int) -> pa.NativeFile:
    """The records of a body of `size` stored bytes as a stream, which `reading` reads piece by piece."""
    match codec:
        case SegmentCodec.NONE:
            return stored
        case SegmentCodec.ZSTD:
            return pa.CompressedInputStream(stored, "zstd")
        case SegmentCodec.LZ4:
            return pa.BufferReader(pa.py_buffer(decompress_lz4(stored.read(size))))


def decompress_lz4(stored: bytes) -> NDArray[np.uint8]:
    if len(stored) < _SIZE_BYTES:
        raise TruncatedDataError("an lz4 body is shorter than its size field")
    size = int.from_bytes(stored[:_SIZE_BYTES], "little")
    if size > min(SEGMENT_BYTES_LIMIT, _LZ4_RATIO_MAX * len(stored)):
        raise CorruptDataError(f"an lz4 body of {len(stored)} bytes claims to unpack to {size}")
    out = np.empty(size, np.uint8)
    if not size and len(stored) == _SIZE_BYTES + 1:
        return out
    try:
        written = int(cramjam.lz4.decompress_block_into(memoryview(stored)[_SIZE_BYTES:], out, output_len=size))
    except cramjam.DecompressionError as error:
        raise CorruptDataError(f"an lz4 body cannot be decompressed: {error}") from error
    if written != size:
        raise CorruptDataError(f"an lz4 body unpacks to {written} bytes, not {size}")
    return out
