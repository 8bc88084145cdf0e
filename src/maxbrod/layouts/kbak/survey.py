"""What a backup holds, by its manifest; where that is damaged, by the headers of its segments."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError, MaxbrodError
from maxbrod.layouts.backups import (
    LOOKED_AT_MAX,
    MANIFEST,
    Backup,
    find_backup,
    folders,
    has_segment,
    manifest_head,
    refuse_other,
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
    parse_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

_BACKUP_ID: Final = re.compile(rb'"backup_id"\s*:')
_VERSION: Final = re.compile(rb'"version"\s*:')  # which the manifest of the layout kbs begins with


def detect(storage: Storage) -> bool:
    return is_backup(storage, "") or any(
        is_backup(storage, folder) for folder in folders(storage, SEGMENT, names_max=LOOKED_AT_MAX)
    )


def is_backup(storage: Storage, folder: str) -> bool:
    """Whether a folder is such a backup, by the head of its manifest or, if that tells nothing, by a segment."""
    head = manifest_head(storage, folder)
    if head is not None and _BACKUP_ID.search(head):
        return _VERSION.search(head) is None
    return has_segment(storage, folder, SEGMENT)


def survey(storage: Storage, backup_id: str | None = None) -> Survey:
    folder = find_backup(storage, SEGMENT, is_backup, backup_id)
    if folder is None:
        return Survey(layout=NAME, segments=())
    backup = Backup(backup_id=folder or backup_id or storage.url.rsplit("/", 1)[-1], folder=folder)
    try:
        manifest = read_document(storage, backup.path(MANIFEST))
        if manifest is None:
            return _unpublished(backup)
        backup = Backup(backup_id=_folder_name(manifest), folder=folder)
        refuse_other(backup, backup_id)
        contents = parse_manifest(manifest, backup)
    except CorruptDataError as error:
        return _rebuilt(storage, backup, error)
    faults = [*contents.faults]
    groups = _groups(storage, backup, faults)
    _compare_positions(storage, backup, contents, faults)
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
    """Markers are looked for where the tool does not say that it left them out."""
    if CONTROL_SKIPPED in segment.details:
        return segment
    return replace(segment, details={**segment.details, UNCOMMITTED: True})


def _doubts(isolation: str | None) -> tuple[Doubt, ...]:
    if isolation == COMMITTED:
        return ()
    if isolation is None:
        what = (
            "the manifest has no isolation_level: versions of the tool before that field wrote records of aborted "
            "transactions like all others, and nothing tells them apart; transaction markers are left out"
        )
        return (Doubt(what=what, hint="if its topics have no transactions, nothing is wrong"),)
    what = (
        f"the manifest says isolation_level {isolation}: records of aborted transactions stand among the others, and "
        "nothing tells them apart; transaction markers are left out"
    )
    hint = "--accept-gaps restores aborted records like all others; a backup with read_committed has none"
    return (Doubt(what=what, hint=hint, refused=True),)


def _folder_name(manifest: Fields) -> str:
    backup_id = manifest.text("backup_id")
    if not backup_id or "\0" in backup_id:
        raise manifest.wrong("backup_id", "empty, or has a NUL")
    return backup_id


def _text(manifest: Fields, name: str) -> str | None:
    value = manifest.values.get(name)
    return value if isinstance(value, str) else None


def _unpublished(backup: Backup) -> Survey:
    """A run that died before it published anything. The next one writes over what it left."""
    message = "there are segments, but no manifest: nothing of this backup was published"
    fault = Fault(path=backup.path(MANIFEST), message=message, fatal=False)
    return Survey(layout=NAME, segments=(), faults=(fault,), details=backup.details)


def _groups(storage: Storage, backup: Backup, faults: list[Fault]) -> tuple[ForeignGroup, ...]:
    path = backup.path(GROUPS)
    try:
        snapshot = read_document(storage, path)
        return () if snapshot is None else parse_groups(snapshot)
    except CorruptDataError as error:
        faults.append(Fault(path=path, message=f"the groups cannot be read: {error.message}", fatal=False))
        return ()


def _compare_positions(storage: Storage, backup: Backup, contents: Contents, faults: list[Fault]) -> None:
    """The manifest is the truth: an offset that only the database knows of has no record here."""
    path = backup.path(POSITIONS)
    try:
        positions = read_positions(storage, path, backup.backup_id) or {}
    except CorruptDataError as error:
        faults.append(Fault(path=path, message=error.message, fatal=False))
        return
    for where, position in sorted(positions.items()):
        known = contents.positions.get(where, 0)
        if position > known:
            message = f"says that {where} is backed up to offset {position}, and the manifest to {known}"
            faults.append(Fault(path=path, message=message, offset=known, fatal=False))


def _segments(storage: Storage, backup: Backup) -> Iterator[tuple[str, int, TopicPartition, int]]:
    """Path, size, partition and offset of every object that is named like a segment."""
    prefix = f"{backup.folder}/" if backup.folder else ""
    for info in storage.list(backup.path("topics")):
        parsed = parse_name(info.path.removeprefix(prefix))
        if parsed is not None:
            yield info.path, info.size, *parsed


def _rebuilt(storage: Storage, backup: Backup, error: MaxbrodError) -> Survey:
    """Without a manifest the segments tell themselves what is in them."""
    reason = f"the manifest cannot be read: {error.message}; its segments were asked instead"
    faults = [Fault(path=backup.path(MANIFEST), message=reason, fatal=False)]
    found: list[ForeignSegment] = []
    positions: dict[TopicPartition, int] = {}
    for path, size, where, _ in _segments(storage, backup):
        try:
            segment = _from_header(storage, path, size, where)
        except MaxbrodError as failure:
            faults.append(Fault(path=path, message=failure.message))
            continue
        if segment.base_offset < positions.get(where, 0):
            message = "holds offsets that another has, too; it is left out"
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
        raise CorruptDataError("only the manifest could tell what this segment holds")
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
