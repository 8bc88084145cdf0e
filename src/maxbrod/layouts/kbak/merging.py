"""How segments, and what is known of the cluster, are added to a manifest.

Fields of later versions, and such as nobody here knows, stay where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maxbrod.layouts.kbak.schema import COMMITTED, UNCOMMITTED_LEVEL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.layouts.backups import Backup
    from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, ForeignTopic


_COUNTED: Final = ("control_records_skipped", "aborted_records_dropped")
"""Which the tool leaves out where there are none."""


def new_manifest(backup: Backup, created_at_ms: int) -> dict[str, Any]:
    return {
        "backup_id": backup.backup_id,
        "created_at": created_at_ms,
        "source_cluster_id": None,
        "source_brokers": [],
        "compression": "zstd",
        "topics": [],
        "isolation_level": COMMITTED,
    }


def merge(manifest: dict[str, Any], written: Iterable[ForeignSegment], facts: ClusterFacts, codec: str) -> None:
    """Add segments, and what is known of the cluster, to a manifest that `parse_manifest` found nothing wrong with."""
    if facts.cluster_id is not None:
        manifest["source_cluster_id"] = facts.cluster_id
    if facts.brokers:
        manifest["source_brokers"] = list(facts.brokers)
    manifest["compression"] = codec
    if not facts.committed:
        manifest["isolation_level"] = UNCOMMITTED_LEVEL
    topics = _list(manifest, "topics")
    for segment in sorted(written, key=lambda each: each.base_offset):
        _merge_segment(_entry(topics, "name", segment.where.topic, _new_topic), segment)
    for topic in facts.topics.values():
        _merge_topic(_entry(topics, "name", topic.name, _new_topic), topic)


def _list(entry: dict[str, Any], name: str) -> list[Any]:
    """The list in its place, where that has none or null as well."""
    entry[name] = entry.get(name) or []
    held: list[Any] = entry[name]
    return held


def _entry(entries: list[Any], name: str, value: object, new: Any) -> dict[str, Any]:  # noqa: ANN401 - a function
    found: dict[str, Any] | None = next((each for each in entries if each.get(name) == value), None)
    if found is None:
        found = new(value)
        entries.append(found)
    return found


def _new_topic(name: str) -> dict[str, Any]:
    return {"name": name, "original_partition_count": None, "source_replication_factor": None, "partitions": []}


def _new_partition(partition: int) -> dict[str, Any]:
    return {"partition_id": partition, "segments": []}


def _merge_topic(entry: dict[str, Any], topic: ForeignTopic) -> None:
    partitions = entry.pop("partitions", None) or []
    if topic.partition_count is not None:
        entry["original_partition_count"] = topic.partition_count
    if topic.replication_factor is not None:
        entry["source_replication_factor"] = topic.replication_factor
    if topic.configs:
        entry["configurations"] = dict(sorted(topic.configs.items()))
    entry["partitions"] = partitions


def _merge_segment(topic: dict[str, Any], segment: ForeignSegment) -> None:
    partition = _entry(_list(topic, "partitions"), "partition_id", segment.where.partition, _new_partition)
    entry = segment_entry(segment)
    segments = _list(partition, "segments")
    segments[:] = [each for each in segments if each.get("key") != entry["key"]]
    segments.append(entry)
    partition["covered_through"] = max(partition.get("covered_through", -1), entry["covered_end_offset"])


def segment_entry(segment: ForeignSegment) -> dict[str, Any]:
    """A segment as the manifest of 0.25 has it."""
    details = segment.details
    entry = {
        "key": details["key"],
        "start_offset": segment.base_offset,
        "end_offset": segment.end_offset - 1,
        "start_timestamp": details["start_timestamp"],
        "end_timestamp": details["end_timestamp"],
        "record_count": segment.records,
        "uncompressed_size": details["uncompressed_size"],
        "compressed_size": segment.bytes,
        "sha256": details["sha256"],
        "uploaded_at": details["uploaded_at"],
        "covered_start_offset": details["covered_start_offset"],
        "covered_end_offset": details["covered_end_offset"],
    }
    return entry | {name: details[name] for name in _COUNTED if details[name]}
