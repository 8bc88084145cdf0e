"""Deletes the oldest segments of an archive in another tool's layout, if that layout supports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.errors import UsageError
from maxbrod.layouts.registry import prune_of
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from maxbrod.archive.opening import Archive
    from maxbrod.layouts.foreign import ForeignSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    archive: str
    layout: str
    older_than_ms: int
    segments: tuple[ForeignSegment, ...]
    bytes: int
    deleted: bool


def prune_archive(archive: Archive, older_than_ms: int, *, delete: bool = False) -> PruneReport:
    """Find segments with only older records, and delete them with `delete`. The last one of a partition stays."""
    if archive.survey is None:
        raise UsageError(
            "an archive of our own layout keeps everything that was archived",
            object_name=archive.url,
            hint="only archives in other layouts can be pruned; 'maxbrod gc' removes uncommitted objects",
        )
    prune = prune_of(archive.survey.layout)
    storage = open_storage(archive.url, archive.options)
    found = prune(storage, archive.survey, older_than_ms, delete=delete)
    return PruneReport(
        archive=archive.url,
        layout=archive.survey.layout,
        older_than_ms=older_than_ms,
        segments=tuple(found),
        bytes=sum(each.bytes for each in found),
        deleted=delete,
    )
