"""Deletes old segments: the manifest lists them under `pruned` first, as the tool's own manifests do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.errors import RefusedError
from maxbrod.layouts.backups import MANIFEST, Backup, list_segments, refuse_rebuilt
from maxbrod.layouts.coverage import by_partition
from maxbrod.layouts.documents import read_document, write_document
from maxbrod.layouts.kbak.schema import SEGMENT

if TYPE_CHECKING:
    from collections.abc import Collection

    from maxbrod.layouts.foreign import ForeignSegment, Survey
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage


def prune(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    backup = Backup.surveyed(survey)
    if backup is None:
        return
    path = backup.path(MANIFEST)
    refuse_rebuilt(storage, backup, survey)
    manifest = read_document(storage, path)
    if manifest is None:
        raise RefusedError("the manifest has disappeared", object_name=storage.name_of(path))
    segments = by_partition(survey.segments)
    leaving = {segment.details["key"]: segment for segment in survey.segments if segment.path in going}
    values = dict(manifest.values)
    for topic in values.get("topics") or [] if leaving else []:
        for partition in topic.get("partitions") or []:
            _move(partition, leaving)
    if leaving:
        write_document(storage, path, values)
    storage.delete(_left_below(storage, backup, segments, going))


def _move(partition: dict[str, Any], leaving: dict[str, ForeignSegment]) -> None:
    """Move segments from the list of a partition to what was pruned of it."""
    listed = partition.get("segments") or []
    gone = [each for each in listed if each.get("key") in leaving]
    if not gone:
        return
    partition["segments"] = [each for each in listed if each.get("key") not in leaving]
    first = min(each["start_offset"] for each in gone)
    entry = {"start_offset": first, "end_offset": max(each["end_offset"] for each in gone), "reason": "retention"}
    partition["pruned"] = [*(partition.get("pruned") or []), entry]


def _left_below(
    storage: Storage, backup: Backup, segments: dict[TopicPartition, list[ForeignSegment]], going: Collection[str]
) -> list[str]:
    """Every segment below the first one that stays, those that a killed call has left included."""
    first = {
        where: min((each.base_offset for each in held if each.path not in going), default=0)
        for where, held in segments.items()
    }
    named = {each.path for held in segments.values() for each in held if each.path not in going}
    return [
        path
        for where, number, path, _ in list_segments(storage, backup, SEGMENT)
        if number < first.get(where, 0) and path not in named
    ]
