"""Finds and deletes objects that no row of the catalog names: `maxbrod gc`.

A run writes its objects first and names them in one commit at the end, so garbage looks like the objects of a running
backup. Only age tells them apart. Four rules keep the objects of a run safe, in this order: objects are listed before
the catalog is read, so that everything committed by then is named; nothing younger than the grace time is deleted; ages
are measured with the clock of the store that stamped the objects or with our own, whichever makes them younger; and the
catalog must not change from when it was read until the last object is deleted. Objects that a commit has put out of use
stay for the grace time too, because someone may be reading them. Rows that were replaced after a truncation still name
their objects, which are no garbage. So do the undo documents of prunes, until a prune can no longer be undone. Nothing
is garbage while the catalog is rebuilt, or if it seems to have lost its end.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.archive.rebuilding import find_lost_end, rebuild_under_way
from maxbrod.archive.undo import PRUNES, named_by_undo
from maxbrod.errors import RefusedError, StorageFullError, UsageError
from maxbrod.restore.staged_objects import stagings_left

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maxbrod.archive.opening import Archive
    from maxbrod.storage.interface import ObjectInfo, Storage

FOLDERS: Final = ("packs", "probes", PRUNES, "segments", "snapshots")
"""Where a killed run leaves objects. Commits clean up the catalog's own folder."""
GRACE_S: Final = 24 * 3600
GRACE_S_MIN: Final = 3600
_DELETED_AT_ONCE: Final = 1000
"""S3 deletes up to this many in one request; before each the catalog is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageReport:
    archive: str
    version: int
    """The version of the catalog that was read."""
    grace_s: int
    objects: tuple[ObjectInfo, ...]
    bytes: int
    deleted: bool
    young_objects: int
    """Objects without a row that were written, or lost their row, within the grace time."""
    young_bytes: int
    named_objects: int


def collect_garbage(archive: Archive, *, grace_s: int = GRACE_S, delete: bool = False) -> GarbageReport:
    """Find garbage, and with `delete` delete it.

    `grace_s` must be longer than any run takes from its first object to its commit. RefusedError: the catalog seems to
    have lost its end; or a run committed meanwhile, or a rebuild began: then some of the garbage may be deleted, and
    nothing else is.
    """
    if archive.survey is not None:
        raise RefusedError(
            f"only the layout's own tool knows what is garbage in the layout {archive.survey.layout}",
            operation="gc",
            object_name=archive.url,
        )
    if grace_s < GRACE_S_MIN:
        raise UsageError(
            f"a grace time of {grace_s} s is shorter than a run may take",
            hint="give at least 1h; younger objects may belong to a run that has not committed yet",
        )
    now_ms = min(_own_clock_ms(), _store_clock_ms(archive.storage)) if delete else _own_clock_ms()
    listed = [found for folder in FOLDERS for found in archive.storage.list(folder)]
    listed += stagings_left(archive.storage)
    archive.catalog.refresh()
    named = archive.catalog.path_set()
    named.add(named_by_undo(archive.storage, archive.catalog.runs()))
    unnamed = [found for found in listed if found.path not in named]
    garbage = [found for found in unnamed if found.modified_ms < now_ms - grace_s * 1000]
    if garbage:
        recent = archive.catalog.recent_paths(now_ms - grace_s * 1000)
        garbage = [found for found in garbage if found.path not in recent]
    version = archive.catalog.version
    _demand_whole(archive, now_ms)
    if delete:
        _delete(archive, [found.path for found in garbage], since_ms=now_ms - grace_s * 1000)
    return GarbageReport(
        archive=archive.url,
        version=version,
        grace_s=grace_s,
        objects=tuple(garbage),
        bytes=_bytes(garbage),
        deleted=delete,
        young_objects=len(unnamed) - len(garbage),
        young_bytes=_bytes(unnamed) - _bytes(garbage),
        named_objects=len(listed) - len(unnamed),
    )


def _demand_whole(archive: Archive, now_ms: int) -> None:
    """A catalog that has lost its end does not name what was committed last."""
    named = {run.snapshot for run in archive.catalog.runs()}
    # A run that is about to commit has a snapshot already.
    until_ms = now_ms - GRACE_S_MIN * 1000
    lost = find_lost_end(archive.storage, archive.catalog.version, named, until_ms=until_ms)
    if lost is not None:
        raise RefusedError(
            f"the catalog does not say what is garbage: {lost}",
            operation="gc",
            object_name=archive.url,
            hint="'maxbrod repair' rebuilds the catalog; if a run was killed, the next 'maxbrod backup' will do",
        )


def _delete(archive: Archive, paths: Sequence[str], *, since_ms: int) -> None:
    version = archive.catalog.version
    for start in range(0, len(paths), _DELETED_AT_ONCE):
        rebuild = rebuild_under_way(archive.storage, since_ms=since_ms)
        if rebuild is not None:
            raise RefusedError(
                f"run {rebuild} rebuilds the catalog; {start} objects are deleted, the other garbage stays",
                operation="gc",
                object_name=archive.url,
                hint="try again when it has ended; if it was killed, run it again, or wait for the grace time",
            )
        archive.catalog.refresh()
        if archive.catalog.version != version:
            raise RefusedError(
                f"a run committed to the archive meanwhile; {start} objects are deleted, the other garbage stays",
                operation="gc",
                object_name=archive.url,
                hint="try again when no run is active",
            )
        archive.storage.delete(paths[start : start + _DELETED_AT_ONCE])


def _own_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _store_clock_ms(storage: Storage) -> int:
    """The time with which the store stamps an object written now.

    A full store takes no object, and must be able to get rid of some: then it is at least as late as its newest object.
    """
    name = f"probes/{uuid.uuid4().hex}"
    try:
        storage.put(name, b"what time is it?")
        return storage.head(name).modified_ms
    except StorageFullError:
        return max((found.modified_ms for folder in FOLDERS for found in storage.list(folder)), default=0)
    finally:
        storage.delete([name])


def _bytes(objects: Iterable[ObjectInfo]) -> int:
    return sum(found.size for found in objects)
