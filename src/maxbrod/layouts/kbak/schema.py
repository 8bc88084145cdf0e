"""The names of a backup's objects and the fixed parts of a segment: header, footer, codecs, limits. Little-endian."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError, UnsupportedFormatError, UsageError
from maxbrod.storage.urls import check_name

if TYPE_CHECKING:
    from maxbrod.layouts.backups import Backup
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


class SegmentCodec(IntEnum):
    """The byte in the header decides, not the ending of the name."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2

    @property
    def ending(self) -> str:
        return ("", ".zst", ".lz4")[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    codec: SegmentCodec
    records: int
    start_offset: int
    end_offset: int
    """The offset of the last record."""


def encode_header(header: Header) -> bytes:
    return _HEADER.pack(MAGIC, VERSION, header.codec, 0, header.records, header.start_offset, header.end_offset)


def decode_header(data: bytes) -> Header:
    """The header of a segment that begins with the magic and has at least HEADER_BYTES."""
    _, version, codec, reserved, records, start_offset, end_offset = _HEADER.unpack(data)
    if version != VERSION or reserved:
        raise UnsupportedFormatError(
            f"this segment has version {version} and flags {reserved}", hint="version 1 without flags is known"
        )
    if codec not in list(SegmentCodec):
        raise UnsupportedFormatError(f"this segment has the codec {codec}", hint="0 none, 1 zstd and 2 lz4 are known")
    if records and not 0 <= start_offset <= end_offset:
        raise CorruptDataError(f"this segment claims to reach from offset {start_offset} to {end_offset}")
    return Header(codec=SegmentCodec(codec), records=records, start_offset=start_offset, end_offset=end_offset)


def segment_name(where: TopicPartition, start_offset: int, codec: SegmentCodec) -> str:
    return f"topics/{where.topic}/partition={where.partition}/segment-{start_offset:020d}.bin{codec.ending}"


def path_of(backup: Backup, key: str, object_name: str) -> str:
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
