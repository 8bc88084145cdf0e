"""What the objects of a backup are called. Segments of a partition are counted from 0."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from maxbrod.layouts.backups import is_plain_name
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.layouts.backups import Backup
    from maxbrod.storage.interface import Storage

CHECKPOINT: Final = "checkpoints/checkpoint.json"
SEGMENT: Final = re.compile(r"topics/([^/]+)/(\d{1,10})/segment-(\d{8,18})\.kbs")
"""Below the backup's folder. Groups: topic, partition, number."""


def segment_name(where: TopicPartition, index: int) -> str:
    return f"topics/{where.topic}/{where.partition}/segment-{index:08d}.kbs"


def parse_name(name: str) -> tuple[TopicPartition, int] | None:
    """Partition and number of what is named like a segment."""
    match = SEGMENT.fullmatch(name)
    if match is None or not is_plain_name(match[1]):
        return None
    return TopicPartition(topic=match[1], partition=int(match[2])), int(match[3])


def list_segments(storage: Storage, backup: Backup) -> Iterator[tuple[TopicPartition, int, str, int]]:
    """Partition, number, path and size of every object that is named like a segment."""
    prefix = f"{backup.folder}/" if backup.folder else ""
    for info in storage.list(backup.path("topics")):
        parsed = parse_name(info.path.removeprefix(prefix))
        if parsed is not None:
            yield *parsed, info.path, info.size
