"""The contents of a backup, by its manifest; where that is damaged, by the headers of its segments.

Damage to a part of `manifest.json` or `consumer-groups-snapshot.json` is a fault of that part alone.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import CorruptDataError, MaxbrodError
from maxbrod.layouts.documents import INT32_MAX, INT64_MAX, Fields, known_topic, read_document
from maxbrod.layouts.foreign import (
    UNCOMMITTED,
    Doubt,
    Fault,
    ForeignGap,
    ForeignGroup,
    ForeignSegment,
    ForeignTopic,
    Survey,
)
from maxbrod.layouts.kbak.format import (
    COMMITTED,
    GROUPS,
    HEADER_BYTES,
    MAGIC,
    NAME,
    POSITIONS,
    SEGMENT,
    decode_header,
    path_of,
)
from maxbrod.layouts.kbak.positions import read_positions
from maxbrod.layouts.manifest import BackupKind, BackupRef, in_order, left_out, list_segments, positions_ahead
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maxbrod.storage.interface import Storage

CONTROL_SKIPPED: Final = "control_records_skipped"
_BACKUP_ID: Final = re.compile(rb'"backup_id"\s*:')
_VERSION: Final = re.compile(rb'"version"\s*:')  # in the manifest of the layout kbs
_INT64_MIN: Final = -(1 << 63)
# The only reason that the tool itself has: the log no longer had these offsets.
_REASONS: Final = {"offset_out_of_range": "retention"}


def survey(storage: Storage, backup_id: str | None = None) -> Survey:
    found = KIND.survey(storage, backup_id)
    return _with_isolation(found, None) if found.details.get("rebuilt") else found


def parse_manifest(manifest: Fields, backup: BackupRef) -> Survey:
    """Return the readable parts of a manifest, and a fault for each of the others."""
    reader = _Reader(backup)
    for topic in manifest.objects("topics"):
        reader.add_topic(topic)
    return Survey(
        layout=NAME,
        segments=tuple(sorted(reader.segments, key=in_order)),
        topics=reader.topics,
        gaps=tuple(reader.gaps),
        positions=reader.positions,
        faults=tuple(reader.faults),
    )


def _is_ours(head: bytes) -> bool | None:
    return _VERSION.search(head) is None if _BACKUP_ID.search(head) else None


def _backup_id(manifest: Fields) -> str:
    backup_id = manifest.text("backup_id")
    if not backup_id or "\0" in backup_id:
        raise manifest.wrong("backup_id", "empty, or has a NUL")
    return backup_id


def _by_manifest(storage: Storage, backup: BackupRef, manifest: Fields) -> Survey:
    contents = parse_manifest(manifest, backup)
    faults = [*contents.faults]
    groups = _groups(storage, backup, faults)
    path = backup.path(POSITIONS)
    faults += positions_ahead(path, contents.positions, lambda: read_positions(storage, path, backup.backup_id) or {})
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
    if isolation == COMMITTED:
        return survey
    return replace(
        survey,
        segments=tuple(map(_uncommitted, survey.segments)),
        doubts=(_doubt(isolation),),
        details={**survey.details, UNCOMMITTED: True},
    )


def _uncommitted(segment: ForeignSegment) -> ForeignSegment:
    """Return the segment, marked to be searched for transaction markers unless the tool says that it left them out."""
    if CONTROL_SKIPPED in segment.details:
        return segment
    return replace(segment, details={**segment.details, UNCOMMITTED: True})


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


def _text(manifest: Fields, name: str) -> str | None:
    value = manifest.values.get(name)
    return value if isinstance(value, str) else None


def _groups(storage: Storage, backup: BackupRef, faults: list[Fault]) -> tuple[ForeignGroup, ...]:
    path = backup.path(GROUPS)
    try:
        snapshot = read_document(storage, path)
        return () if snapshot is None else _parse_groups(snapshot)
    except CorruptDataError as error:
        faults.append(Fault(path=path, message=f"the groups cannot be read: {error.message}", fatal=False))
        return ()


class _Reader:
    def __init__(self, backup: BackupRef) -> None:
        self._backup = backup
        self.segments: list[ForeignSegment] = []
        self.topics: dict[str, ForeignTopic] = {}
        self.gaps: list[ForeignGap] = []
        self.positions: dict[TopicPartition, int] = {}
        self.faults: list[Fault] = []

    def add_topic(self, topic: Fields) -> None:
        try:
            name = known_topic(topic.text("name"), topic.object_name)
            if name in self.topics:
                raise topic.wrong("name", f"listed twice: {name}")
            configs = topic.inner("configurations").values
            self.topics[name] = ForeignTopic(
                name=name,
                partition_count=topic.optional_integer("original_partition_count", least=1, most=INT32_MAX),
                replication_factor=topic.optional_integer("source_replication_factor", least=1, most=INT32_MAX),
                configs={key: value for key, value in configs.items() if isinstance(value, str)},
            )
            partitions = topic.objects("partitions")
        except CorruptDataError as error:
            self._fault(topic, error)
            return
        for partition in partitions:
            self._add_partition(name, partition)

    def _add_partition(self, topic: str, partition: Fields) -> None:
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

    def _gaps(self, where: TopicPartition, partition: Fields, name: str, inclusive: int) -> Iterable[ForeignGap]:
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

    def _segments(self, where: TopicPartition, listed: Iterable[Fields]) -> Iterator[ForeignSegment]:
        for fields in listed:
            try:
                yield _parse_segment(where, fields, self._backup)
            except CorruptDataError as error:
                self._fault(fields, error)

    def _without_overlaps(self, segments: Sequence[ForeignSegment]) -> list[ForeignSegment]:
        """A run that was resumed may have read some records twice. The earlier segment keeps them."""
        kept: list[ForeignSegment] = []
        for segment in sorted(segments, key=lambda one: (one.base_offset, -one.end_offset)):
            end = kept[-1].end_offset if kept else 0
            if not kept or segment.base_offset >= end:
                kept.append(segment)
                continue
            self.faults.append(
                Fault(
                    path=segment.path,
                    message="holds offsets that another has, too",
                    offset=segment.base_offset,
                    fatal=False,
                )
            )
            if segment.end_offset > end:
                kept.append(
                    replace(segment, base_offset=end, records=None, details={**segment.details, "from_offset": end})
                )
        return kept

    def _fault(self, fields: Fields, error: CorruptDataError) -> None:
        self.faults.append(Fault(path=self._backup.path("manifest.json"), message=f"{fields.place}: {error.message}"))


def _parse_segment(where: TopicPartition, fields: Fields, backup: BackupRef) -> ForeignSegment:
    key = fields.text("key")
    start = fields.integer("start_offset")
    details: dict[str, Any] = {
        "key": key,
        "start_offset": start,
        "start_timestamp": fields.integer("start_timestamp", least=_INT64_MIN),
        "end_timestamp": fields.integer("end_timestamp", least=_INT64_MIN),
        "uncompressed_size": fields.integer("uncompressed_size", default=0),
    }
    if fields.values.get(CONTROL_SKIPPED) is not None:
        details[CONTROL_SKIPPED] = fields.integer(CONTROL_SKIPPED)
    sha256 = fields.text("sha256", default="")
    return ForeignSegment(
        where=where,
        path=path_of(backup, key, fields.object_name),
        base_offset=start,
        end_offset=fields.integer("end_offset", least=start, most=INT64_MAX - 1) + 1,
        records=fields.integer("record_count"),
        bytes=fields.integer("compressed_size", default=0),
        details={**details, "sha256": sha256} if sha256 else details,
    )


def _parse_groups(snapshot: Fields) -> tuple[ForeignGroup, ...]:
    return tuple(
        ForeignGroup(group_id=group.text("group_id"), offsets=dict(_offsets(group.inner("offsets"))))
        for group in snapshot.objects("groups")
    )


def _offsets(topics: Fields) -> Iterator[tuple[TopicPartition, int]]:
    for topic in topics.values:
        partitions = topics.inner(topic)
        for name in partitions.values:
            partition = partitions.partition(name)
            # Brokers report -1 for a partition in which a group has committed nothing.
            offset = partitions.integer(name, least=-1)
            if offset >= 0:
                yield TopicPartition(topic=known_topic(topic, topics.object_name), partition=partition), offset


def _by_headers(storage: Storage, backup: BackupRef, faults: list[Fault]) -> list[ForeignSegment]:
    found: list[ForeignSegment] = []
    positions: dict[TopicPartition, int] = {}
    for where, _, path, size in list_segments(storage, backup, SEGMENT):
        try:
            segment = _from_header(storage, path, size, where)
        except MaxbrodError as failure:
            faults.append(Fault(path=path, message=failure.message))
            continue
        if segment.base_offset < positions.get(where, 0):
            faults.append(left_out(path, segment.base_offset))
            continue
        found.append(segment)
        positions[where] = segment.end_offset
    return found


def _from_header(storage: Storage, path: str, size: int, where: TopicPartition) -> ForeignSegment:
    data = bytes(storage.get_range(path, 0, HEADER_BYTES)) if size >= HEADER_BYTES else b""
    if data[: len(MAGIC)] != MAGIC:
        raise CorruptDataError("without the manifest, it is unknown what this segment holds")
    header = decode_header(data)
    return ForeignSegment(
        where=where,
        path=path,
        base_offset=header.start_offset,
        end_offset=header.end_offset + 1,
        records=header.records,
        bytes=size,
        details={"key": path},
    )


KIND: Final = BackupKind(
    layout=NAME,
    segment=SEGMENT,
    is_ours=_is_ours,
    backup_id=_backup_id,
    by_manifest=_by_manifest,
    by_headers=_by_headers,
)
