"""What the objects of a backup are called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.layouts.backups import is_plain_name
from maxbrod.model import TopicPartition
from maxbrod.storage.names import check_name

if TYPE_CHECKING:
    from maxbrod.layouts.backups import Backup
    from maxbrod.layouts.kbak.schema import SegmentCodec

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
