"""The names of a backup's objects and the fixed parts of a segment: headers, footer, codecs, limits. Big-endian."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.model import Codec, TopicPartition

NAME: Final = "kbs"
MAGIC: Final = b"KBS1"
VERSION: Final = 1
HEADER_BYTES: Final = 32
BATCH_HEADER_BYTES: Final = 24
FOOTER_BYTES: Final = 16
RECORD_BYTES_MIN: Final = 5
"""Two deltas, two lengths, a header count: a byte each."""
BATCH_BYTES_MAX: Final = 1 << 20
"""A batch ends after the record that makes it this large, before compression."""
BLOCK_BYTES_LIMIT: Final = 1 << 30

EMPTY_BYTES: Final = HEADER_BYTES + FOOTER_BYTES
"""The size of a segment without a batch."""

_HEADER: Final = struct.Struct(">4sBBHqQQ")
_BATCH: Final = struct.Struct(">qIIII")
_FOOTER: Final = struct.Struct(">QQ")
_RATIO_MAX: Final = 1000
_ALWAYS_BYTES: Final = 64 << 20
CHECKPOINT: Final = "checkpoints/checkpoint.json"
SEGMENT: Final = re.compile(r"topics/([^/]+)/(\d{1,10})/segment-(\d{8,18})\.kbs")
"""Names below the backup's folder. Groups: topic, partition, number (from 0)."""


class KbsCodec(IntEnum):
    NONE = 0
    LZ4 = 1
    ZSTD = 2

    @property
    def kafka(self) -> Codec:
        """The codec of Kafka's batches that does the same: lz4 as a frame, zstd as one frame."""
        return Codec[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class KbsHeader:
    codec: KbsCodec
    first_offset: int
    records: int
    checksum: int
    """CRC-64 of all batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    base_offset: int
    records: int
    stored_bytes: int
    block_bytes: int
    """Before compression."""
    crc: int
    """CRC-32 of what is stored."""


def encode_header(header: KbsHeader) -> bytes:
    return _HEADER.pack(MAGIC, VERSION, header.codec, 0, header.first_offset, header.records, header.checksum)


def decode_header(data: bytes) -> KbsHeader:
    """The header of a segment of at least HEADER_BYTES."""
    magic, version, codec, flags, first_offset, records, checksum = _HEADER.unpack(data)
    if magic != MAGIC:
        raise UnsupportedFormatError(f"this is not a segment: it begins with {magic.hex()}", hint="KBS1 is known")
    if version != VERSION or flags:
        raise UnsupportedFormatError(
            f"this segment has version {version} and flags {flags}", hint="version 1 without flags is known"
        )
    if codec not in list(KbsCodec):
        raise UnsupportedFormatError(f"this segment has the codec {codec}", hint="0 none, 1 lz4 and 2 zstd are known")
    if first_offset < 0:
        raise CorruptDataError(f"this segment claims to begin with offset {first_offset}")
    return KbsHeader(codec=KbsCodec(codec), first_offset=first_offset, records=records, checksum=checksum)


def encode_batch_header(batch: BatchHeader) -> bytes:
    return _BATCH.pack(batch.base_offset, batch.records, batch.stored_bytes, batch.block_bytes, batch.crc)


def decode_batch_header(data: bytes) -> BatchHeader:
    base_offset, records, stored_bytes, block_bytes, crc = _BATCH.unpack(data)
    batch = BatchHeader(
        base_offset=base_offset, records=records, stored_bytes=stored_bytes, block_bytes=block_bytes, crc=crc
    )
    if base_offset < 0 or records > block_bytes // RECORD_BYTES_MIN:
        raise CorruptDataError(f"a batch of {block_bytes} bytes claims to have {records} records from {base_offset} on")
    # The claimed size is bounded by the stored size, because memory is allocated before anything is unpacked.
    if block_bytes > min(BLOCK_BYTES_LIMIT, max(_ALWAYS_BYTES, _RATIO_MAX * stored_bytes)):
        raise CorruptDataError(f"a batch of {stored_bytes} bytes claims to unpack to {block_bytes}")
    return batch


def encode_footer(records: int, checksum: int) -> bytes:
    return _FOOTER.pack(records, checksum)


def decode_footer(data: bytes) -> tuple[int, int]:
    """The count of records, and the CRC-64 of everything before the footer."""
    records, checksum = _FOOTER.unpack(data)
    return records, checksum


def segment_name(where: TopicPartition, index: int) -> str:
    return f"topics/{where.topic}/{where.partition}/segment-{index:08d}.kbs"
