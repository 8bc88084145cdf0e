"""The format in osodevops kafka-backup's documentation: the survey of a backup, and how it is published and pruned.

The documented manifest, of version 1, only counts a partition's segments, and has neither groups nor topic settings.
Those are in one object of ours, `maxbrod`, which other readers skip: unknown fields are to be ignored. Without it, a
header has the first offset and the number of records. The next segment's header, or the manifest, shows where a segment
ends; if neither does, its records are read.

Publishing writes first the manifest, then the checkpoint: one ahead of the manifest would make a later run skip records
that no reader can find. Pruning empties old segments: the manifest counts a partition's segments from 0, so that none
of them can be missing. A segment that was emptied has a header and a footer, and no batch. Readers of the documented
format find every number that the manifest counts, and no record in those.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from maxbrod.batch.columns import number_column
from maxbrod.errors import CorruptDataError, MaxbrodError, RefusedError, UnsupportedFormatError, naming
from maxbrod.layouts import manifest as backups
from maxbrod.layouts.foreign import (
    ClusterFacts,
    Fault,
    ForeignGroup,
    ForeignSegment,
    ForeignTopic,
    Layout,
    Survey,
    WriteOptions,
    by_partition,
    by_topic,
)
from maxbrod.layouts.kbs import format as kbs
from maxbrod.model import INT32_MAX, INT64_MAX, TopicPartition
from maxbrod.storage.interface import Storage

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


def parse_partitions(topic: backups.ManifestFields) -> list[PartitionEntry]:
    name = backups.known_topic(topic.text("name"), topic.object_name)
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


def parse_checkpoint(checkpoint: backups.ManifestFields) -> dict[TopicPartition, int]:
    """Return the next offset of each partition, by which a backup resumes. The manifest is the truth."""
    return {
        where: partitions.inner(name).integer("offset", least=-1, most=INT64_MAX - 1) + 1
        for where, partitions, name in checkpoint.partitions("topics")
    }


def _read_checkpoint(storage: Storage, path: str) -> dict[TopicPartition, int]:
    checkpoint = backups.read_document(storage, path)
    return {} if checkpoint is None else parse_checkpoint(checkpoint)


def _is_ours(head: bytes) -> bool | None:
    return _VERSION.search(head) is not None if _BACKUP_ID.search(head) else None


def _backup_id(manifest: backups.ManifestFields) -> str:
    version = manifest.text("version")
    match = _MAJOR.fullmatch(version)
    if match is None or int(match[1]) != 1:
        raise UnsupportedFormatError(
            f"the manifest has version {version[:40]!r}", object_name=manifest.object_name, hint="1.x is known"
        )
    return manifest.text("backup_id")


class _Surveyor:
    def __init__(self, storage: Storage, backup: backups.BackupRef, manifest: backups.ManifestFields) -> None:
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
        path = self._backup.path(kbs.CHECKPOINT)
        self._faults += backups.positions_ahead(self._storage, path, self._positions, _read_checkpoint)
        cluster_id = self._manifest.inner("source_cluster").values.get("cluster_id")
        return Survey(
            layout=kbs.NAME,
            segments=tuple(sorted(self._segments, key=backups.in_order)),
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
        segments: list[ForeignSegment] | None = None
        try:
            own = self._manifest.inner(kbs.OURS)
            partitions = own.inner(kbs.EMPTIED).inner(where.topic)
            if emptied := partitions.integer(str(where.partition), default=0, most=entry.segments):
                self._emptied[where] = emptied
            listed = own.inner("segments").inner(where.topic).objects(str(where.partition))
            # Those that were emptied are counted by the manifest, and not listed.
            if emptied + len(listed) == entry.segments:
                segments = [_own_segment(fields, self._backup, where, at) for at, fields in enumerate(listed, emptied)]
        except CorruptDataError as error:
            self._faults.append(self._fault(f"our part of it: {error.message}", fatal=False))
        # Our own list counts if it rises, and ends where the partition ends by the manifest.
        rises = all(before.end_offset <= after.base_offset for before, after in pairwise(segments or ()))
        if segments is None or not rises or (segments and segments[-1].end_offset != entry.last_offset + 1):
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
            self._sizes = {
                path: size for _, _, path, size in backups.list_segments(self._storage, self._backup, kbs.SEGMENT)
            }
        found: list[ForeignSegment] = []
        end = entry.last_offset + 1
        first = self._emptied.get(entry.where, 0)
        for index in reversed(range(first, min(entry.segments, len(self._sizes)))):
            path = self._backup.path(kbs.segment_name(entry.where, index))
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
        return Fault(path=self._backup.path(backups.MANIFEST), message=message, fatal=fatal)


def read_header(storage: Storage, path: str, size: int) -> kbs.KbsHeader:
    with naming(storage.name_of(path)):
        return kbs.decode_header(
            bytes(storage.get_range(path, 0, min(size, kbs.HEADER_BYTES))).ljust(kbs.HEADER_BYTES, b"\0")
        )


def _is_emptied(header: kbs.KbsHeader, size: int) -> bool:
    """True if `prune` has left nothing but the segment's number."""
    return size == kbs.EMPTY_BYTES and not header.records


def _described(
    where: TopicPartition, path: str, index: int, header: kbs.KbsHeader, end: int, size: int
) -> ForeignSegment:
    return ForeignSegment(
        where=where,
        path=path,
        base_offset=header.first_offset,
        end_offset=end,
        records=header.records,
        bytes=size,
        details={"index": index},
    )


def _by_headers(storage: Storage, backup: backups.BackupRef, faults: list[Fault]) -> list[ForeignSegment]:
    """Return every segment that exists. No manifest counts them; the next one shows where a segment ends."""
    ends: dict[TopicPartition, int] = {}
    found: list[ForeignSegment] = []
    for where, index, path, size in sorted(
        backups.list_segments(storage, backup, kbs.SEGMENT), key=lambda listed: (listed[0], -listed[1])
    ):
        try:
            header = read_header(storage, path, size)
            if _is_emptied(header, size):
                continue
            end = ends.get(where) or _end_by_reading(storage, _described(where, path, index, header, INT64_MAX, size))
        except MaxbrodError as error:
            faults.append(Fault(path=path, message=error.message))
            continue
        if header.first_offset >= end:
            faults.append(backups.left_out(path, header.first_offset))
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


def _own_segment(
    fields: backups.ManifestFields, backup: backups.BackupRef, where: TopicPartition, index: int
) -> ForeignSegment:
    first = fields.integer("first_offset")
    return ForeignSegment(
        where=where,
        path=backup.path(kbs.segment_name(where, index)),
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


def _parse_topics(manifest: backups.ManifestFields, names: Iterable[str]) -> dict[str, ForeignTopic]:
    """Return the topics that have records, and those that only `maxbrod` lists."""
    own = manifest.inner(kbs.OURS).inner("topics")
    topics = {name: ForeignTopic(name=name) for name in names}
    for name in own.values:
        known = backups.known_topic(name, manifest.object_name)
        topics[name] = own.inner(name).topic(known, "partition_count", "replication_factor")
    return topics


def _parse_groups(manifest: backups.ManifestFields) -> tuple[ForeignGroup, ...]:
    """Return the groups in our part of the manifest: `{"group_id": …, "offsets": {"topic-0": next offset}}`."""
    groups = []
    for group in manifest.inner(kbs.OURS).objects("groups"):
        offsets = group.inner("offsets")
        held = {}
        for name in offsets.values:
            topic, _, partition = name.rpartition("-")
            number = offsets.partition(partition)
            where = TopicPartition(topic=backups.known_topic(topic, offsets.object_name), partition=number)
            held[where] = offsets.integer(name)
        groups.append(ForeignGroup(group_id=group.text("group_id"), offsets=held))
    return tuple(groups)


def _milliseconds(text: str, object_name: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise CorruptDataError(f"{text[:60]!r} is no time", object_name=object_name) from error


KIND: Final = backups.BackupKind(
    layout=kbs.NAME,
    segment=kbs.SEGMENT,
    is_ours=_is_ours,
    backup_id=_backup_id,
    by_manifest=lambda storage, backup, manifest: _Surveyor(storage, backup, manifest).survey(),
    by_headers=_by_headers,
)


def publish(
    storage: Storage, survey: Survey, written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
) -> None:
    backup = backups.backup_for(survey, options)
    codec, level = backups.codec_of(options, kbs.KbsCodec)
    now_ms = int(time.time() * 1000)
    backups.refuse_rebuilt(storage, backup, survey)
    manifest = backups.read_document(storage, backup.path(backups.MANIFEST))
    held, emptied = ((), {}) if manifest is None else _held(storage, backup, survey, written)
    segments = sorted((*held, *written), key=backups.in_order)
    document = kbs.encode_manifest(
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
    backups.write_document(storage, backup.path(backups.MANIFEST), document)
    path = backup.path(kbs.CHECKPOINT)
    backups.write_document(storage, path, kbs.encode_checkpoint(_old(storage, path), backup, segments, now_ms))


def _old(storage: Storage, path: str) -> dict[str, Any]:
    """Return the current checkpoint. One that cannot be read is replaced: the manifest has everything that it says."""
    try:
        found = backups.read_document(storage, path)
        if found is not None:
            parse_checkpoint(found)
    except CorruptDataError:
        return {}
    return {} if found is None else dict(found.values)


def _held(
    storage: Storage, backup: backups.BackupRef, survey: Survey, written: Sequence[ForeignSegment]
) -> tuple[Sequence[ForeignSegment], kbs.Emptied]:
    """Return the segments of the manifest besides these. An earlier attempt may already have published some of them.

    And how many segments of each partition were emptied, by topic and partition.
    """
    now = KIND.survey(storage, None if backup.folder == "" else backup.folder)
    if "folder" not in now.details:
        raise RefusedError(
            "the manifest here is not of this layout",
            object_name=storage.name_of(backup.path(backups.MANIFEST)),
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
            raise backups.other_writer(
                segment.where, segment.end_offset, expected[segment.where], storage.name_of(segment.path)
            )
    return held, now.details.get("emptied", {})


def prune(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    found = backups.manifest_to_prune(storage, survey)
    if found is None:
        return
    backup, manifest = found
    kept = by_partition(segment for segment in survey.segments if segment.path not in going)
    if going:
        backups.write_document(
            storage, backup.path(backups.MANIFEST), kbs.pruned_manifest(manifest, by_partition(survey.segments), kept)
        )
    # Those that a killed call has left included.
    for where, number, name, size in backups.list_segments(storage, backup, kbs.SEGMENT):
        if where in kept and number < kept[where][0].details["index"] and size != kbs.EMPTY_BYTES:
            storage.replace(name, _empty(kept[where][0].base_offset))


def _empty(first_offset: int) -> bytes:
    from maxbrod.layouts.kbs.kernels import crc64  # noqa: PLC0415 - loads numba, which a survey must not

    header = kbs.encode_header(
        kbs.KbsHeader(codec=kbs.KbsCodec.NONE, first_offset=first_offset, records=0, checksum=crc64(b""))
    )
    return header + kbs.FOOTER.pack(0, crc64(header))


LAYOUT: Final = Layout(
    name=kbs.NAME,
    detect=KIND.detect,
    look=KIND.survey,
    publish=publish,
    prune=prune,
    choices=("backup_id",),
    losses=backups.LOSSES,
)
