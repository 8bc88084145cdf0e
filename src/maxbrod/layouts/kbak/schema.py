"""The names of a backup's objects and the fixed parts of a segment: header, footer, codecs, limits. Little-endian."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError, UnsupportedFormatError, UsageError
from maxbrod.layouts.backups import is_plain_name
from maxbrod.model import TopicPartition
from maxbrod.storage.names import check_name

if TYPE_CHECKING:
    from maxbrod.layouts.backups import Backup

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
"""No broker takes as much; what claims more would only make a reader take memory."""
SEGMENT_BYTES_MAX: Final = 64 << 20
"""Of a segment's records before compression, where the tool itself has 128 MiB: it is held in memory."""
SEGMENT_BYTES_LIMIT: Final = 1 << 30

_HEADER: Final = struct.Struct("<4sBBHQqq")


class SegmentCodec(IntEnum):
    """The byte in the header decides, whatever the name ends in."""

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
    """Of the last record, inclusive."""


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
        raise CorruptDataError(f"this segment says that it reaches from offset {start_offset} to {end_offset}")
    return Header(codec=SegmentCodec(codec), records=records, start_offset=start_offset, end_offset=end_offset)


GROUPS: Final = "consumer-groups-snapshot.json"
POSITIONS: Final = "offsets.db"
SEGMENT: Final = re.compile(r"topics/([^/]+)/partition=(\d{1,10})/segment-(\d{20})\.bin(?:\.zst|\.lz4)?")
"""Below the backup's folder. Groups: topic, partition, offset of the first record."""


def segment_name(where: TopicPartition, start_offset: int, codec: SegmentCodec) -> str:
    return f"topics/{where.topic}/partition={where.partition}/segment-{start_offset:020d}.bin{codec.ending}"


def path_of(backup: Backup, key: str, object_name: str) -> str:
    """Where the object of a key in the manifest is. Keys begin with the backup's id, wherever its folder is now."""
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


def parse_name(name: str) -> tuple[TopicPartition, int] | None:
    """Partition and first offset of what is named like a segment."""
    match = SEGMENT.fullmatch(name)
    if match is None or not is_plain_name(match[1]):
        return None
    return TopicPartition(topic=match[1], partition=int(match[2])), int(match[3])
