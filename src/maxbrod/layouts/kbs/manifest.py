"""`manifest.json` of version 1 and `checkpoints/checkpoint.json`: parsed, and built from the segments of a backup.

The documented manifest only counts a partition's segments, and has neither groups nor topic settings. Those are in one
object of ours, `maxbrod`, which other readers skip: unknown fields are to be ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.backups import known_topic
from maxbrod.layouts.documents import INT32_MAX, INT64_MAX
from maxbrod.layouts.foreign import ForeignGroup, ForeignSegment, ForeignTopic
from maxbrod.layouts.kbs.schema import segment_name
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maxbrod.layouts.backups import Backup
    from maxbrod.layouts.documents import Fields
    from maxbrod.layouts.foreign import ClusterFacts

VERSION: Final = "1.0"
OURS: Final = "maxbrod"

_MAJOR: Final = re.compile(r"(\d{1,9})\.\d{1,9}")
_INT64_MIN: Final = -(1 << 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEntry:
    """What the document's part of a manifest says of a partition."""

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
    """The segments of a partition as `maxbrod` lists them; None if it does not, or not as many as there are."""
    partitions = manifest.inner(OURS).inner("segments").inner(entry.where.topic)
    listed = partitions.objects(str(entry.where.partition))
    if len(listed) != entry.segments:
        return None
    return [_own_segment(each, backup, entry.where, index) for index, each in enumerate(listed)]


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
    """What is known of topics: of those with records, and of those that only `maxbrod` knows."""
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


def build(
    old: dict[str, Any],
    backup: Backup,
    segments: Sequence[ForeignSegment],
    facts: ClusterFacts,
    *,
    compression: dict[str, Any],
    created_at_ms: int,
    completed_at_ms: int,
) -> dict[str, Any]:
    """The manifest of all these segments, with every field of the old one that nobody here knows."""
    cluster = _object(old, "source_cluster")
    cluster["cluster_id"] = facts.cluster_id if facts.cluster_id is not None else cluster.get("cluster_id")
    cluster["bootstrap_servers"] = list(facts.brokers) or cluster.get("bootstrap_servers", [])
    return {
        "version": VERSION,
        "backup_id": backup.backup_id,
        "created_at": iso(created_at_ms),
        **old,
        "completed_at": iso(completed_at_ms),
        "source_cluster": cluster,
        "compression": compression,
        "statistics": _statistics(old, segments),
        "time_range": _time_range(old, segments),
        "topics": _topics(old, segments),
        OURS: _own(old, segments, facts),
    }


def _object(old: dict[str, Any], name: str) -> dict[str, Any]:
    value = old.get(name)
    return dict(value) if isinstance(value, dict) else {}


def _statistics(old: dict[str, Any], segments: Sequence[ForeignSegment]) -> dict[str, Any]:
    unknown = [each for each in segments if "uncompressed_bytes" not in each.details]
    # Of segments that another tool wrote only the old sum is known.
    statistics = _object(old, "statistics")
    known = statistics.get("uncompressed_bytes")
    before = known if unknown and isinstance(known, int) else 0
    return {
        **statistics,
        "topics": len({each.where.topic for each in segments}),
        "partitions": len({each.where for each in segments}),
        "segments": len(segments),
        "records": sum(each.records or 0 for each in segments),
        "uncompressed_bytes": before + sum(each.details.get("uncompressed_bytes", 0) for each in segments),
        "compressed_bytes": sum(each.bytes for each in segments),
    }


def _time_range(old: dict[str, Any], segments: Sequence[ForeignSegment]) -> dict[str, Any]:
    before = _object(old, "time_range")
    earliest = [before.get("earliest_timestamp"), *(each.min_timestamp for each in segments)]
    latest = [before.get("latest_timestamp"), *(each.max_timestamp for each in segments)]
    return {
        **before,
        "earliest_timestamp": min((each for each in earliest if isinstance(each, int)), default=None),
        "latest_timestamp": max((each for each in latest if isinstance(each, int)), default=None),
    }


def _topics(old: dict[str, Any], segments: Sequence[ForeignSegment]) -> list[dict[str, Any]]:
    by_partition: dict[TopicPartition, list[ForeignSegment]] = {}
    for each in segments:
        by_partition.setdefault(each.where, []).append(each)
    topics = {each["name"]: {**each, "partitions": []} for each in old.get("topics") or []}
    for where, held in sorted(by_partition.items()):
        topic = topics.setdefault(where.topic, {"name": where.topic, "partitions": []})
        entry = {
            "partition": where.partition,
            "first_offset": held[0].base_offset,
            "last_offset": held[-1].end_offset - 1,
            "records": sum(each.records or 0 for each in held),
            "segments": len(held),
        }
        topic["partitions"].append(entry)
    return list(topics.values())


def _own(old: dict[str, Any], segments: Sequence[ForeignSegment], facts: ClusterFacts) -> dict[str, Any]:
    listed: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for each in segments:
        partitions = listed.setdefault(each.where.topic, {})
        partitions.setdefault(str(each.where.partition), []).append(_segment_entry(each))
    before = _object(old, OURS)
    topics = {
        name: {
            "partition_count": topic.partition_count,
            "replication_factor": topic.replication_factor,
            "configurations": dict(sorted(topic.configs.items())),
        }
        for name, topic in sorted(facts.topics.items())
    }
    complete = {topic: dict(parts) for topic, parts in listed.items() if all(map(_is_complete, parts.values()))}
    groups = [
        {"group_id": group.group_id, "offsets": {str(where): n for where, n in sorted(group.offsets.items())}}
        for group in facts.groups
    ]
    return {
        **before,
        "segments": complete,
        "topics": {**_object(before, "topics"), **topics},
        "groups": groups or before.get("groups", []),
    }


def _segment_entry(segment: ForeignSegment) -> dict[str, Any]:
    return {
        "first_offset": segment.base_offset,
        "last_offset": segment.end_offset - 1,
        "records": segment.records,
        "bytes": segment.bytes,
        "uncompressed_bytes": segment.details.get("uncompressed_bytes"),
        "earliest_timestamp": segment.min_timestamp,
        "latest_timestamp": segment.max_timestamp,
        "last_timestamp": segment.details.get("last_timestamp"),
    }


def _is_complete(entries: list[dict[str, Any]]) -> bool:
    """Of another tool's segments not all is known, and then only their headers tell."""
    return all(value is not None for entry in entries for value in entry.values())


def iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def milliseconds(text: str, object_name: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise CorruptDataError(f"{text[:60]!r} is no time", object_name=object_name) from error


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


def parse_groups(manifest: Fields) -> tuple[ForeignGroup, ...]:
    groups = []
    for group in manifest.inner(OURS).objects("groups"):
        offsets = group.inner("offsets")
        held = {_partition(offsets, name): offsets.integer(name) for name in offsets.values}
        groups.append(ForeignGroup(group_id=group.text("group_id"), offsets=held))
    return tuple(groups)


def _partition(offsets: Fields, name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    if not partition.isascii() or not partition.isdigit() or int(partition[:11]) > INT32_MAX:
        raise offsets.wrong(name, "no partition of a topic")
    return TopicPartition(topic=known_topic(topic, offsets.object_name), partition=int(partition))
