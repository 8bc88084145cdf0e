"""The names of a backup's objects and the fixed parts of a segment: header, footer, codecs, limits. Little-endian.

The body of a segment is one stream of all its records. zstd is one frame that does not state the size of its content,
so it is streamed. lz4 is a size (u32) and one raw block, so it is held in memory whole.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import cramjam
import numpy as np
import pyarrow as pa

from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError, UsageError
from maxbrod.layouts.manifest import SEGMENT_BYTES_LIMIT, BackupRef
from maxbrod.storage.urls import check_name

if TYPE_CHECKING:
    from collections.abc import Buffer

    from numpy.typing import NDArray

    from maxbrod.model import TopicPartition

NAME: Final = "kbak"
MAGIC: Final = b"KBAK"
MAGIC_END: Final = b"BKAE"
VERSION: Final = 1
COMMITTED: Final = "read_committed"
UNCOMMITTED_LEVEL: Final = "read_uncommitted"
HEADER_BYTES: Final = 32
FOOTER_BYTES: Final = 8
RECORD_BYTES_MIN: Final = 30
"""A record with its length, without key, value and headers."""
RECORD_BYTES_MAX: Final = 1 << 30
"""No broker accepts as much. A record that claims more would only make a reader allocate memory."""

_HEADER: Final = struct.Struct("<4sBBHQqq")
GROUPS: Final = "consumer-groups-snapshot.json"
POSITIONS: Final = "offsets.db"
SEGMENT: Final = re.compile(r"topics/([^/]+)/partition=(\d{1,10})/segment-(\d{20})\.bin(?:\.zst|\.lz4)?")
"""Names below the backup's folder. Groups: topic, partition, offset of the first record."""
_SIZE_BYTES: Final = 4
_LZ4_RATIO_MAX: Final = 255  # bytes that one byte of a block can stand for


class KbakCodec(IntEnum):
    """The byte in the header decides, not the ending of the name."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2

    @property
    def ending(self) -> str:
        return ("", ".zst", ".lz4")[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class KbakHeader:
    codec: KbakCodec
    records: int
    start_offset: int
    end_offset: int
    """The offset of the last record."""


def encode_header(header: KbakHeader) -> bytes:
    return _HEADER.pack(MAGIC, VERSION, header.codec, 0, header.records, header.start_offset, header.end_offset)


def decode_header(data: bytes) -> KbakHeader:
    """The header of a segment that begins with the magic and has at least HEADER_BYTES."""
    _, version, codec, reserved, records, start_offset, end_offset = _HEADER.unpack(data)
    if version != VERSION or reserved:
        raise UnsupportedFormatError(
            f"this segment has version {version} and flags {reserved}", hint="version 1 without flags is known"
        )
    if codec not in list(KbakCodec):
        raise UnsupportedFormatError(f"this segment has the codec {codec}", hint="0 none, 1 zstd and 2 lz4 are known")
    if records and not 0 <= start_offset <= end_offset:
        raise CorruptDataError(f"this segment claims to reach from offset {start_offset} to {end_offset}")
    return KbakHeader(codec=KbakCodec(codec), records=records, start_offset=start_offset, end_offset=end_offset)


def segment_name(where: TopicPartition, start_offset: int, codec: KbakCodec) -> str:
    return f"topics/{where.topic}/partition={where.partition}/segment-{start_offset:020d}.bin{codec.ending}"


def path_of(backup: BackupRef, key: str, object_name: str) -> str:
    """The path of the object that a key in the manifest names. Keys begin with the backup's id, not with its folder."""
    prefix = f"{backup.backup_id}/"
    foreign = CorruptDataError(
        f"the manifest names a segment {key[:300]!r}, which is not in this backup", object_name=object_name
    )
    if not key.startswith(prefix):
        raise foreign
    try:
        return check_name(backup.path(key.removeprefix(prefix)))
    except UsageError as error:
        raise foreign from error


def compress(codec: KbakCodec, body: NDArray[np.uint8], level: int | None) -> list[Buffer]:
    """The stored form of a body, in pieces."""
    match codec:
        case KbakCodec.NONE:
            return [body]
        case KbakCodec.ZSTD:
            # One frame, which unlike the tool's own states the size of its content. Arrow's encoder takes two thirds of
            # the time of cramjam's for a body of many megabytes.
            return [pa.Codec("zstd", compression_level=level).compress(pa.py_buffer(body))]
        case KbakCodec.LZ4:
            size = len(body).to_bytes(_SIZE_BYTES, "little")
            return [size, memoryview(cramjam.lz4.compress_block(body, store_size=False))]


def open_body(codec: KbakCodec, stored: pa.NativeFile, size: int) -> pa.NativeFile:
    """The records of a body of `size` stored bytes as a stream, which `reader` reads piece by piece."""
    match codec:
        case KbakCodec.NONE:
            return stored
        case KbakCodec.ZSTD:
            return pa.CompressedInputStream(stored, "zstd")
        case KbakCodec.LZ4:
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
