"""What a backup holds, by its manifest, and by the headers of its segments where the manifest says too little.

A header has the first offset and the number of records. The next segment's header, or the manifest, shows where a
segment ends; if neither does, its records are read.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from maxbrod.batch.columns import number_column
from maxbrod.errors import CorruptDataError, MaxbrodError, naming
from maxbrod.layouts.backups import (
    MANIFEST,
    Backup,
    BackupKind,
    list_segments,
    positions_ahead,
    refuse_other,
    unpublished,
    unreadable_manifest,
)
from maxbrod.layouts.documents import INT64_MAX, Fields, by_topic, read_document
from maxbrod.layouts.foreign import Fault, ForeignGroup, ForeignSegment, ForeignTopic, Survey
from maxbrod.layouts.kbs.manifest import (
    PartitionEntry,
    check_version,
    milliseconds,
    parse_checkpoint,
    parse_emptied,
    parse_groups,
    parse_own_segments,
    parse_partitions,
    parse_topics,
)
from maxbrod.layouts.kbs.schema import (
    CHECKPOINT,
    EMPTY_BYTES,
    HEADER_BYTES,
    NAME,
    SEGMENT,
    Header,
    decode_header,
    segment_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

_VERSION: Final = re.compile(rb'"version"\s*:\s*"')
_BACKUP_ID: Final = re.compile(rb'"backup_id"\s*:')


def _is_ours(head: bytes) -> bool | None:
    return _VERSION.search(head) is not None if _BACKUP_ID.search(head) else None


_KIND: Final = BackupKind(segment=SEGMENT, is_ours=_is_ours)


def detect(storage: Storage) -> bool:
    return _KIND.detect(storage)


def survey(storage: Storage, backup_id: str | None = None) -> Survey:
    """UnsupportedFormatError: the manifest has a later major version."""
    backup = _KIND.find(storage, backup_id)
    if backup is None:
        return Survey(layout=NAME, segments=())
    try:
        manifest = read_document(storage, backup.path(MANIFEST))
        if manifest is None:
            return unpublished(NAME, backup)
        check_version(manifest)
        backup = replace(backup, backup_id=manifest.text("backup_id"))
        refuse_other(backup, backup_id)
        return _Surveyor(storage, backup, manifest).survey()
    except CorruptDataError as error:
        return _rebuilt(storage, backup, error)


class _Surveyor:
    def __init__(self, storage: Storage, backup: Backup, manifest: Fields) -> None:
        self._storage, self._backup, self._manifest = storage, backup, manifest
        self._listing = Listing(storage, backup)
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
        self._faults += self._checkpoint_ahead()
        cluster_id = self._manifest.inner("source_cluster").values.get("cluster_id")
        return Survey(
            layout=NAME,
            segments=tuple(sorted(self._segments, key=lambda each: (each.where, each.base_offset))),
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
            if emptied := parse_emptied(self._manifest, entry):
                self._emptied[where] = emptied
            segments = parse_own_segments(self._manifest, self._backup, entry)
        except CorruptDataError as error:
            self._faults.append(self._fault(f"our part of it: {error.message}", fatal=False))
            segments = None
        if segments is None or not _tile(segments, entry):
            segments = self._listing.segments(entry, self._faults, first=self._emptied.get(where, 0))
        self._segments += segments

    def _extras(self) -> tuple[tuple[ForeignGroup, ...], dict[str, ForeignTopic], int | None]:
        names = {where.topic for where in self._positions}
        try:
            created_at = self._manifest.optional_text("created_at")
            taken_at_ms = None if created_at is None else milliseconds(created_at, self._manifest.object_name)
            return parse_groups(self._manifest), parse_topics(self._manifest, names), taken_at_ms
        except CorruptDataError as error:
            self._faults.append(self._fault(error.message, fatal=False))
            return (), {name: ForeignTopic(name=name) for name in names}, None

    def _checkpoint_ahead(self) -> Iterator[Fault]:
        path = self._backup.path(CHECKPOINT)
        try:
            checkpoint = read_document(self._storage, path)
            positions = {} if checkpoint is None else parse_checkpoint(checkpoint)
        except CorruptDataError as error:
            yield Fault(path=path, message=error.message, fatal=False)
            return
        yield from positions_ahead(path, positions, self._positions)

    def _fault(self, message: str, *, fatal: bool) -> Fault:
        return Fault(path=self._backup.path(MANIFEST), message=message, fatal=fatal)


def _tile(segments: list[ForeignSegment], entry: PartitionEntry) -> bool:
    """Whether our own list rises, and ends where the partition ends by the manifest."""
    rises = all(before.end_offset <= after.base_offset for before, after in pairwise(segments))
    return rises and (not segments or segments[-1].end_offset == entry.last_offset + 1)


def _rebuilt(storage: Storage, backup: Backup, error: MaxbrodError) -> Survey:
    """The survey of a backup without a readable manifest, by the headers of its segments."""
    faults = [unreadable_manifest(backup, error)]
    segments = rebuilt_segments(storage, backup, faults)
    positions = {segment.where: segment.end_offset for segment in segments}
    return Survey(
        layout=NAME,
        segments=tuple(segments),
        topics={where.topic: ForeignTopic(name=where.topic) for where in positions},
        positions=positions,
        faults=tuple(faults),
        details={**backup.details, "rebuilt": True},
    )


class Listing:
    """The objects of a backup, listed once and only if they are needed."""

    def __init__(self, storage: Storage, backup: Backup) -> None:
        self._storage, self._backup = storage, backup
        self._sizes: dict[str, int] | None = None

    def segments(self, entry: PartitionEntry, faults: list[Fault], *, first: int) -> list[ForeignSegment]:
        """The segments of a partition that the manifest counts, from the first on that was not emptied."""
        if self._sizes is None:
            self._sizes = {path: size for _, _, path, size in list_segments(self._storage, self._backup, SEGMENT)}
        found: list[ForeignSegment] = []
        end = entry.last_offset + 1
        for index in reversed(range(first, min(entry.segments, len(self._sizes)))):
            path = self._backup.path(segment_name(entry.where, index))
            try:
                if path not in self._sizes:
                    faults.append(Fault(path=path, message="the segment is missing"))
                    continue
                header = read_header(self._storage, path, self._sizes[path])
            except MaxbrodError as error:
                faults.append(Fault(path=path, message=error.message))
                continue
            if is_emptied(header, self._sizes[path]):
                continue
            if header.first_offset >= end:
                faults.append(Fault(path=path, message="begins after its end", offset=header.first_offset))
                continue
            found.append(_described(entry.where, path, index, header, end, self._sizes[path]))
            end = header.first_offset
        if entry.segments > len(self._sizes):
            message = f"{entry.segments} segments of {entry.where} are counted, and fewer exist"
            faults.append(Fault(path=self._backup.path("manifest.json"), message=message))
        return found[::-1]


def read_header(storage: Storage, path: str, size: int) -> Header:
    with naming(storage.name_of(path)):
        return decode_header(bytes(storage.get_range(path, 0, min(size, HEADER_BYTES))).ljust(HEADER_BYTES, b"\0"))


def is_emptied(header: Header, size: int) -> bool:
    """Whether `prune` has left nothing but the segment's number."""
    return size == EMPTY_BYTES and not header.records


def _described(where: TopicPartition, path: str, index: int, header: Header, end: int, size: int) -> ForeignSegment:
    return ForeignSegment(
        where=where,
        path=path,
        base_offset=header.first_offset,
        end_offset=end,
        records=header.records,
        bytes=size,
        details={"index": index},
    )


def rebuilt_segments(storage: Storage, backup: Backup, faults: list[Fault]) -> list[ForeignSegment]:
    """Every segment that exists, by partition and offset. No manifest counts them."""
    ends: dict[TopicPartition, int] = {}
    found: list[ForeignSegment] = []
    for where, index, path, size in sorted(list_segments(storage, backup, SEGMENT), key=lambda one: (one[0], -one[1])):
        try:
            header = read_header(storage, path, size)
            if is_emptied(header, size):
                continue
            end = ends.get(where) or _end_by_reading(storage, _described(where, path, index, header, INT64_MAX, size))
        except MaxbrodError as error:
            faults.append(Fault(path=path, message=error.message))
            continue
        if header.first_offset >= end:
            message = "holds offsets that another segment has, too; it is left out"
            faults.append(Fault(path=path, message=message, offset=header.first_offset))
            continue
        found.append(_described(where, path, index, header, end, size))
        ends[where] = header.first_offset
    return sorted(found, key=lambda each: (each.where, each.base_offset))


def _end_by_reading(storage: Storage, segment: ForeignSegment) -> int:
    from maxbrod.layouts.kbs.reading import read  # noqa: PLC0415 - loads numba, which a survey must not

    end = segment.base_offset
    for batch in read(storage, segment, ["offset"]):
        end = int(number_column(batch.column(0))[-1]) + 1
    return end
