"""Makes written segments part of a backup: groups, then the manifest, then the positions.

The manifest is what readers go by. The database comes behind it, because the tool goes on by it: were it ahead, the
tool would skip records that no manifest names.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from maxbrod.errors import CorruptDataError, ObjectNotFoundError, RefusedError
from maxbrod.layouts.backups import MANIFEST, Backup, backup_for
from maxbrod.layouts.documents import Fields, read_document, write_document
from maxbrod.layouts.kbak.compression import codec_of
from maxbrod.layouts.kbak.groups import groups_document
from maxbrod.layouts.kbak.manifest import parse_manifest
from maxbrod.layouts.kbak.merging import merge, new_manifest
from maxbrod.layouts.kbak.names import GROUPS, POSITIONS
from maxbrod.layouts.kbak.positions import positions_database

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, Survey, WriteOptions
    from maxbrod.storage.interface import Storage


def publish(
    storage: Storage, survey: Survey, written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
) -> None:
    backup = backup_for(survey, options)
    codec, _ = codec_of(options)
    taken_at_ms = facts.taken_at_ms or int(time.time() * 1000)
    manifest = _current(storage, backup, survey, taken_at_ms)
    _refuse_other_writer(manifest, backup, survey, written)
    values = dict(manifest.values)
    merge(values, written, facts, codec.name.lower())
    if facts.groups or not _exists(storage, backup.path(GROUPS)):
        # The tool keeps the last groups that it saw, rather than to forget them for a run that saw none.
        write_document(storage, backup.path(GROUPS), groups_document(facts.groups, taken_at_ms))
    write_document(storage, backup.path(MANIFEST), values)
    contents = parse_manifest(Fields(values=values, object_name=manifest.object_name), backup)
    database = positions_database(backup.backup_id, contents.positions, facts.cluster_id, taken_at_ms)
    storage.replace(backup.path(POSITIONS), database)


def _exists(storage: Storage, path: str) -> bool:
    try:
        storage.head(path)
    except ObjectNotFoundError:
        return False
    return True


def _current(storage: Storage, backup: Backup, survey: Survey, taken_at_ms: int) -> Fields:
    path = backup.path(MANIFEST)
    if survey.details.get("rebuilt"):
        raise RefusedError(
            "the manifest of this backup is damaged, and a new one would forget what it said",
            object_name=storage.name_of(path),
            hint="convert the backup into another archive, and go on there",
        )
    found = read_document(storage, path)
    if found is None:
        return Fields(values=new_manifest(backup, taken_at_ms), object_name=storage.name_of(path))
    return found


def _refuse_other_writer(manifest: Fields, backup: Backup, survey: Survey, written: Sequence[ForeignSegment]) -> None:
    """Since the survey nobody may have added to these partitions, but an earlier attempt at this very publishing."""
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
            raise RefusedError(
                f"another writer has added to {where}, up to offset {end}",
                object_name=manifest.object_name,
                offset=survey.positions.get(where, 0),
                hint="survey the archive again, and write what is still missing",
            )
