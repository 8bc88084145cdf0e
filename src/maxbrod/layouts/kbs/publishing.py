"""Makes written segments part of a backup: the manifest, then the checkpoint behind it.

A checkpoint that is ahead of the manifest would make a later run skip records that no reader can find.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from maxbrod.errors import CorruptDataError, RefusedError
from maxbrod.layouts.backups import MANIFEST, Backup, backup_for
from maxbrod.layouts.documents import read_document, write_document
from maxbrod.layouts.kbs.manifest import build, checkpoint_document, parse_checkpoint
from maxbrod.layouts.kbs.schema import CHECKPOINT, codec_of
from maxbrod.layouts.kbs.survey import survey as survey_again

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, Survey, WriteOptions
    from maxbrod.storage.interface import Storage


def publish(
    storage: Storage, survey: Survey, written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
) -> None:
    backup = backup_for(survey, options)
    codec, level = codec_of(options)
    now_ms = int(time.time() * 1000)
    if survey.details.get("rebuilt"):
        raise RefusedError(
            "the manifest of this backup is damaged, and a new one would forget what it said",
            object_name=storage.name_of(backup.path(MANIFEST)),
            hint="convert the backup into another archive, and go on there",
        )
    manifest = read_document(storage, backup.path(MANIFEST))
    held = () if manifest is None else _held(storage, backup, survey, written)
    segments = sorted((*held, *written), key=lambda each: (each.where, each.base_offset))
    document = build(
        {} if manifest is None else dict(manifest.values),
        backup,
        segments,
        facts,
        compression={"algorithm": codec.name.lower(), "level": 0 if level is None else level},
        created_at_ms=facts.taken_at_ms or now_ms,
        completed_at_ms=now_ms,
    )
    write_document(storage, backup.path(MANIFEST), document)
    path = backup.path(CHECKPOINT)
    write_document(storage, path, checkpoint_document(_old(storage, path), backup, segments, now_ms))


def _old(storage: Storage, path: str) -> dict[str, Any]:
    """A checkpoint that cannot be read is made anew: the manifest has all that it says."""
    try:
        found = read_document(storage, path)
        if found is None:
            return {}
        parse_checkpoint(found)
    except CorruptDataError:
        return {}
    return dict(found.values)


def _held(
    storage: Storage, backup: Backup, survey: Survey, written: Sequence[ForeignSegment]
) -> Sequence[ForeignSegment]:
    """What the manifest has besides these segments, which an earlier attempt may have published already."""
    now = survey_again(storage, None if backup.folder == "" else backup.folder)
    if "folder" not in now.details:
        raise RefusedError(
            "there is a manifest here that is not of this layout",
            object_name=storage.name_of(backup.path(MANIFEST)),
            hint="choose another by --layout-option backup_id=ID",
        )
    if now.details.get("rebuilt") or any(fault.fatal for fault in now.faults):
        raise RefusedError(
            f"this backup is damaged, and a new manifest would hide it: {now.faults[0].message}",
            object_name=storage.name_of(now.faults[0].path),
            hint="convert what is left of it into another archive, and go on there",
        )
    paths = {segment.path for segment in written}
    held = [segment for segment in now.segments if segment.path not in paths]
    expected = {segment.where: survey.positions.get(segment.where, 0) for segment in written}
    for segment in held:
        if segment.end_offset > expected.get(segment.where, segment.end_offset):
            raise RefusedError(
                f"another writer has added to {segment.where}, up to offset {segment.end_offset}",
                object_name=storage.name_of(segment.path),
                offset=expected[segment.where],
                hint="survey the archive again, and write what is still missing",
            )
    return held
