"""`manifest.json` of version 1 and `checkpoints/checkpoint.json` as values. `publishing` builds them.

The documented manifest only counts a partition's segments, and has neither groups nor topic settings. Those are in one
object of ours, `maxbrod`, which other readers skip: unknown fields are to be ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.documents import INT32_MAX, INT64_MAX, Fields, known_topic
from maxbrod.layouts.foreign import ForeignGroup, ForeignSegment, ForeignTopic
from maxbrod.layouts.kbs.schema import segment_name
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.layouts.backups import Backup

OURS: Final = "maxbrod"
EMPTIED: Final = "emptied"
"""In our part: how many of a partition's first segments were emptied, by topic and partition."""

_MAJOR: Final = re.compile(r"(\d{1,9})\.\d{1,9}")
_INT64_MIN: Final = -(1 << 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEntry:
    """A partition in the documented part of a manifest."""

    where: TopicPartition
    first_offset: int
    last_offset: int
    """-1 if there is none."""
    records: int
    segments: int


def check_version(manifest: Fields) -> None:
    version = manifest.text("version")
    match = _MAJOR.fullmatch(version)
    if match is None or int(match[1]) != 1:
        raise UnsupportedFormatError(
            f"the manifest has version {version[:40]!r}", object_name=manifest.object_name, hint="1.x is known"
        )


def parse_partitions(topic: Fields) -> list[PartitionEntry]:
    name = known_topic(topic.text("name"), topic.object_name)
    return [
        PartitionEntry(
            where=TopicPartition(topic=name, partition=each.integer("partition", most=INT32_MAX)),
            first_offset=each.integer("first_offset", default=0),
            last_offset=each.integer("last_offset", least=-1, most=INT64_MAX - 1),
            records=each.integer("records"),
            segments=each.integer("segments"),
        )
        for each in topic.objects("partitions")
    ]


def parse_own_segments(manifest: Fields, backup: Backup, entry: PartitionEntry) -> list[ForeignSegment] | None:
    """The segments of a partition as `maxbrod` lists them; None if it lists another number of them.

    Those that were emptied are counted by the manifest, and not listed.
    """
    emptied = parse_emptied(manifest, entry)
    partitions = manifest.inner(OURS).inner("segments").inner(entry.where.topic)
    listed = partitions.objects(str(entry.where.partition))
    if emptied + len(listed) != entry.segments:
        return None
    return [_own_segment(each, backup, entry.where, index) for index, each in enumerate(listed, emptied)]


def parse_emptied(manifest: Fields, entry: PartitionEntry) -> int:
    """How many of the first segments of a partition were emptied by `prune`."""
    partitions = manifest.inner(OURS).inner(EMPTIED).inner(entry.where.topic)
    return partitions.integer(str(entry.where.partition), default=0, most=entry.segments)


def _own_segment(fields: Fields, backup: Backup, where: TopicPartition, index: int) -> ForeignSegment:
    first = fields.integer("first_offset")
    return ForeignSegment(
        where=where,
        path=backup.path(segment_name(where, index)),
        base_offset=first,
        end_offset=fields.integer("last_offset", least=first, most=INT64_MAX - 1) + 1,
        records=fields.integer("records"),
        bytes=fields.integer("bytes"),
        min_timestamp=fields.integer("earliest_timestamp", least=_INT64_MIN),
        max_timestamp=fields.integer("latest_timestamp", least=_INT64_MIN),
        details={
            "index": index,
            "uncompressed_bytes": fields.integer("uncompressed_bytes"),
            "last_timestamp": fields.integer("last_timestamp", least=_INT64_MIN),
        },
    )


def parse_topics(manifest: Fields, names: Iterable[str]) -> dict[str, ForeignTopic]:
    """The topics that have records, and those that only `maxbrod` lists."""
    own = manifest.inner(OURS).inner("topics")
    topics = {name: ForeignTopic(name=name) for name in names}
    for name in own.values:
        fields = own.inner(name)
        topics[known_topic(name, manifest.object_name)] = ForeignTopic(
            name=name,
            partition_count=fields.optional_integer("partition_count", least=1, most=INT32_MAX),
            replication_factor=fields.optional_integer("replication_factor", least=1, most=INT32_MAX),
            configs={
                key: value for key, value in fields.inner("configurations").values.items() if isinstance(value, str)
            },
        )
    return topics


def parse_groups(manifest: Fields) -> tuple[ForeignGroup, ...]:
    """The groups in our part of the manifest: `{"group_id": …, "offsets": {"topic-0": next offset}}`."""
    groups = []
    for group in manifest.inner(OURS).objects("groups"):
        offsets = group.inner("offsets")
        held = {_partition(offsets, name): offsets.integer(name) for name in offsets.values}
        groups.append(ForeignGroup(group_id=group.text("group_id"), offsets=held))
    return tuple(groups)


def _partition(offsets: Fields, name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    number = offsets.partition(partition)
    return TopicPartition(topic=known_topic(topic, offsets.object_name), partition=number)


def parse_checkpoint(checkpoint: Fields) -> dict[TopicPartition, int]:
    """The next offset of each partition, by which a backup resumes. The manifest is the truth."""
    positions = {}
    topics = checkpoint.inner("topics")
    for topic in topics.values:
        partitions = topics.inner(topic)
        for name in partitions.values:
            number = partitions.partition(name)
            where = TopicPartition(topic=known_topic(topic, topics.object_name), partition=number)
            positions[where] = partitions.inner(name).integer("offset", least=-1, most=INT64_MAX - 1) + 1
    return positions


def milliseconds(text: str, object_name: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise CorruptDataError(f"{text[:60]!r} is no time", object_name=object_name) from error
