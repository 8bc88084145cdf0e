"""What a backup holds, by its manifest; where that is damaged, by the headers of its segments."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError, MaxbrodError
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
from maxbrod.layouts.documents import Fields, read_document
from maxbrod.layouts.foreign import (
    UNCOMMITTED,
    Doubt,
    Fault,
    ForeignGroup,
    ForeignSegment,
    ForeignTopic,
    Survey,
)
from maxbrod.layouts.kbak.manifest import CONTROL_SKIPPED, Contents, parse_groups, parse_manifest
from maxbrod.layouts.kbak.positions import read_positions
from maxbrod.layouts.kbak.schema import (
    COMMITTED,
    GROUPS,
    HEADER_BYTES,
    MAGIC,
    NAME,
    POSITIONS,
    SEGMENT,
    decode_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

_BACKUP_ID: Final = re.compile(rb'"backup_id"\s*:')
_VERSION: Final = re.compile(rb'"version"\s*:')  # in the manifest of the layout kbs


def _is_ours(head: bytes) -> bool | None:
    return _VERSION.search(head) is None if _BACKUP_ID.search(head) else None


_KIND: Final = BackupKind(segment=SEGMENT, is_ours=_is_ours)


def detect(storage: Storage) -> bool:
    return _KIND.detect(storage)


def survey(storage: Storage, backup_id: str | None = None) -> Survey:
    backup = _KIND.find(storage, backup_id)
    if backup is None:
        return Survey(layout=NAME, segments=())
    try:
        manifest = read_document(storage, backup.path(MANIFEST))
        if manifest is None:
            return unpublished(NAME, backup)
        backup = replace(backup, backup_id=_backup_id(manifest))
        refuse_other(backup, backup_id)
        contents = parse_manifest(manifest, backup)
    except CorruptDataError as error:
        return _rebuilt(storage, backup, error)
    faults = [*contents.faults]
    groups = _groups(storage, backup, faults)
    faults += _database_ahead(storage, backup, contents)
    isolation = _text(manifest, "isolation_level")
    segments = sorted(contents.segments, key=lambda each: (each.where, each.base_offset))
    return Survey(
        layout=NAME,
        segments=tuple(segments if isolation == COMMITTED else map(_uncommitted, segments)),
        topics=contents.topics,
        gaps=contents.gaps,
        groups=groups,
        positions=contents.positions,
        cluster_id=_text(manifest, "source_cluster_id"),
        taken_at_ms=manifest.integer("created_at", default=0) or None,
        faults=tuple(faults),
        doubts=_doubts(isolation),
        details=backup.details if isolation == COMMITTED else {**backup.details, UNCOMMITTED: True},
    )


def _uncommitted(segment: ForeignSegment) -> ForeignSegment:
    """The segment, marked to be searched for transaction markers unless the tool says that it left them out."""
    if CONTROL_SKIPPED in segment.details:
        return segment
    return replace(segment, details={**segment.details, UNCOMMITTED: True})


def _doubts(isolation: str | None) -> tuple[Doubt, ...]:
    if isolation == COMMITTED:
        return ()
    if isolation is None:
        what = (
            "the manifest has no isolation_level: versions of the tool before that field wrote records of aborted "
            "transactions like all others, and nothing distinguishes them; transaction markers are left out"
        )
        return (Doubt(what=what, hint="if its topics have no transactions, nothing is wrong"),)
    what = (
        f"the manifest says isolation_level {isolation}: records of aborted transactions are among the others, and "
        "nothing distinguishes them; transaction markers are left out"
    )
    hint = "--accept-gaps restores aborted records like all others; a backup with read_committed has none"
    return (Doubt(what=what, hint=hint, refused=True),)


def _backup_id(manifest: Fields) -> str:
    backup_id = manifest.text("backup_id")
    if not backup_id or "\0" in backup_id:
        raise manifest.wrong("backup_id", "empty, or has a NUL")
    return backup_id


def _text(manifest: Fields, name: str) -> str | None:
    value = manifest.values.get(name)
    return value if isinstance(value, str) else None


def _groups(storage: Storage, backup: Backup, faults: list[Fault]) -> tuple[ForeignGroup, ...]:
    path = backup.path(GROUPS)
    try:
        snapshot = read_document(storage, path)
        return () if snapshot is None else parse_groups(snapshot)
    except CorruptDataError as error:
        faults.append(Fault(path=path, message=f"the groups cannot be read: {error.message}", fatal=False))
        return ()


def _database_ahead(storage: Storage, backup: Backup, contents: Contents) -> Iterator[Fault]:
    path = backup.path(POSITIONS)
    try:
        positions = read_positions(storage, path, backup.backup_id) or {}
    except CorruptDataError as error:
        yield Fault(path=path, message=error.message, fatal=False)
        return
    yield from positions_ahead(path, positions, contents.positions)


def _rebuilt(storage: Storage, backup: Backup, error: MaxbrodError) -> Survey:
    """The survey of a backup without a readable manifest, by the headers of its segments."""
    faults = [unreadable_manifest(backup, error)]
    found: list[ForeignSegment] = []
    positions: dict[TopicPartition, int] = {}
    for where, _, path, size in list_segments(storage, backup, SEGMENT):
        try:
            segment = _from_header(storage, path, size, where)
        except MaxbrodError as failure:
            faults.append(Fault(path=path, message=failure.message))
            continue
        if segment.base_offset < positions.get(where, 0):
            message = "holds offsets that another segment has, too; it is left out"
            faults.append(Fault(path=path, message=message, offset=segment.base_offset))
            continue
        found.append(segment)
        positions[where] = segment.end_offset
    return Survey(
        layout=NAME,
        segments=tuple(map(_uncommitted, sorted(found, key=lambda each: (each.where, each.base_offset)))),
        topics={each.where.topic: ForeignTopic(name=each.where.topic) for each in found},
        positions=positions,
        faults=tuple(faults),
        doubts=_doubts(None),
        details={**backup.details, "rebuilt": True, UNCOMMITTED: True},
    )


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
