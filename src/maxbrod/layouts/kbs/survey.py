"""The contents of a backup, by its manifest, and by the headers of its segments where the manifest says too little.

The documented manifest, of version 1, only counts a partition's segments, and has neither groups nor topic settings.
Those are in one object of ours, `maxbrod`, which other readers skip: unknown fields are to be ignored. Without it, a
header has the first offset and the number of records. The next segment's header, or the manifest, shows where a segment
ends; if neither does, its records are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from maxbrod.batch.columns import number_column
from maxbrod.errors import CorruptDataError, MaxbrodError, UnsupportedFormatError, naming
from maxbrod.layouts.documents import INT32_MAX, INT64_MAX, Fields, by_topic, known_topic, read_document
from maxbrod.layouts.foreign import Fault, ForeignGroup, ForeignSegment, ForeignTopic, Survey
from maxbrod.layouts.kbs.format import (
    CHECKPOINT,
    EMPTY_BYTES,
    HEADER_BYTES,
    NAME,
    SEGMENT,
    KbsHeader,
    decode_header,
    segment_name,
)
from maxbrod.layouts.manifest import MANIFEST, BackupKind, BackupRef, in_order, left_out, list_segments, positions_ahead
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.storage.interface import Storage

OURS: Final = "maxbrod"
EMPTIED: Final = "emptied"
"""In our part: how many of a partition's first segments were emptied, by topic and partition."""

_VERSION: Final = re.compile(rb'"version"\s*:\s*"')
_BACKUP_ID: Final = re.compile(rb'"backup_id"\s*:')
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


def parse_partitions(topic: Fields) -> list[PartitionEntry]:
    name = known_topic(topic.text("name"), topic.object_name)
    return [
        PartitionEntry(
            where=TopicPartition(topic=name, partition=fields.integer("partition", most=INT32_MAX)),
            first_offset=fields.integer("first_offset", default=0),
            last_offset=fields.integer("last_offset", least=-1, most=INT64_MAX - 1),
            records=fields.integer("records"),
            segments=fields.integer("segments"),
        )
        for fields in topic.objects("partitions")
    ]


def parse_checkpoint(checkpoint: Fields | None) -> dict[TopicPartition, int]:
    """Return the next offset of each partition, by which a backup resumes. The manifest is the truth."""
    positions = {}
    topics = Fields(values={}, object_name="") if checkpoint is None else checkpoint.inner("topics")
    for topic in topics.values:
        partitions = topics.inner(topic)
        for name in partitions.values:
            number = partitions.partition(name)
            where = TopicPartition(topic=known_topic(topic, topics.object_name), partition=number)
            positions[where] = partitions.inner(name).integer("offset", least=-1, most=INT64_MAX - 1) + 1
    return positions


def _is_ours(head: bytes) -> bool | None:
    return _VERSION.search(head) is not None if _BACKUP_ID.search(head) else None


def _backup_id(manifest: Fields) -> str:
    version = manifest.text("version")
    match = _MAJOR.fullmatch(version)
    if match is None or int(match[1]) != 1:
        raise UnsupportedFormatError(
            f"the manifest has version {version[:40]!r}", object_name=manifest.object_name, hint="1.x is known"
        )
    return manifest.text("backup_id")


def _by_manifest(storage: Storage, backup: BackupRef, manifest: Fields) -> Survey:
    return _Surveyor(storage, backup, manifest).survey()


class _Surveyor:
    def __init__(self, storage: Storage, backup: BackupRef, manifest: Fields) -> None:
        self._storage, self._backup, self._manifest = storage, backup, manifest
        self._sizes: dict[str, int] | None = None
        """The objects of the backup, listed once and only if they are needed."""
        self._segments: list[ForeignSegment] = []
        self._positions: dict[TopicPartition, int] = {}
        self._counts: dict[TopicPartition, int] = {}
        self._emptied: dict[TopicPartition, int] = {}
        self._faults: list[Fault] = []

    def survey(self) -> Survey:
        for topic in self._manifest.objects("topics"):
            try:
                entries = parse_partitions(topic)
            except CorruptDataError as error:
                self._faults.append(self._fault(f"{topic.place}: {error.message}", fatal=True))
                continue
            for entry in entries:
                self._add(entry)
        groups, topics, taken_at_ms = self._extras()
        path = self._backup.path(CHECKPOINT)
        self._faults += positions_ahead(
            path, self._positions, lambda: parse_checkpoint(read_document(self._storage, path))
        )
        cluster_id = self._manifest.inner("source_cluster").values.get("cluster_id")
        return Survey(
            layout=NAME,
            segments=tuple(sorted(self._segments, key=in_order)),
            topics=topics,
            groups=groups,
            positions=self._positions,
            cluster_id=cluster_id if isinstance(cluster_id, str) else None,
            taken_at_ms=taken_at_ms,
            faults=tuple(self._faults),
            details={**self._backup.details, "counts": by_topic(self._counts), "emptied": by_topic(self._emptied)},
        )

    def _add(self, entry: PartitionEntry) -> None:
        where = entry.where
        if where in self._positions:
            self._faults.append(self._fault(f"{where} is listed twice", fatal=True))
            return
        self._positions[where] = entry.last_offset + 1
        self._counts[where] = entry.segments
        try:
            if emptied := _parse_emptied(self._manifest, entry):
                self._emptied[where] = emptied
            segments = _parse_own_segments(self._manifest, self._backup, entry, emptied)
        except CorruptDataError as error:
            self._faults.append(self._fault(f"our part of it: {error.message}", fatal=False))
            segments = None
        if segments is None or not _tile(segments, entry):
            segments = self._listed(entry)
        self._segments += segments

    def _extras(self) -> tuple[tuple[ForeignGroup, ...], dict[str, ForeignTopic], int | None]:
        names = {where.topic for where in self._positions}
        try:
            created_at = self._manifest.optional_text("created_at")
            taken_at_ms = None if created_at is None else _milliseconds(created_at, self._manifest.object_name)
            return _parse_groups(self._manifest), _parse_topics(self._manifest, names), taken_at_ms
        except CorruptDataError as error:
            self._faults.append(self._fault(error.message, fatal=False))
            return (), {name: ForeignTopic(name=name) for name in names}, None

    def _listed(self, entry: PartitionEntry) -> list[ForeignSegment]:
        """Return the segments that the manifest counts by their headers, from the first on that was not emptied."""
        if self._sizes is None:
            self._sizes = {path: size for _, _, path, size in list_segments(self._storage, self._backup, SEGMENT)}
        found: list[ForeignSegment] = []
        end = entry.last_offset + 1
        first = self._emptied.get(entry.where, 0)
        for index in reversed(range(first, min(entry.segments, len(self._sizes)))):
            path = self._backup.path(segment_name(entry.where, index))
            try:
                if path not in self._sizes:
                    self._faults.append(Fault(path=path, message="the segment is missing"))
                    continue
                header = read_header(self._storage, path, self._sizes[path])
            except MaxbrodError as error:
                self._faults.append(Fault(path=path, message=error.message))
                continue
            if _is_emptied(header, self._sizes[path]):
                continue
            if header.first_offset >= end:
                self._faults.append(Fault(path=path, message="begins after its end", offset=header.first_offset))
                continue
            found.append(_described(entry.where, path, index, header, end, self._sizes[path]))
            end = header.first_offset
        if entry.segments > len(self._sizes):
            message = f"{entry.segments} segments of {entry.where} are counted, and fewer exist"
            self._faults.append(self._fault(message, fatal=True))
        return found[::-1]

    def _fault(self, message: str, *, fatal: bool) -> Fault:
        return Fault(path=self._backup.path(MANIFEST), message=message, fatal=fatal)


def _tile(segments: list[ForeignSegment], entry: PartitionEntry) -> bool:
    """True if our own list rises, and ends where the partition ends by the manifest."""
    rises = all(before.end_offset <= after.base_offset for before, after in pairwise(segments))
    return rises and (not segments or segments[-1].end_offset == entry.last_offset + 1)


def read_header(storage: Storage, path: str, size: int) -> KbsHeader:
    with naming(storage.name_of(path)):
        return decode_header(bytes(storage.get_range(path, 0, min(size, HEADER_BYTES))).ljust(HEADER_BYTES, b"\0"))


def _is_emptied(header: KbsHeader, size: int) -> bool:
    """True if `prune` has left nothing but the segment's number."""
    return size == EMPTY_BYTES and not header.records


def _described(where: TopicPartition, path: str, index: int, header: KbsHeader, end: int, size: int) -> ForeignSegment:
    return ForeignSegment(
        where=where,
        path=path,
        base_offset=header.first_offset,
        end_offset=end,
        records=header.records,
        bytes=size,
        details={"index": index},
    )


def _by_headers(storage: Storage, backup: BackupRef, faults: list[Fault]) -> list[ForeignSegment]:
    """Return every segment that exists. No manifest counts them; the next one shows where a segment ends."""
    ends: dict[TopicPartition, int] = {}
    found: list[ForeignSegment] = []
    for where, index, path, size in sorted(list_segments(storage, backup, SEGMENT), key=lambda one: (one[0], -one[1])):
        try:
            header = read_header(storage, path, size)
            if _is_emptied(header, size):
                continue
            end = ends.get(where) or _end_by_reading(storage, _described(where, path, index, header, INT64_MAX, size))
        except MaxbrodError as error:
            faults.append(Fault(path=path, message=error.message))
            continue
        if header.first_offset >= end:
            faults.append(left_out(path, header.first_offset))
            continue
        found.append(_described(where, path, index, header, end, size))
        ends[where] = header.first_offset
    return found


def _end_by_reading(storage: Storage, segment: ForeignSegment) -> int:
    from maxbrod.layouts.kbs.reader import read  # noqa: PLC0415 - loads numba, which a survey must not

    end = segment.base_offset
    for batch in read(storage, segment, ["offset"]):
        end = int(number_column(batch.column(0))[-1]) + 1
    return end


def _parse_own_segments(
    manifest: Fields, backup: BackupRef, entry: PartitionEntry, emptied: int
) -> list[ForeignSegment] | None:
    """Return the segments of a partition as `maxbrod` lists them; None if it lists another number of them.

    Those that were emptied are counted by the manifest, and not listed.
    """
    partitions = manifest.inner(OURS).inner("segments").inner(entry.where.topic)
    listed = partitions.objects(str(entry.where.partition))
    if emptied + len(listed) != entry.segments:
        return None
    return [_own_segment(fields, backup, entry.where, index) for index, fields in enumerate(listed, emptied)]


def _parse_emptied(manifest: Fields, entry: PartitionEntry) -> int:
    """Return how many of the first segments of a partition were emptied by `prune`."""
    partitions = manifest.inner(OURS).inner(EMPTIED).inner(entry.where.topic)
    return partitions.integer(str(entry.where.partition), default=0, most=entry.segments)


def _own_segment(fields: Fields, backup: BackupRef, where: TopicPartition, index: int) -> ForeignSegment:
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


def _parse_topics(manifest: Fields, names: Iterable[str]) -> dict[str, ForeignTopic]:
    """Return the topics that have records, and those that only `maxbrod` lists."""
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


def _parse_groups(manifest: Fields) -> tuple[ForeignGroup, ...]:
    """Return the groups in our part of the manifest: `{"group_id": …, "offsets": {"topic-0": next offset}}`."""
    groups = []
    for group in manifest.inner(OURS).objects("groups"):
        offsets = group.inner("offsets")
        held = {}
        for name in offsets.values:
            topic, _, partition = name.rpartition("-")
            number = offsets.partition(partition)
            where = TopicPartition(topic=known_topic(topic, offsets.object_name), partition=number)
            held[where] = offsets.integer(name)
        groups.append(ForeignGroup(group_id=group.text("group_id"), offsets=held))
    return tuple(groups)


def _milliseconds(text: str, object_name: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise CorruptDataError(f"{text[:60]!r} is no time", object_name=object_name) from error


KIND: Final = BackupKind(
    layout=NAME,
    segment=SEGMENT,
    is_ours=_is_ours,
    backup_id=_backup_id,
    by_manifest=_by_manifest,
    by_headers=_by_headers,
)
