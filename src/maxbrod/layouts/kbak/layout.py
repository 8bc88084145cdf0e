"""osodevops kafka-backup, 0.17 to 0.25: how a backup of it is published and pruned.

Publishing writes groups, then the manifest, then the positions. Readers rely on the manifest. The database is written
after it, because the tool resumes from the database: if the database were ahead, the tool would skip records that no
manifest names. Fields of the manifest that are unknown here, such as those of later versions, are kept. Pruning deletes
old segments: the manifest lists them under `pruned` first, as the tool's own manifests do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import CorruptDataError, ObjectNotFoundError
from maxbrod.layouts.coverage import by_partition
from maxbrod.layouts.documents import Fields, by_topic, read_document, write_document
from maxbrod.layouts.foreign import (
    ClusterFacts,
    ForeignSegment,
    ForeignTopic,
    Layout,
    Loss,
    RecordAccess,
    Survey,
    WriteOptions,
)
from maxbrod.layouts.kbak.format import COMMITTED, GROUPS, NAME, POSITIONS, SEGMENT, UNCOMMITTED_LEVEL, KbakCodec
from maxbrod.layouts.kbak.positions import positions_database
from maxbrod.layouts.kbak.survey import CONTROL_SKIPPED, KIND, parse_manifest
from maxbrod.layouts.kbak.survey import survey as survey_backup
from maxbrod.layouts.manifest import (
    MANIFEST,
    BackupRef,
    backup_for,
    codec_of,
    list_segments,
    manifest_to_prune,
    other_writer,
    refuse_rebuilt,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from maxbrod.storage.interface import Storage

_COUNTED: Final = (CONTROL_SKIPPED, "aborted_records_dropped")
"""Counts that the tool leaves out if they are 0."""


def publish(
    storage: Storage, survey: Survey, written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
) -> None:
    backup = backup_for(survey, options)
    codec, _ = codec_of(options, KbakCodec)
    taken_at_ms = facts.taken_at_ms or int(time.time() * 1000)
    path = backup.path(MANIFEST)
    refuse_rebuilt(storage, backup, survey)
    manifest = read_document(storage, path) or Fields(
        values=_new_manifest(backup, taken_at_ms), object_name=storage.name_of(path)
    )
    _refuse_other_writer(manifest, backup, survey, written)
    values = dict(manifest.values)
    _merge(values, written, facts, codec.name.lower())
    if facts.groups or not _exists(storage, backup.path(GROUPS)):
        # Like the tool, keep the last groups that were seen if this run has seen none.
        groups = [{"group_id": group.group_id, "offsets": by_topic(group.offsets)} for group in facts.groups]
        write_document(storage, backup.path(GROUPS), {"snapshot_time": taken_at_ms, "groups": groups})
    # The commit point: readers see the new segments from here on.
    write_document(storage, path, values)
    contents = parse_manifest(Fields(values=values, object_name=manifest.object_name), backup)
    database = positions_database(backup.backup_id, contents.positions, facts.cluster_id, taken_at_ms)
    storage.replace(backup.path(POSITIONS), database)


def _exists(storage: Storage, path: str) -> bool:
    try:
        storage.head(path)
    except ObjectNotFoundError:
        return False
    return True


def _refuse_other_writer(
    manifest: Fields, backup: BackupRef, survey: Survey, written: Sequence[ForeignSegment]
) -> None:
    """RefusedError: since the survey, something else than an earlier attempt at this publishing has added segments."""
    contents = parse_manifest(manifest, backup)
    if any(fault.fatal for fault in contents.faults):
        raise CorruptDataError(
            f"the manifest is damaged: {contents.faults[0].message}", object_name=manifest.object_name
        )
    keys = {segment.details["key"] for segment in written}
    ends = {segment.where: 0 for segment in written}
    for segment in contents.segments:
        if segment.where in ends and segment.details["key"] not in keys:
            ends[segment.where] = max(ends[segment.where], segment.end_offset)
    for where, end in ends.items():
        if end > survey.positions.get(where, 0):
            raise other_writer(where, end, survey.positions.get(where, 0), manifest.object_name)


def _new_manifest(backup: BackupRef, created_at_ms: int) -> dict[str, Any]:
    return {
        "backup_id": backup.backup_id,
        "created_at": created_at_ms,
        "source_cluster_id": None,
        "source_brokers": [],
        "compression": "zstd",
        "topics": [],
        "isolation_level": COMMITTED,
    }


def _merge(manifest: dict[str, Any], written: Iterable[ForeignSegment], facts: ClusterFacts, codec: str) -> None:
    """Adds segments, and the facts of the cluster, to a manifest that `parse_manifest` has found no fault with."""
    if facts.cluster_id is not None:
        manifest["source_cluster_id"] = facts.cluster_id
    if facts.brokers:
        manifest["source_brokers"] = list(facts.brokers)
    manifest["compression"] = codec
    if not facts.committed:
        manifest["isolation_level"] = UNCOMMITTED_LEVEL
    topics = _list(manifest, "topics")
    for segment in sorted(written, key=lambda one: one.base_offset):
        _merge_segment(_entry(topics, "name", segment.where.topic, _new_topic), segment)
    for topic in facts.topics.values():
        _merge_topic(_entry(topics, "name", topic.name, _new_topic), topic)


def _list(entry: dict[str, Any], name: str) -> list[Any]:
    """The list under a name, which is added if it is missing or null."""
    entry[name] = entry.get(name) or []
    held: list[Any] = entry[name]
    return held


def _entry(entries: list[Any], name: str, value: object, new: Any) -> dict[str, Any]:  # noqa: ANN401 - a function
    found: dict[str, Any] | None = next((entry for entry in entries if entry.get(name) == value), None)
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
    entry = _segment_entry(segment)
    segments = _list(partition, "segments")
    segments[:] = [other for other in segments if other.get("key") != entry["key"]]
    segments.append(entry)
    partition["covered_through"] = max(partition.get("covered_through", -1), entry["covered_end_offset"])


def _segment_entry(segment: ForeignSegment) -> dict[str, Any]:
    """The entry of a segment in a manifest of version 0.25."""
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


def prune(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    found = manifest_to_prune(storage, survey)
    if found is None:
        return
    backup, manifest = found
    leaving = {segment.details["key"] for segment in survey.segments if segment.path in going}
    if leaving:
        for topic in manifest.get("topics") or []:
            for partition in topic.get("partitions") or []:
                _move(partition, leaving)
        write_document(storage, backup.path(MANIFEST), manifest)
    kept = by_partition(segment for segment in survey.segments if segment.path not in going)
    first = {where: segments[0].base_offset for where, segments in kept.items()}
    named = {segment.path for segments in kept.values() for segment in segments}
    # Every segment below the first one that stays, those that a killed call has left included.
    objects = list_segments(storage, backup, SEGMENT)
    storage.delete([path for where, number, path, _ in objects if number < first.get(where, 0) and path not in named])


def _move(partition: dict[str, Any], leaving: set[str]) -> None:
    """Move segments from the list of a partition to what was pruned of it."""
    listed = partition.get("segments") or []
    gone = [segment for segment in listed if segment.get("key") in leaving]
    if not gone:
        return
    partition["segments"] = [segment for segment in listed if segment.get("key") not in leaving]
    first = min(segment["start_offset"] for segment in gone)
    entry = {"start_offset": first, "end_offset": max(segment["end_offset"] for segment in gone), "reason": "retention"}
    partition["pruned"] = [*(partition.get("pruned") or []), entry]


def _records() -> RecordAccess:
    from maxbrod.layouts.kbak import reader, writer  # noqa: PLC0415 - loads numba, which takes a second

    return RecordAccess(read=reader.read, write=writer.write, check=reader.check)


LAYOUT: Final = Layout(
    name=NAME,
    detect=KIND.detect,
    look=survey_backup,
    publish=publish,
    prune=prune,
    records=_records,
    choices=("backup_id",),
    losses=(
        Loss(what="producer ids, producer epochs, sequence numbers and leader epochs", real=False),
        Loss(what="transaction markers, and which records were written in a transaction", real=False),
        Loss(what="the timestamp type: all times come back as create times", real=False, field="timestamp_type"),
        Loss(what="header keys that are not UTF-8, when the tool itself reads them", real=False),
    ),
)
