"""The codecs of Avro container files: compress and decompress one block in bounded memory."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import TYPE_CHECKING, Any, Final, Protocol

import cramjam
import numpy as np

from maxbrod.batch import compression
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.avro.options import CODECS
from maxbrod.model import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_BYTES_MAX: Final = 256 << 20
"""Decompressed. Writers end a block after 16 KiB to 1 MiB; one with a single huge record may be larger."""
_CRC_BYTES: Final = 4
_XZ_MEMORY_MAX: Final = 256 << 20
"""A header alone may claim a dictionary of 4 GiB; the highest level of xz needs 65 MiB."""


class _Decompressor(Protocol):
    """The interface that zlib, bz2 and lzma share."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: Any, max_length: int = ..., /) -> bytes: ...  # noqa: ANN401 - anything with a buffer


def compress(codec: str, data: NDArray[np.uint8], level: int | None) -> bytes:
    match codec:
        case "null":
            return data.tobytes()
        case "deflate":
            packer = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, -zlib.MAX_WBITS)
            return packer.compress(data) + packer.flush()
        case "snappy":
            return bytes(cramjam.snappy.compress_raw(data)) + zlib.crc32(data).to_bytes(_CRC_BYTES, "big")
        case "bzip2":
            return bz2.compress(data, 9 if level is None else level)
        case "xz":
            return lzma.compress(data, preset=6 if level is None else level)
        case _:
            return compression.compress(Codec.ZSTD, data, level)


def decompress(codec: str, data: memoryview) -> NDArray[np.uint8]:
    """A block's records. CorruptDataError: it cannot be decompressed, or exceeds BLOCK_BYTES_MAX."""
    match codec:
        case "null":
            return np.frombuffer(data, np.uint8)
        case "deflate":
            return _stream(codec, zlib.decompressobj(-zlib.MAX_WBITS), data)
        case "bzip2":
            return _stream(codec, bz2.BZ2Decompressor(), data)
        case "xz":
            return _stream(codec, lzma.LZMADecompressor(memlimit=_XZ_MEMORY_MAX), data)
        case "snappy":
            return _snappy(data)
        case "zstandard":
            packed = np.frombuffer(data, np.uint8)
            return compression.decompress(Codec.ZSTD, packed, bytes_max=BLOCK_BYTES_MAX)
        case _:
            raise UnsupportedFormatError(
                f"the blocks have the unknown codec {codec!r}", hint=f"supported are {', '.join(CODECS)}"
            )


def _stream(codec: str, decompressor: _Decompressor, data: memoryview) -> NDArray[np.uint8]:
    try:
        records = decompressor.decompress(data, BLOCK_BYTES_MAX)
    except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError) as error:
        raise CorruptDataError(f"a block of codec {codec} cannot be unpacked: {error}") from error
    if not decompressor.eof:
        whole = len(records) < BLOCK_BYTES_MAX
        message = "ends too early" if whole else f"unpacks to more than {BLOCK_BYTES_MAX} bytes"
        raise CorruptDataError(f"a block of codec {codec} {message}", hint="the bytes are damaged or hostile")
    return np.frombuffer(records, np.uint8)


def _snappy(data: memoryview) -> NDArray[np.uint8]:
    packed = np.frombuffer(data, np.uint8)
    if packed.size < _CRC_BYTES:
        raise CorruptDataError("a block of codec snappy is too short for its checksum")
    body, crc = packed[:-_CRC_BYTES], int.from_bytes(data[-_CRC_BYTES:], "big")
    try:
        size = int(cramjam.snappy.decompress_raw_len(body))
        if size > BLOCK_BYTES_MAX:
            raise CorruptDataError(f"a block of codec snappy says that it unpacks to {size} bytes")
        records = np.empty(size, np.uint8)
        written = int(cramjam.snappy.decompress_raw_into(body, records))
    except cramjam.DecompressionError as error:
        raise CorruptDataError(f"a block of codec snappy cannot be unpacked: {error}") from error
    if written != size or zlib.crc32(records) != crc:
        raise CorruptDataError("a block of codec snappy has another checksum than it says")
    return records
