"""The names of a binlog archive: one folder a topic, in it files whose names tell partition and offset."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.errors import UsageError
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.storage.interface import ObjectInfo

RECORDS: Final = "_records"
INDEX: Final = "_index"
OFFSET_MAX: Final = (1 << 63) - 1

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PARTITION_FILE: Final = re.compile(r"(index|consumer_offsets)_partition_(\d{3,10})")
_SEGMENT_FILE: Final = re.compile(r"segment_partition_(\d{3,10})_from_offset_(\d{10,19})(_records|_index)?")
_PARTITION_MAX: Final = (1 << 31) - 1


@dataclass(slots=True, kw_only=True)
class SegmentObjects:
    """The two files of a segment, where they are there."""

    records: ObjectInfo | None = None
    index: ObjectInfo | None = None


@dataclass(slots=True, kw_only=True)
class PartitionObjects:
    """The files of a partition. Segments by the offset in their names."""

    index: ObjectInfo | None = None
    groups: ObjectInfo | None = None
    segments: dict[int, SegmentObjects] = field(default_factory=dict)

    @property
    def backed_up(self) -> bool:
        return self.index is not None or bool(self.segments)


def check_topic(topic: str) -> str:
    """The same topic, or UsageError where Kafka could not have one of that name."""
    if topic in {".", ".."} or not _TOPIC.fullmatch(topic):
        raise UsageError(f"Kafka has no topic of the name {topic!r}", hint="letters, digits, '.', '_' and '-'")
    return topic


def index_path(where: TopicPartition) -> str:
    return f"{check_topic(where.topic)}/index_partition_{where.partition:03d}"


def groups_path(where: TopicPartition) -> str:
    return f"{check_topic(where.topic)}/consumer_offsets_partition_{where.partition:03d}"


def segment_prefix(partition: int, start_offset: int) -> str:
    """A segment's name in the partition index: that of its files without their ends."""
    return f"segment_partition_{partition:03d}_from_offset_{start_offset:010d}"


def segment_path(where: TopicPartition, start_offset: int, kind: str) -> str:
    return f"{check_topic(where.topic)}/{segment_prefix(where.partition, start_offset)}{kind}"


def start_offset_of(prefix: str, partition: int) -> int | None:
    """The offset in a segment's name; None where it is no name of a segment of this partition."""
    found = _SEGMENT_FILE.fullmatch(prefix)
    if found is None or found[3] is not None:
        return None
    start_offset = int(found[2])
    return start_offset if prefix == segment_prefix(partition, start_offset) and start_offset <= OFFSET_MAX else None


def is_ours(path: str) -> bool:
    """Whether an object has a name of this layout."""
    topic, slash, name = path.partition("/")
    known = _PARTITION_FILE.fullmatch(name) or _SEGMENT_FILE.fullmatch(name)
    return bool(slash and _TOPIC.fullmatch(topic) and known)


def arrange(objects: Iterable[ObjectInfo]) -> dict[TopicPartition, PartitionObjects]:
    """The archive's objects by partition, in order. Others are passed over."""
    tree: dict[TopicPartition, PartitionObjects] = {}
    for info in objects:
        topic, _, name = info.path.partition("/")
        if _TOPIC.fullmatch(topic):
            _place(tree, topic, name, info)
    return dict(sorted(tree.items()))


def _place(tree: dict[TopicPartition, PartitionObjects], topic: str, name: str, info: ObjectInfo) -> None:
    if found := _PARTITION_FILE.fullmatch(name):
        number = int(found[2])
        if number <= _PARTITION_MAX and found[2] == f"{number:03d}":
            partition = tree.setdefault(TopicPartition(topic=topic, partition=number), PartitionObjects())
            if found[1] == "index":
                partition.index = info
            else:
                partition.groups = info
    elif (found := _SEGMENT_FILE.fullmatch(name)) and found[3]:
        number, start_offset = int(found[1]), start_offset_of(name.removesuffix(found[3]), int(found[1]))
        if start_offset is not None and number <= _PARTITION_MAX:
            partition = tree.setdefault(TopicPartition(topic=topic, partition=number), PartitionObjects())
            segment = partition.segments.setdefault(start_offset, SegmentObjects())
            if found[3] == RECORDS:
                segment.records = info
            else:
                segment.index = info
