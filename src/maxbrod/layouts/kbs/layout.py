"""The format in the documentation of osodevops kafka-backup: how a backup of it is published and pruned.

Publishing writes first the manifest, then the checkpoint: one ahead of the manifest would make a later run skip
records that no reader can find.

Pruning empties old segments: the manifest counts a partition's segments from 0, so that none of them can be missing. A
segment that was emptied has a header and a footer, and no batch. Readers of the documented format find every number
that the manifest counts, and no record in those.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import CorruptDataError, RefusedError
from maxbrod.layouts.coverage import by_partition
from maxbrod.layouts.documents import by_topic, read_document, write_document
from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, Layout, Loss, RecordAccess, Survey, WriteOptions
from maxbrod.layouts.kbs.format import (
    CHECKPOINT,
    EMPTY_BYTES,
    NAME,
    SEGMENT,
    KbsCodec,
    KbsHeader,
    encode_footer,
    encode_header,
)
from maxbrod.layouts.kbs.survey import EMPTIED, KIND, OURS, parse_checkpoint
from maxbrod.layouts.manifest import (
    MANIFEST,
    BackupRef,
    backup_for,
    codec_of,
    in_order,
    list_segments,
    manifest_to_prune,
    other_writer,
    refuse_rebuilt,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

    Emptied = Mapping[str, Mapping[str, int]]
    Partitions = Mapping[TopicPartition, list[ForeignSegment]]

_VERSION: Final = "1.0"


def publish(
    storage: Storage, survey: Survey, written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
) -> None:
    backup = backup_for(survey, options)
    codec, level = codec_of(options, KbsCodec)
    now_ms = int(time.time() * 1000)
    refuse_rebuilt(storage, backup, survey)
    manifest = read_document(storage, backup.path(MANIFEST))
    held, emptied = ((), {}) if manifest is None else _held(storage, backup, survey, written)
    segments = sorted((*held, *written), key=in_order)
    document = _manifest(
        {} if manifest is None else dict(manifest.values),
        backup,
        segments,
        facts,
        compression={"algorithm": codec.name.lower(), "level": 0 if level is None else level},
        emptied=emptied,
        created_at_ms=facts.taken_at_ms or now_ms,
        completed_at_ms=now_ms,
    )
    # The commit point: readers see the new segments from here on.
    write_document(storage, backup.path(MANIFEST), document)
    path = backup.path(CHECKPOINT)
    write_document(storage, path, _checkpoint(_old(storage, path), backup, segments, now_ms))


def _old(storage: Storage, path: str) -> dict[str, Any]:
    """The current checkpoint. One that cannot be read is replaced: the manifest has everything that it says."""
    try:
        found = read_document(storage, path)
        if found is None:
            return {}
        parse_checkpoint(found)
    except CorruptDataError:
        return {}
    return dict(found.values)


def _held(
    storage: Storage, backup: BackupRef, survey: Survey, written: Sequence[ForeignSegment]
) -> tuple[Sequence[ForeignSegment], Emptied]:
    """Return the segments of the manifest besides these. An earlier attempt may already have published some of them.

    And how many segments of each partition were emptied, by topic and partition.
    """
    now = KIND.survey(storage, None if backup.folder == "" else backup.folder)
    if "folder" not in now.details:
        raise RefusedError(
            "the manifest here is not of this layout",
            object_name=storage.name_of(backup.path(MANIFEST)),
            hint="choose another by --layout-option backup_id=ID",
        )
    if now.details.get("rebuilt") or any(fault.fatal for fault in now.faults):
        raise RefusedError(
            f"this backup is damaged, and a new manifest would hide it: {now.faults[0].message}",
            object_name=storage.name_of(now.faults[0].path),
            hint="convert what is left of it into another archive, and continue there",
        )
    paths = {segment.path for segment in written}
    held = [segment for segment in now.segments if segment.path not in paths]
    expected = {segment.where: survey.positions.get(segment.where, 0) for segment in written}
    for segment in held:
        if segment.end_offset > expected.get(segment.where, segment.end_offset):
            raise other_writer(
                segment.where, segment.end_offset, expected[segment.where], storage.name_of(segment.path)
            )
    return held, now.details.get("emptied", {})


def _manifest(
    old: dict[str, Any],
    backup: BackupRef,
    segments: Sequence[ForeignSegment],
    facts: ClusterFacts,
    *,
    compression: dict[str, Any],
    emptied: Emptied,
    created_at_ms: int,
    completed_at_ms: int,
) -> dict[str, Any]:
    """The manifest of all these segments, with every field of the old one that is unknown here."""
    cluster = _copied(old, "source_cluster")
    cluster["cluster_id"] = facts.cluster_id if facts.cluster_id is not None else cluster.get("cluster_id")
    cluster["bootstrap_servers"] = list(facts.brokers) or cluster.get("bootstrap_servers", [])
    return {
        "version": _VERSION,
        "backup_id": backup.backup_id,
        "created_at": _iso(created_at_ms),
        **old,
        "completed_at": _iso(completed_at_ms),
        "source_cluster": cluster,
        "compression": compression,
        "statistics": _statistics(old, segments, emptied),
        "time_range": _time_range(old, segments),
        "topics": _topics(old, segments, emptied),
        OURS: _own(old, segments, facts),
    }


def _copied(old: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = old.get(name)
    return dict(value) if isinstance(value, dict) else {}


def _statistics(old: dict[str, Any], segments: Sequence[ForeignSegment], emptied: Emptied) -> dict[str, Any]:
    unknown = [segment for segment in segments if "uncompressed_bytes" not in segment.details]
    # For segments of another tool, only the old sum is known.
    statistics = _copied(old, "statistics")
    known = statistics.get("uncompressed_bytes")
    before = known if unknown and isinstance(known, int) else 0
    return {
        **statistics,
        "topics": len({segment.where.topic for segment in segments}),
        "partitions": len({segment.where for segment in segments}),
        "segments": len(segments) + sum(sum(counts.values()) for counts in emptied.values()),
        "records": sum(segment.records or 0 for segment in segments),
        "uncompressed_bytes": before + sum(segment.details.get("uncompressed_bytes", 0) for segment in segments),
        "compressed_bytes": sum(segment.bytes for segment in segments),
    }


def _time_range(old: dict[str, Any], segments: Sequence[ForeignSegment]) -> dict[str, Any]:
    before = _copied(old, "time_range")
    earliest = [before.get("earliest_timestamp"), *(segment.min_timestamp for segment in segments)]
    latest = [before.get("latest_timestamp"), *(segment.max_timestamp for segment in segments)]
    return {
        **before,
        "earliest_timestamp": min((timestamp for timestamp in earliest if isinstance(timestamp, int)), default=None),
        "latest_timestamp": max((timestamp for timestamp in latest if isinstance(timestamp, int)), default=None),
    }


def _topics(old: dict[str, Any], segments: Sequence[ForeignSegment], emptied: Emptied) -> list[dict[str, Any]]:
    topics = {topic["name"]: {**topic, "partitions": []} for topic in old.get("topics") or []}
    for where, held in sorted(by_partition(segments).items()):
        topic = topics.setdefault(where.topic, {"name": where.topic, "partitions": []})
        entry = {
            "partition": where.partition,
            "first_offset": held[0].base_offset,
            "last_offset": held[-1].end_offset - 1,
            "records": sum(segment.records or 0 for segment in held),
            "segments": len(held) + emptied.get(where.topic, {}).get(str(where.partition), 0),
        }
        topic["partitions"].append(entry)
    return list(topics.values())


def _own(old: dict[str, Any], segments: Sequence[ForeignSegment], facts: ClusterFacts) -> dict[str, Any]:
    entries = {where: list(map(_segment_entry, held)) for where, held in by_partition(segments).items()}
    before = _copied(old, OURS)
    topics = {
        name: {
            "partition_count": topic.partition_count,
            "replication_factor": topic.replication_factor,
            "configurations": dict(sorted(topic.configs.items())),
        }
        for name, topic in sorted(facts.topics.items())
    }
    incomplete = {where.topic for where, listed in entries.items() if not _is_complete(listed)}
    complete = {where: listed for where, listed in entries.items() if where.topic not in incomplete}
    groups = [
        {"group_id": group.group_id, "offsets": {str(where): n for where, n in sorted(group.offsets.items())}}
        for group in facts.groups
    ]
    return {
        **before,
        "segments": by_topic(complete),
        "topics": {**_copied(before, "topics"), **topics},
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
    """True if everything is known of these segments. Those of another tool are described by their headers only."""
    return all(value is not None for entry in entries for value in entry.values())


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _checkpoint(
    old: dict[str, Any], backup: BackupRef, segments: Iterable[ForeignSegment], now_ms: int
) -> dict[str, Any]:
    """The position of each partition after its last segment. A partition without segments here keeps its entry."""
    before = old.get("topics") or {}
    topics: dict[str, dict[str, Any]] = {name: dict(held) for name, held in before.items() if held}
    for segment in segments:  # in the order of offsets, so that the last one stays
        topics.setdefault(segment.where.topic, {})[str(segment.where.partition)] = {
            "offset": segment.end_offset - 1,
            "timestamp": segment.details.get("last_timestamp", segment.max_timestamp),
            "segment": segment.path.rsplit("/", 1)[-1],
            "segment_offset": segment.bytes,
        }
    return {**old, "backup_id": backup.backup_id, "timestamp": _iso(now_ms), "topics": topics}


def prune(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    found = manifest_to_prune(storage, survey)
    if found is None:
        return
    backup, manifest = found
    kept = by_partition(segment for segment in survey.segments if segment.path not in going)
    if going:
        document = _without(manifest, by_partition(survey.segments), kept)
        write_document(storage, backup.path(MANIFEST), document)
    # Those that a killed call has left included.
    for where, number, name, size in list_segments(storage, backup, SEGMENT):
        if where in kept and number < kept[where][0].details["index"] and size != EMPTY_BYTES:
            storage.replace(name, _empty(kept[where][0].base_offset))


def _empty(first_offset: int) -> bytes:
    from maxbrod.layouts.kbs.crc64 import crc64  # noqa: PLC0415 - loads numba, which a survey must not

    header = encode_header(KbsHeader(codec=KbsCodec.NONE, first_offset=first_offset, records=0, checksum=crc64(b"")))
    return header + encode_footer(0, crc64(header))


def _without(old: Mapping[str, Any], before: Partitions, kept: Partitions) -> dict[str, Any]:
    """The manifest without the records of emptied segments, which it still counts."""
    gone = [segment for where, held in before.items() for segment in held if segment not in kept[where]]
    segments = [segment for held in kept.values() for segment in held]
    statistics = _copied(old, "statistics")
    for name, less in (
        ("records", sum(segment.records or 0 for segment in gone)),
        ("compressed_bytes", sum(segment.bytes - EMPTY_BYTES for segment in gone)),
        ("uncompressed_bytes", sum(segment.details.get("uncompressed_bytes", 0) for segment in gone)),
    ):
        if isinstance(statistics.get(name), int):
            statistics[name] = max(statistics[name] - less, 0)
    times = [segment.min_timestamp for segment in segments if segment.min_timestamp is not None]
    time_range = _copied(old, "time_range")
    if len(times) == len(segments):
        time_range["earliest_timestamp"] = min(times)
    topics = [
        {
            **topic,
            "partitions": [_kept_entry(topic["name"], entry, kept) for entry in topic.get("partitions") or []],
        }
        for topic in old.get("topics") or []
    ]
    return {**old, "statistics": statistics, "time_range": time_range, "topics": topics, OURS: _pruned_own(old, kept)}


def _kept_entry(topic: str, entry: dict[str, Any], kept: Partitions) -> dict[str, Any]:
    held = next(
        (held for where, held in kept.items() if (where.topic, where.partition) == (topic, entry["partition"])), None
    )
    if held is None:
        return entry
    return {**entry, "first_offset": held[0].base_offset, "records": sum(segment.records or 0 for segment in held)}


def _pruned_own(old: Mapping[str, Any], kept: Partitions) -> dict[str, Any]:
    own = _copied(old, OURS)
    listed = {name: dict(entries) for name, entries in _copied(own, "segments").items()}
    for where, held in kept.items():
        number, entries = str(where.partition), listed.get(where.topic, {})
        if number in entries:
            entries[number] = entries[number][-len(held) :]
    emptied = {where: held[0].details["index"] for where, held in kept.items() if held[0].details["index"]}
    return {**own, "segments": listed, EMPTIED: by_topic(emptied)}


def _records() -> RecordAccess:
    from maxbrod.layouts.kbs import reader, writer  # noqa: PLC0415 - loads numba, which takes a second

    return RecordAccess(read=reader.read, write=writer.write, check=reader.check)


LAYOUT: Final = Layout(
    name=NAME,
    detect=KIND.detect,
    look=KIND.survey,
    publish=publish,
    prune=prune,
    records=_records,
    choices=("backup_id",),
    losses=(
        Loss(what="producer ids, producer epochs, sequence numbers and leader epochs", real=False),
        Loss(what="transaction markers, and which records were written in a transaction", real=False),
        Loss(what="the timestamp type: all times come back as create times", real=False, field="timestamp_type"),
    ),
)
