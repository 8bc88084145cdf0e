"""osodevops kafka-backup, 0.17 to 0.25: the survey of a backup, and how it is published and pruned.

A survey reads the manifest; where that is damaged, the headers of segments. Damage to a part of `manifest.json` or
`consumer-groups-snapshot.json` is a fault of that part alone.

Publishing writes groups, then the manifest, then the positions. Readers rely on the manifest. The database is written
after it, because the tool resumes from the database: if the database were ahead, the tool would skip records that no
manifest names. Fields of the manifest that are unknown here, such as those of later versions, are kept. Pruning deletes
old segments: the manifest lists them under `pruned` first, as the tool's own manifests do.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectNotFoundError
from maxbrod.layouts import manifest as backups
from maxbrod.layouts.foreign import (
    UNCOMMITTED,
    ClusterFacts,
    Doubt,
    Fault,
    ForeignGap,
    ForeignGroup,
    ForeignSegment,
    ForeignTopic,
    Layout,
    Loss,
    Survey,
    WriteOptions,
    by_partition,
    by_topic,
)
from maxbrod.layouts.kbak import format as kbak
from maxbrod.model import INT32_MAX, INT64_MAX, TopicPartition
from maxbrod.storage.interface import Storage

_BACKUP_ID: Final = re.compile(rb'"backup_id"\s*:')
_VERSION: Final = re.compile(rb'"version"\s*:')  # in the manifest of the layout kbs
_INT64_MIN: Final = -(1 << 63)
# The only reason that the tool itself has: the log no longer had these offsets.
_REASONS: Final = {"offset_out_of_range": "retention"}


def survey(storage: Storage, backup_id: str | None = None) -> Survey:
    found = KIND.survey(storage, backup_id)
    return _with_isolation(found, None) if found.details.get("rebuilt") else found


def parse_manifest(manifest: backups.ManifestFields, backup: backups.BackupRef) -> Survey:
    """Return the readable parts of a manifest, and a fault for each of the others."""
    reader = _Reader(backup)
    for topic in manifest.objects("topics"):
        reader.add_topic(topic)
    return Survey(
        layout=kbak.NAME,
        segments=tuple(sorted(reader.segments, key=backups.in_order)),
        topics=reader.topics,
        gaps=tuple(reader.gaps),
        positions=reader.positions,
        faults=tuple(reader.faults),
    )


def _is_ours(head: bytes) -> bool | None:
    return _VERSION.search(head) is None if _BACKUP_ID.search(head) else None


def _backup_id(manifest: backups.ManifestFields) -> str:
    backup_id = manifest.text("backup_id")
    if not backup_id or "\0" in backup_id:
        raise manifest.wrong("backup_id", "empty, or has a NUL")
    return backup_id


def _by_manifest(storage: Storage, backup: backups.BackupRef, manifest: backups.ManifestFields) -> Survey:
    contents = parse_manifest(manifest, backup)
    faults = [*contents.faults]
    groups = _groups(storage, backup, faults)
    read = partial(kbak.read_positions, backup_id=backup.backup_id)
    faults += backups.positions_ahead(storage, backup.path(kbak.POSITIONS), contents.positions, read)
    contents = replace(
        contents,
        groups=groups,
        cluster_id=_text(manifest, "source_cluster_id"),
        taken_at_ms=manifest.integer("created_at", default=0) or None,
        faults=tuple(faults),
        details=backup.details,
    )
    return _with_isolation(contents, _text(manifest, "isolation_level"))


def _with_isolation(survey: Survey, isolation: str | None) -> Survey:
    """Return the survey of a backup that was taken at this isolation level; None: the manifest has none."""
    if isolation == kbak.COMMITTED:
        return survey
    # Segments are searched for transaction markers, unless the tool says that it left them out.
    segments = (
        segment
        if kbak.CONTROL_SKIPPED in segment.details
        else replace(segment, details={**segment.details, UNCOMMITTED: True})
        for segment in survey.segments
    )
    return replace(
        survey,
        segments=tuple(segments),
        doubts=(_doubt(isolation),),
        details={**survey.details, UNCOMMITTED: True},
    )


def _doubt(isolation: str | None) -> Doubt:
    if isolation is None:
        what = (
            "the manifest has no isolation_level: versions of the tool before that field wrote records of aborted "
            "transactions like all others, and nothing distinguishes them; transaction markers are left out"
        )
        return Doubt(what=what, hint="if its topics have no transactions, nothing is wrong")
    what = (
        f"the manifest says isolation_level {isolation}: records of aborted transactions are among the others, and "
        "nothing distinguishes them; transaction markers are left out"
    )
    hint = "--accept-gaps restores aborted records like all others; a backup with read_committed has none"
    return Doubt(what=what, hint=hint, refused=True)


def _text(manifest: backups.ManifestFields, name: str) -> str | None:
    value = manifest.values.get(name)
    return value if isinstance(value, str) else None


def _groups(storage: Storage, backup: backups.BackupRef, faults: list[Fault]) -> tuple[ForeignGroup, ...]:
    path = backup.path(kbak.GROUPS)
    try:
        snapshot = backups.read_document(storage, path)
        groups = [] if snapshot is None else snapshot.objects("groups")
        return tuple(ForeignGroup(group_id=group.text("group_id"), offsets=_offsets(group)) for group in groups)
    except CorruptDataError as error:
        faults.append(Fault(path=path, message=f"the groups cannot be read: {error.message}", fatal=False))
        return ()


def _offsets(group: backups.ManifestFields) -> dict[TopicPartition, int]:
    found = {where: held.integer(name, least=-1) for where, held, name in group.partitions("offsets")}
    # Brokers report -1 for a partition in which a group has committed nothing.
    return {where: offset for where, offset in found.items() if offset >= 0}


class _Reader:
    def __init__(self, backup: backups.BackupRef) -> None:
        self._backup = backup
        self.segments: list[ForeignSegment] = []
        self.topics: dict[str, ForeignTopic] = {}
        self.gaps: list[ForeignGap] = []
        self.positions: dict[TopicPartition, int] = {}
        self.faults: list[Fault] = []

    def add_topic(self, topic: backups.ManifestFields) -> None:
        try:
            name = backups.known_topic(topic.text("name"), topic.object_name)
            if name in self.topics:
                raise topic.wrong("name", f"listed twice: {name}")
            self.topics[name] = topic.topic(name, "original_partition_count", "source_replication_factor")
            partitions = topic.objects("partitions")
        except CorruptDataError as error:
            self._fault(topic, error)
            return
        for partition in partitions:
            self._add_partition(name, partition)

    def _add_partition(self, topic: str, partition: backups.ManifestFields) -> None:
        try:
            where = TopicPartition(topic=topic, partition=partition.integer("partition_id", most=INT32_MAX))
            if where in self.positions:
                raise partition.wrong("partition_id", f"listed twice: {where}")
            position = partition.integer("covered_through", least=-1, most=INT64_MAX - 1, default=-1) + 1
            gaps = [*self._gaps(where, partition, "gaps", 0), *self._gaps(where, partition, "pruned", 1)]
            listed = partition.objects("segments")
        except CorruptDataError as error:
            self._fault(partition, error)
            return
        segments = self._without_overlaps(list(self._segments(where, listed)))
        ends = [position, *(segment.end_offset for segment in segments), *(gap.end_offset for gap in gaps)]
        if max(ends) or listed:
            self.positions[where] = max(ends)
        self.segments += segments
        self.gaps += gaps

    def _gaps(
        self, where: TopicPartition, partition: backups.ManifestFields, name: str, inclusive: int
    ) -> Iterable[ForeignGap]:
        for gap in partition.objects(name):
            base = gap.integer("start_offset")
            end = gap.integer("end_offset", least=base, most=INT64_MAX - 1) + inclusive
            reason = gap.text("reason", default="")
            if end > base:
                yield ForeignGap(
                    where=where,
                    base_offset=base,
                    end_offset=end,
                    reason="pruned" if inclusive else _REASONS.get(reason, reason or "unexplained"),
                )

    def _segments(self, where: TopicPartition, listed: Iterable[backups.ManifestFields]) -> Iterator[ForeignSegment]:
        for fields in listed:
            try:
                yield _parse_segment(where, fields, self._backup)
            except CorruptDataError as error:
                self._fault(fields, error)

    def _without_overlaps(self, segments: Sequence[ForeignSegment]) -> list[ForeignSegment]:
        """A run that was resumed may have read some records twice. The earlier segment keeps them."""
        kept: list[ForeignSegment] = []
        for segment in sorted(segments, key=lambda segment: (segment.base_offset, -segment.end_offset)):
            end = kept[-1].end_offset if kept else 0
            if not kept or segment.base_offset >= end:
                kept.append(segment)
                continue
            message = "holds offsets that another has, too"
            self.faults.append(Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False))
            if segment.end_offset > end:
                details = {**segment.details, "from_offset": end}
                kept.append(replace(segment, base_offset=end, records=None, details=details))
        return kept

    def _fault(self, fields: backups.ManifestFields, error: CorruptDataError) -> None:
        self.faults.append(Fault(path=self._backup.path(backups.MANIFEST), message=f"{fields.place}: {error.message}"))


def _parse_segment(where: TopicPartition, fields: backups.ManifestFields, backup: backups.BackupRef) -> ForeignSegment:
    key = fields.text("key")
    start = fields.integer("start_offset")
    details: dict[str, Any] = {
        "key": key,
        "start_offset": start,
        "start_timestamp": fields.integer("start_timestamp", least=_INT64_MIN),
        "end_timestamp": fields.integer("end_timestamp", least=_INT64_MIN),
        "uncompressed_size": fields.integer("uncompressed_size", default=0),
    }
    if fields.values.get(kbak.CONTROL_SKIPPED) is not None:
        details[kbak.CONTROL_SKIPPED] = fields.integer(kbak.CONTROL_SKIPPED)
    sha256 = fields.text("sha256", default="")
    return ForeignSegment(
        where=where,
        path=kbak.path_of(backup, key, fields.object_name),
        base_offset=start,
        end_offset=fields.integer("end_offset", least=start, most=INT64_MAX - 1) + 1,
        records=fields.integer("record_count"),
        bytes=fields.integer("compressed_size", default=0),
        details={**details, "sha256": sha256} if sha256 else details,
    )


def _by_headers(storage: Storage, backup: backups.BackupRef, faults: list[Fault]) -> list[ForeignSegment]:
    found: list[ForeignSegment] = []
    positions: dict[TopicPartition, int] = {}
    for where, _, path, size in backups.list_segments(storage, backup, kbak.SEGMENT):
        try:
            segment = _from_header(storage, path, size, where)
        except MaxbrodError as failure:
            faults.append(Fault(path=path, message=failure.message))
            continue
        if segment.base_offset < positions.get(where, 0):
            faults.append(backups.left_out(path, segment.base_offset))
            continue
        found.append(segment)
        positions[where] = segment.end_offset
    return found


def _from_header(storage: Storage, path: str, size: int, where: TopicPartition) -> ForeignSegment:
    data = bytes(storage.get_range(path, 0, kbak.HEADER_BYTES)) if size >= kbak.HEADER_BYTES else b""
    if data[: len(kbak.MAGIC)] != kbak.MAGIC:
        raise CorruptDataError("without the manifest, it is unknown what this segment holds")
    header = kbak.decode_header(data)
    return ForeignSegment(
        where=where,
        path=path,
        base_offset=header.start_offset,
        end_offset=header.end_offset + 1,
        records=header.records,
        bytes=size,
        details={"key": path},
    )


KIND: Final = backups.BackupKind(
    layout=kbak.NAME,
    segment=kbak.SEGMENT,
    is_ours=_is_ours,
    backup_id=_backup_id,
    by_manifest=_by_manifest,
    by_headers=_by_headers,
)


def publish(
    storage: Storage, survey: Survey, written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
) -> None:
    backup = backups.backup_for(survey, options)
    codec, _ = backups.codec_of(options, kbak.KbakCodec)
    taken_at_ms = facts.taken_at_ms or int(time.time() * 1000)
    path = backup.path(backups.MANIFEST)
    backups.refuse_rebuilt(storage, backup, survey)
    manifest = backups.read_document(storage, path) or backups.ManifestFields(
        values=kbak.new_manifest(backup, taken_at_ms), object_name=storage.name_of(path)
    )
    _refuse_other_writer(manifest, backup, survey, written)
    values = dict(manifest.values)
    kbak.merge_manifest(values, written, facts, codec.name.lower())
    if facts.groups or not _exists(storage, backup.path(kbak.GROUPS)):
        # Like the tool, keep the last groups that were seen if this run has seen none.
        groups = [{"group_id": group.group_id, "offsets": by_topic(group.offsets)} for group in facts.groups]
        backups.write_document(storage, backup.path(kbak.GROUPS), {"snapshot_time": taken_at_ms, "groups": groups})
    # The commit point: readers see the new segments from here on.
    backups.write_document(storage, path, values)
    contents = parse_manifest(backups.ManifestFields(values=values, object_name=manifest.object_name), backup)
    database = kbak.positions_database(backup.backup_id, contents.positions, facts.cluster_id, taken_at_ms)
    storage.replace(backup.path(kbak.POSITIONS), database)


def _exists(storage: Storage, path: str) -> bool:
    try:
        storage.head(path)
    except ObjectNotFoundError:
        return False
    return True


def _refuse_other_writer(
    manifest: backups.ManifestFields, backup: backups.BackupRef, survey: Survey, written: Sequence[ForeignSegment]
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
            raise backups.other_writer(where, end, survey.positions.get(where, 0), manifest.object_name)


def prune(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    found = backups.manifest_to_prune(storage, survey)
    if found is None:
        return
    backup, manifest = found
    leaving = {segment.details["key"] for segment in survey.segments if segment.path in going}
    if leaving:
        for topic in manifest.get("topics") or []:
            for partition in topic.get("partitions") or []:
                kbak.move_pruned(partition, leaving)
        backups.write_document(storage, backup.path(backups.MANIFEST), manifest)
    kept = by_partition(segment for segment in survey.segments if segment.path not in going)
    first = {where: segments[0].base_offset for where, segments in kept.items()}
    named = {segment.path for segments in kept.values() for segment in segments}
    # Every segment below the first one that stays, those that a killed call has left included.
    objects = backups.list_segments(storage, backup, kbak.SEGMENT)
    storage.delete([path for where, number, path, _ in objects if number < first.get(where, 0) and path not in named])


LAYOUT: Final = Layout(
    name=kbak.NAME,
    detect=KIND.detect,
    look=survey,
    publish=publish,
    prune=prune,
    choices=("backup_id",),
    losses=(
        *backups.LOSSES,
        Loss(what="header keys that are not UTF-8, when the tool itself reads them", real=False),
    ),
)
