"""Finds and deletes objects that no row of the catalog names: `maxbrod gc`.

A run writes its objects first and names them in one commit at the end, so garbage looks like the objects of a running
backup. Only age tells them apart. Four rules keep the objects of a run safe, in this order: objects are listed before
the catalog is read, so that everything committed by then is named; nothing younger than the grace time is deleted; ages
are measured with the clock of the store that stamped the objects or with our own, whichever makes them younger, and not
at all if the clocks contradict each other (see `archive/upkeep`); and the
catalog must not change from when it was read until the last object is deleted. Objects that a commit has put out of use
stay for the grace time too, because someone may be reading them. Rows that were replaced after a truncation still name
their objects, which are no garbage. So do the undo documents of prunes, until a prune can no longer be undone. Whatever
its age, an object that holds records which the catalog lacks is no garbage: see `archive.unlisted`. Nothing is garbage
while the catalog is rebuilt, or if it seems to have lost its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from maxbrod.archive.archive import Archive
from maxbrod.archive.signs_of_life import REPLICATION, passed
from maxbrod.archive.undo import PRUNES, SLACK_MS, named_by_undo, undoable
from maxbrod.archive.unlisted import UnlistedRange, find_lost_end, find_unlisted
from maxbrod.archive.upkeep import read_clocks, rebuild_under_way
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.ledger import documents_in, read_ledger
from maxbrod.config import Config
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, RefusedError, StoppedError, UsageError
from maxbrod.restore.state import stagings_left
from maxbrod.storage.interface import HeldObject, ObjectInfo
from maxbrod.work.held import find_held, find_hiding
from maxbrod.work.work import Work

FOLDERS: Final = ("packs", "probes", PRUNES, "segments", "snapshots")
"""The folders in which a killed run leaves objects. Commits clean up the catalog's own folder."""
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
    prunes_waiting: tuple[str, ...] = ()
    """Prunes whose grace period is over by this machine's clock, but not by the newest backup: their objects stay."""
    unlisted: tuple[UnlistedRange, ...] = ()
    """Records in other objects that no row names, and which the catalog lacks: these objects stay."""
    held_objects: tuple[HeldObject, ...] = ()
    """Garbage that was to be deleted, and that a lock, the bucket's versions or a missing right keeps."""
    held_bytes: int = 0

    @property
    def exit_code(self) -> int:
        return EXIT_INCOMPLETE if self.unlisted else EXIT_DONE


def collect_garbage(
    archive: Archive,
    *,
    work: Work | None = None,
    grace_s: int = GRACE_S,
    delete: bool = False,
    trust_clock: bool = False,
) -> GarbageReport:
    """Find garbage, and with `delete` delete it.

    `grace_s` must be longer than any run takes from its first object to its commit. `trust_clock`: this machine's clock
    is right, whatever the newest run says. RefusedError: the clocks contradict each other; the catalog seems to have
    lost its end; or a run committed meanwhile, or a rebuild began: then some of the garbage may be deleted, and nothing
    else is. StoppedError: `work` was stopped, with the same effect.
    """
    work = work or Work(Config())
    if archive.survey is not None:
        layout = archive.survey.layout
        raise _refused(archive, f"only the layout's own tool knows what is garbage in the layout {layout}")
    if grace_s < GRACE_S_MIN:
        raise UsageError(
            f"a grace time of {grace_s} s is shorter than a run may take",
            hint="give at least 1h; younger objects may belong to a run that has not committed yet",
        )
    clocks = read_clocks(archive, ask_store=delete, trusted=trust_clock)
    now_ms = clocks.object_ms
    with work.looking("listing objects"):
        listed = [found for folder in FOLDERS for found in archive.storage.list(folder)]
        listed += stagings_left(archive.storage)
        listed += passed(archive.storage.list(REPLICATION))
    with work.looking("reading the catalog"):
        archive.catalog.refresh()
        named = archive.catalog.path_set()
        prunes = undoable(archive.storage, archive.catalog.runs(), clocks, slack_ms=SLACK_MS)
        named.add(named_by_undo(archive.storage, prunes))
    unnamed = [found for found in listed if found.path not in named]
    garbage = [found for found in unnamed if found.modified_ms < now_ms - grace_s * 1000]
    if garbage:
        recent = archive.catalog.recent_paths(now_ms - grace_s * 1000)
        garbage = [found for found in garbage if found.path not in recent]
    old = {found.path for found in garbage}
    young = [found for found in unnamed if found.path not in old]
    version = archive.catalog.version
    with work.looking("looking into garbage"):
        _demand_whole(archive, now_ms)
        unlisted = find_unlisted(archive.storage, _own(archive), garbage)
    kept = {range_.path for range_ in unlisted}
    garbage = [found for found in garbage if found.path not in kept]
    held: tuple[HeldObject, ...] = ()
    if delete:
        left = {found.path for found in listed}.difference(found.path for found in garbage)
        held = _sweep(work, archive, garbage, left, since_ms=now_ms - grace_s * 1000)
    return GarbageReport(
        archive=archive.url,
        version=version,
        grace_s=grace_s,
        objects=tuple(garbage),
        bytes=_bytes(garbage),
        deleted=delete,
        young_objects=len(young),
        young_bytes=_bytes(young),
        named_objects=len(listed) - len(unnamed),
        prunes_waiting=tuple(prune.run_id for prune in prunes if prune.until_ms <= now_ms - SLACK_MS),
        unlisted=tuple(unlisted),
        held_objects=held,
        held_bytes=sum(item.size or 0 for item in held),
    )


def _sweep(
    work: Work, archive: Archive, garbage: Sequence[ObjectInfo], left: Collection[str], *, since_ms: int
) -> tuple[HeldObject, ...]:
    """Delete garbage, and documents of the ledger that tell nothing once only `left` is there; what the store keeps."""
    hiding = find_hiding(archive.url, archive.options) if garbage else None
    hidden = [] if hiding is None else hiding.held(archive.storage, garbage)
    dead, silent = _documents(archive, left, since_ms)
    # First: what names an object as part of the archive must not outlive it. The others say what it is not.
    _delete(work, archive, dead, since_ms=since_ms)
    _delete(work, archive, [found.path for found in garbage], since_ms=since_ms)
    if silent:
        archive.storage.delete(silent)
    refused = find_held(archive.storage, archive.url, archive.options)
    there = {item.path for item in refused}
    return (*refused, *(item for item in hidden if item.path not in there))


def _refused(archive: Archive, message: str, hint: str | None = None) -> RefusedError:
    return RefusedError(message, operation="gc", object_name=archive.url, hint=hint)


def _demand_whole(archive: Archive, now_ms: int) -> None:
    """A catalog that has lost its end does not name what was committed last."""
    named = {run.snapshot for run in archive.catalog.runs()}
    # A run that is about to commit has a snapshot already.
    until_ms = now_ms - GRACE_S_MIN * 1000
    lost = find_lost_end(archive.storage, _own(archive), named, until_ms=until_ms)
    if lost is not None:
        hint = "'maxbrod repair' rebuilds the catalog; if a run was killed, the next 'maxbrod backup' will do"
        raise _refused(archive, f"the catalog does not say what is garbage: {lost}", hint)


def _own(archive: Archive) -> Catalog:
    assert isinstance(archive.catalog, Catalog)  # noqa: S101 - archives of other layouts are refused
    return archive.catalog


def _documents(archive: Archive, there: Collection[str], before_ms: int) -> tuple[list[str], list[str]]:
    """Documents of the ledger that never counted, and such as tell nothing once only `there` is left.

    They are no garbage of runs: nobody counts them.
    """
    old = {info.path for info, _ in documents_in(archive.storage) if info.modified_ms < before_ms}
    if not old:
        return [], []
    catalog = _own(archive)
    ledger = read_ledger(archive.storage, last=catalog.ledger, version=catalog.version, there=there)
    return sorted(old.intersection(ledger.dead)), sorted(old.intersection(ledger.silent))


def _delete(work: Work, archive: Archive, paths: Sequence[str], *, since_ms: int) -> None:
    version = archive.catalog.version
    work.tell("deleting")
    for start in range(0, len(paths), _DELETED_AT_ONCE):
        so_far = f"{start} objects are deleted, the other garbage stays"
        if work.is_stopped():
            raise StoppedError(
                f"stopped on request; {so_far}", operation="gc", object_name=archive.url, hint="run it again"
            )
        rebuild = rebuild_under_way(archive.storage, since_ms=since_ms)
        if rebuild is not None:
            hint = "try again when it has ended; if it was killed, run it again, or wait for the grace time"
            raise _refused(archive, f"run {rebuild} rebuilds the catalog; {so_far}", hint)
        archive.catalog.refresh()
        if archive.catalog.version != version:
            hint = "try again when no run is active"
            raise _refused(archive, f"a run committed to the archive meanwhile; {so_far}", hint)
        archive.storage.delete(paths[start : start + _DELETED_AT_ONCE])


def _bytes(objects: Iterable[ObjectInfo]) -> int:
    return sum(found.size for found in objects)
