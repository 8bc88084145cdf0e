"""The names and documents of a backup, and the fixed parts of a segment, big-endian: headers, footer, codecs, sizes."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, by_partition, by_topic
from maxbrod.layouts.manifest import BackupRef
from maxbrod.model import Codec, TopicPartition

NAME: Final = "kbs"
MAGIC: Final = b"KBS1"
VERSION: Final = 1
HEADER_BYTES: Final = 32
BATCH_HEADER_BYTES: Final = 24
FOOTER_BYTES: Final = 16
RECORD_BYTES_MIN: Final = 5
"""Two deltas, two lengths, a header count: a byte each."""
BATCH_BYTES_MAX: Final = 1 << 20
"""A batch ends after the record that makes it this large, before compression."""
BLOCK_BYTES_LIMIT: Final = 1 << 30

EMPTY_BYTES: Final = HEADER_BYTES + FOOTER_BYTES
"""The size of a segment without a batch."""

_HEADER: Final = struct.Struct(">4sBBHqQQ")
BATCH: Final = struct.Struct(">qIIII")
FOOTER: Final = struct.Struct(">QQ")
"""The count of records, and the CRC-64 of everything before the footer."""
_RATIO_MAX: Final = 1000
_ALWAYS_BYTES: Final = 64 << 20
DOCUMENT_VERSION: Final = "1.0"
OURS: Final = "maxbrod"
"""The part of the manifest that is ours. Readers of the documented format ignore fields that they do not know."""
EMPTIED: Final = "emptied"
"""In our part: how many of a partition's first segments were emptied, by topic and partition."""
CHECKPOINT: Final = "checkpoints/checkpoint.json"
SEGMENT: Final = re.compile(r"topics/([^/]+)/(\d{1,10})/segment-(\d{8,18})\.kbs")
"""Names below the backup's folder. Groups: topic, partition, number (from 0)."""


Emptied: TypeAlias = Mapping[str, Mapping[str, int]]
Partitions: TypeAlias = Mapping[TopicPartition, list[ForeignSegment]]


class KbsCodec(IntEnum):
    NONE = 0
    LZ4 = 1
    ZSTD = 2

    @property
    def kafka(self) -> Codec:
        """The codec of Kafka's batches that does the same: lz4 as a frame, zstd as one frame."""
        return Codec[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class KbsHeader:
    codec: KbsCodec
    first_offset: int
    records: int
    checksum: int
    """CRC-64 of all batches."""


class BatchHeader(NamedTuple):
    base_offset: int
    records: int
    stored_bytes: int
    block_bytes: int
    """Before compression."""
    crc: int
    """CRC-32 of what is stored."""


def encode_header(header: KbsHeader) -> bytes:
    return _HEADER.pack(MAGIC, VERSION, header.codec, 0, header.first_offset, header.records, header.checksum)


def decode_header(data: bytes) -> KbsHeader:
    """The header of a segment of at least HEADER_BYTES."""
    magic, version, codec, flags, first_offset, records, checksum = _HEADER.unpack(data)
    if magic != MAGIC:
        raise UnsupportedFormatError(f"this is not a segment: it begins with {magic.hex()}", hint="KBS1 is known")
    if version != VERSION or flags:
        raise UnsupportedFormatError(
            f"this segment has version {version} and flags {flags}", hint="version 1 without flags is known"
        )
    if codec not in list(KbsCodec):
        raise UnsupportedFormatError(f"this segment has the codec {codec}", hint="0 none, 1 lz4 and 2 zstd are known")
    if first_offset < 0:
        raise CorruptDataError(f"this segment claims to begin with offset {first_offset}")
    return KbsHeader(codec=KbsCodec(codec), first_offset=first_offset, records=records, checksum=checksum)


def decode_batch_header(data: bytes) -> BatchHeader:
    batch = BatchHeader(*BATCH.unpack(data))
    base_offset, records, stored_bytes, block_bytes, _ = batch
    if base_offset < 0 or records > block_bytes // RECORD_BYTES_MIN:
        raise CorruptDataError(f"a batch of {block_bytes} bytes claims to have {records} records from {base_offset} on")
    # The claimed size is bounded by the stored size, because memory is allocated before anything is unpacked.
    if block_bytes > min(BLOCK_BYTES_LIMIT, max(_ALWAYS_BYTES, _RATIO_MAX * stored_bytes)):
        raise CorruptDataError(f"a batch of {stored_bytes} bytes claims to unpack to {block_bytes}")
    return batch


def segment_name(where: TopicPartition, index: int) -> str:
    return f"topics/{where.topic}/{where.partition}/segment-{index:08d}.kbs"


def encode_manifest(
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
        "version": DOCUMENT_VERSION,
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
    # Segments of another tool are described by their headers only, so that not everything is known of them.
    incomplete = {where.topic for where, listed in entries.items() if any(None in entry.values() for entry in listed)}
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


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def encode_checkpoint(
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


def pruned_manifest(old: Mapping[str, Any], before: Partitions, kept: Partitions) -> dict[str, Any]:
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
        {**topic, "partitions": [_kept_entry(topic["name"], entry, kept) for entry in topic.get("partitions") or []]}
        for topic in old.get("topics") or []
    ]
    return {**old, "statistics": statistics, "time_range": time_range, "topics": topics, OURS: _pruned_own(old, kept)}


def _kept_entry(topic: str, entry: dict[str, Any], kept: Partitions) -> dict[str, Any]:
    held = kept.get(TopicPartition(topic=topic, partition=entry["partition"]))
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
