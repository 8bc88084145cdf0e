"""`checkpoints/checkpoint.json`: by what a backup goes on. Compared with the manifest, which is the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.layouts.backups import known_topic
from maxbrod.layouts.documents import INT32_MAX, INT64_MAX
from maxbrod.layouts.kbs.manifest import iso
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.layouts.backups import Backup
    from maxbrod.layouts.documents import Fields
    from maxbrod.layouts.foreign import ForeignSegment


def parse_checkpoint(checkpoint: Fields) -> dict[TopicPartition, int]:
    """The next offset of each partition."""
    positions = {}
    topics = checkpoint.inner("topics")
    for topic in topics.values:
        partitions = topics.inner(topic)
        for partition in partitions.values:
            if not partition.isascii() or not partition.isdigit() or int(partition[:11]) > INT32_MAX:
                raise partitions.wrong(partition, "no partition")
            where = TopicPartition(topic=known_topic(topic, topics.object_name), partition=int(partition))
            positions[where] = partitions.inner(partition).integer("offset", least=-1, most=INT64_MAX - 1) + 1
    return positions


def checkpoint_document(
    old: dict[str, Any], backup: Backup, segments: Iterable[ForeignSegment], now_ms: int
) -> dict[str, Any]:
    """Where each partition stands after its last segment; a partition that has none here stays as it was."""
    before = old.get("topics") or {}
    topics: dict[str, dict[str, Any]] = {name: dict(held) for name, held in before.items() if held}
    for each in segments:  # in the order of offsets, so that the last one stays
        topics.setdefault(each.where.topic, {})[str(each.where.partition)] = {
            "offset": each.end_offset - 1,
            "timestamp": each.details.get("last_timestamp", each.max_timestamp),
            "segment": each.path.rsplit("/", 1)[-1],
            "segment_offset": each.bytes,
        }
    return {**old, "backup_id": backup.backup_id, "timestamp": iso(now_ms), "topics": topics}
