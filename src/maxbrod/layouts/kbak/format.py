"""The names and documents of a backup, and the fixed parts of a segment: header, footer, codecs, limits. Little-endian.

The body of a segment is one stream of all its records. zstd is one frame that does not state the size of its content,
so it is streamed. lz4 is a size (u32) and one raw block, so it is held in memory whole.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import cramjam
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.errors import CorruptDataError, ObjectNotFoundError, TruncatedDataError, UnsupportedFormatError, UsageError
from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, ForeignTopic
from maxbrod.layouts.manifest import SEGMENT_BYTES_LIMIT, BackupRef
from maxbrod.model import INT32_MAX, TopicPartition, is_topic_name
from maxbrod.storage.interface import Storage
from maxbrod.storage.urls import check_name

if TYPE_CHECKING:
    from collections.abc import Buffer

NAME: Final = "kbak"
MAGIC: Final = b"KBAK"
MAGIC_END: Final = b"BKAE"
VERSION: Final = 1
COMMITTED: Final = "read_committed"
UNCOMMITTED_LEVEL: Final = "read_uncommitted"
HEADER_BYTES: Final = 32
FOOTER_BYTES: Final = 8
RECORD_BYTES_MIN: Final = 30
"""A record with its length, without key, value and headers."""
RECORD_BYTES_MAX: Final = 1 << 30
"""No broker accepts as much. A record that claims more would only make a reader allocate memory."""

_HEADER: Final = struct.Struct("<4sBBHQqq")
GROUPS: Final = "consumer-groups-snapshot.json"
POSITIONS: Final = "offsets.db"
SEGMENT: Final = re.compile(r"topics/([^/]+)/partition=(\d{1,10})/segment-(\d{20})\.bin(?:\.zst|\.lz4)?")
"""Names below the backup's folder. Groups: topic, partition, offset of the first record."""
CONTROL_SKIPPED: Final = "control_records_skipped"
_COUNTED: Final = (CONTROL_SKIPPED, "aborted_records_dropped")
"""Counts that the tool leaves out if they are 0."""
_SIZE_BYTES: Final = 4
_LZ4_RATIO_MAX: Final = 255  # bytes that one byte of a block can stand for


class KbakCodec(IntEnum):
    """The byte in the header decides, not the ending of the name."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2

    @property
    def ending(self) -> str:
        return ("", ".zst", ".lz4")[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class KbakHeader:
    codec: KbakCodec
    records: int
    start_offset: int
    end_offset: int
    """The offset of the last record."""


def encode_header(header: KbakHeader) -> bytes:
    return _HEADER.pack(MAGIC, VERSION, header.codec, 0, header.records, header.start_offset, header.end_offset)


def decode_header(data: bytes) -> KbakHeader:
    """The header of a segment that begins with the magic and has at least HEADER_BYTES."""
    _, version, codec, reserved, records, start_offset, end_offset = _HEADER.unpack(data)
    if version != VERSION or reserved:
        raise UnsupportedFormatError(
            f"this segment has version {version} and flags {reserved}", hint="version 1 without flags is known"
        )
    if codec not in list(KbakCodec):
        raise UnsupportedFormatError(f"this segment has the codec {codec}", hint="0 none, 1 zstd and 2 lz4 are known")
    if records and not 0 <= start_offset <= end_offset:
        raise CorruptDataError(f"this segment claims to reach from offset {start_offset} to {end_offset}")
    return KbakHeader(codec=KbakCodec(codec), records=records, start_offset=start_offset, end_offset=end_offset)


def segment_name(where: TopicPartition, start_offset: int, codec: KbakCodec) -> str:
    return f"topics/{where.topic}/partition={where.partition}/segment-{start_offset:020d}.bin{codec.ending}"


def path_of(backup: BackupRef, key: str, object_name: str) -> str:
    """The path of the object that a key in the manifest names. Keys begin with the backup's id, not with its folder."""
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


def compress(codec: KbakCodec, body: NDArray[np.uint8], level: int | None) -> list[Buffer]:
    """The stored form of a body, in pieces."""
    match codec:
        case KbakCodec.NONE:
            return [body]
        case KbakCodec.ZSTD:
            # One frame, which unlike the tool's own states the size of its content. Arrow's encoder takes two thirds of
            # the time of cramjam's for a body of many megabytes.
            return [pa.Codec("zstd", compression_level=level).compress(pa.py_buffer(body))]
        case KbakCodec.LZ4:
            size = len(body).to_bytes(_SIZE_BYTES, "little")
            return [size, memoryview(cramjam.lz4.compress_block(body, store_size=False))]


def open_body(codec: KbakCodec, stored: pa.NativeFile, size: int) -> pa.NativeFile:
    """The records of a body of `size` stored bytes as a stream, which `reader` reads piece by piece."""
    match codec:
        case KbakCodec.NONE:
            return stored
        case KbakCodec.ZSTD:
            return pa.CompressedInputStream(stored, "zstd")
        case KbakCodec.LZ4:
            return pa.BufferReader(pa.py_buffer(decompress_lz4(stored.read(size))))


def decompress_lz4(stored: bytes) -> NDArray[np.uint8]:
    if len(stored) < _SIZE_BYTES:
        raise TruncatedDataError("an lz4 body is shorter than its size field")
    size = int.from_bytes(stored[:_SIZE_BYTES], "little")
    if size > min(SEGMENT_BYTES_LIMIT, _LZ4_RATIO_MAX * len(stored)):
        raise CorruptDataError(f"an lz4 body of {len(stored)} bytes claims to unpack to {size}")
    out = np.empty(size, np.uint8)
    if not size and len(stored) == _SIZE_BYTES + 1:
        return out
    try:
        written = int(cramjam.lz4.decompress_block_into(memoryview(stored)[_SIZE_BYTES:], out, output_len=size))
    except cramjam.DecompressionError as error:
        raise CorruptDataError(f"an lz4 body cannot be decompressed: {error}") from error
    if written != size:
        raise CorruptDataError(f"an lz4 body unpacks to {written} bytes, not {size}")
    return out


def new_manifest(backup: BackupRef, created_at_ms: int) -> dict[str, Any]:
    return {
        "backup_id": backup.backup_id,
        "created_at": created_at_ms,
        "source_cluster_id": None,
        "source_brokers": [],
        "compression": "zstd",
        "topics": [],
        "isolation_level": COMMITTED,
    }


def merge_manifest(
    manifest: dict[str, Any], written: Iterable[ForeignSegment], facts: ClusterFacts, codec: str
) -> None:
    """Adds segments, and the facts of the cluster, to a manifest that `parse_manifest` has found no fault with."""
    if facts.cluster_id is not None:
        manifest["source_cluster_id"] = facts.cluster_id
    if facts.brokers:
        manifest["source_brokers"] = list(facts.brokers)
    manifest["compression"] = codec
    if not facts.committed:
        manifest["isolation_level"] = UNCOMMITTED_LEVEL
    topics = _list(manifest, "topics")
    for segment in sorted(written, key=lambda segment: segment.base_offset):
        _merge_segment(_entry(topics, _new_topic(segment.where.topic)), segment)
    for topic in facts.topics.values():
        _merge_topic(_entry(topics, _new_topic(topic.name)), topic)


def _list(entry: dict[str, Any], name: str) -> list[Any]:
    """The list under a name, which is added if it is missing or null."""
    entry[name] = entry.get(name) or []
    held: list[Any] = entry[name]
    return held


def _entry(entries: list[Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the entry whose first field is that of `new`, which is added if there is none."""
    name, value = next(iter(new.items()))
    found: dict[str, Any] | None = next((entry for entry in entries if entry.get(name) == value), None)
    if found is None:
        entries.append(new)
    return new if found is None else found


def _new_topic(name: str) -> dict[str, Any]:
    return {"name": name, "original_partition_count": None, "source_replication_factor": None, "partitions": []}


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
    partition = _entry(_list(topic, "partitions"), {"partition_id": segment.where.partition, "segments": []})
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


def move_pruned(partition: dict[str, Any], leaving: set[str]) -> None:
    """Move segments from the list of a partition to what was pruned of it."""
    listed = partition.get("segments") or []
    gone = [segment for segment in listed if segment.get("key") in leaving]
    if not gone:
        return
    partition["segments"] = [segment for segment in listed if segment.get("key") not in leaving]
    first = min(segment["start_offset"] for segment in gone)
    entry = {"start_offset": first, "end_offset": max(segment["end_offset"] for segment in gone), "reason": "retention"}
    partition["pruned"] = [*(partition.get("pruned") or []), entry]


# `offsets.db`: the SQLite database from which the tool resumes, at the offset after the last one. Reading is limited in
# every respect, because a database brings its own schema. Writing creates it from plain rows.
_BYTES_MAX: Final = 256 << 20
_STEPS: Final = 100_000
_STEPS_MAX: Final = 10_000  # times _STEPS: a table of millions of rows passes, an endless view does not

_SCHEMA: Final = """
CREATE TABLE offsets (
    backup_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    checkpoint_ts INTEGER NOT NULL DEFAULT (strftime('%s', 'now') * 1000),
    PRIMARY KEY (backup_id, topic, partition)
);
CREATE TABLE backup_jobs (
    backup_id TEXT PRIMARY KEY,
    source_cluster_id TEXT,
    status TEXT NOT NULL DEFAULT 'running',
    created_at INTEGER NOT NULL DEFAULT (strftime('%s', 'now') * 1000),
    last_heartbeat INTEGER NOT NULL DEFAULT (strftime('%s', 'now') * 1000),
    last_checkpoint INTEGER
);
CREATE INDEX idx_offsets_backup ON offsets(backup_id);
CREATE INDEX idx_jobs_status ON backup_jobs(status);
"""


def read_positions(storage: Storage, path: str, backup_id: str) -> dict[TopicPartition, int]:
    """Return the next offset of each partition; none if there is no database."""
    name = storage.name_of(path)
    try:
        size = storage.head(path).size
        if size > _BYTES_MAX:
            raise CorruptDataError(f"a database of {size} bytes cannot be right", object_name=name)
        data = bytearray(storage.get(path))
    except ObjectNotFoundError:
        return {}
    try:
        rows = _rows(data, backup_id)
    except (sqlite3.Error, OverflowError, MemoryError) as error:
        raise CorruptDataError(f"this is not a database of offsets: {error}", object_name=name) from error
    positions = {}
    for topic, partition, last_offset in rows:
        typed = isinstance(topic, str) and isinstance(partition, int) and isinstance(last_offset, int)
        if not (typed and is_topic_name(topic) and 0 <= partition <= INT32_MAX and last_offset >= -1):
            raise CorruptDataError("the database of offsets has a row that cannot be right", object_name=name)
        positions[TopicPartition(topic=topic, partition=partition)] = last_offset + 1
    return positions


def _rows(data: bytearray, backup_id: str) -> list[tuple[Any, Any, Any]]:
    if data[18:20] == b"\2\2":
        # The tool uses a write-ahead log, which a database in memory cannot have.
        data[18:20] = b"\1\1"
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(bytes(data))
        # Ends a query that takes too many steps.
        rounds = count(1)
        connection.set_progress_handler(lambda: next(rounds) > _STEPS_MAX, _STEPS)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        query = "SELECT topic, partition, last_offset FROM offsets WHERE backup_id = ?"
        return connection.execute(query, (backup_id,)).fetchall()


def positions_database(
    backup_id: str, positions: Mapping[TopicPartition, int], cluster_id: str | None, taken_at_ms: int
) -> bytes:
    rows = [
        (backup_id, where.topic, where.partition, position - 1, taken_at_ms)
        for where, position in sorted(positions.items())
        if position > 0
    ]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        connection.executemany("INSERT INTO offsets VALUES (?, ?, ?, ?, ?)", rows)
        job = (backup_id, cluster_id, "completed", taken_at_ms, taken_at_ms, taken_at_ms)
        connection.execute("INSERT INTO backup_jobs VALUES (?, ?, ?, ?, ?, ?)", job)
        connection.commit()
        return connection.serialize()
