"""Extends the locks of what an archive needs, or shows them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from maxbrod.archive.archive import Archive, open_archive
from maxbrod.archive.selection import parse_time_ms
from maxbrod.archive.undo import SLACK_MS, named_by_undo, undoable
from maxbrod.archive.upkeep import read_clocks
from maxbrod.catalog.catalog import Catalog
from maxbrod.errors import AccessDeniedError, UsageError
from maxbrod.lock.plan import LockPlan, plan_locks
from maxbrod.lock.report import LockReport, LockTotals, RefusedLock
from maxbrod.lock.task import LockContext, LockItem, LockOutcome, LockState, bucket_of, extend_locks
from maxbrod.storage.bucket import Bucket, BucketLocking, no_object_lock
from maxbrod.storage.interface import KEYS, ObjectInfo
from maxbrod.storage.stores import open_plain
from maxbrod.work.preflight import needs_storage
from maxbrod.work.reach import Place
from maxbrod.work.work import Work

_TASK_OBJECTS: Final = 2000
_DAY_MS: Final = 24 * 3600 * 1000
_REFUSED_MAX: Final = 1000
_FAR_MS: Final = 100 * 365 * _DAY_MS


def extend_archive_locks(work: Work) -> LockReport:
    """Extend the lock of every object that the archive needs to the time of the options, where it ends earlier.

    RefusedError: the bucket has no Object Lock. UsageError: nothing, or not one time, says until when.
    """
    return _lock(work, _until_ms(work), dry_run=work.config.lock.dry_run)


def show_archive_locks(work: Work) -> LockReport:
    """Look at the lock of every object that the archive needs."""
    return _lock(work, None, dry_run=True)


def _until_ms(work: Work) -> int:
    options = work.config.lock
    if (options.until is None) == (options.for_ is None):
        raise UsageError("give either --until or --for", hint="--for 30d, or --until 2027-01-01T00:00Z")
    if options.for_ is not None:
        until_ms = work.clock_ms + int(options.for_ * 1000)
    else:
        until_ms = parse_time_ms(str(options.until))
    # Stores keep whole seconds: a lock that was set must count as long enough the next time.
    until_ms = -(-until_ms // 1000) * 1000
    if not work.clock_ms < until_ms < work.clock_ms + _FAR_MS:
        raise UsageError("the locks would end in the past, or in more than 100 years", hint="nothing was changed")
    return until_ms


def _lock(work: Work, until_ms: int | None, *, dry_run: bool) -> LockReport:
    config = work.config
    place = Place(url=config.archive_url, storage=config.storage)
    bucket = bucket_of(place)
    locking = bucket.locking()
    if until_ms is not None and not locking.enabled:
        raise no_object_lock(place.url)
    with work.looking("reading the archive"):
        archive = open_archive(config.archive_url, config.storage, layout=config.layout, groups=False)
        plan, version = _plan(archive)
    context = LockContext(
        place=place,
        # To show locks is to extend none: every one of them is short then.
        until_ms=work.clock_ms + 2 * _FAR_MS if until_ms is None else until_ms,
        mode=config.storage.lock_mode,
        dry_run=dry_run,
    )
    items = [LockItem(path=archive.storage.stored_name(info.path), size=info.size) for info in plan.needed]
    # A storage of an encrypted archive does not list its keys, without which nothing of it can be read.
    keys = [LockItem(path=info.path, size=info.size) for info in open_plain(place.url, place.storage).list(KEYS)]
    known = {item.path for item in items}
    items += [item for item in keys if item.path not in known]
    outcomes = _run(work, context, items) if locking.enabled else []
    return _report(
        archive,
        items,
        plan.others,
        outcomes,
        version=version,
        until_ms=until_ms,
        dry_run=dry_run,
        locking=locking,
        versions=_keeps_versions(bucket),
    )


def _plan(archive: Archive) -> tuple[LockPlan, int | None]:
    # Objects are listed first: what a run commits meanwhile is named then. What it writes later, it locks itself.
    listed = list(archive.storage.list())
    if not isinstance(archive.catalog, Catalog):
        return LockPlan(needed=tuple(listed), others=()), None
    archive.catalog.refresh()
    named = archive.catalog.path_set()
    clocks = read_clocks(archive, ask_store=False, demand=False)
    prunes = undoable(archive.storage, archive.catalog.runs(), clocks, slack_ms=SLACK_MS)
    named.add(named_by_undo(archive.storage, prunes))
    return plan_locks(listed, named=named, catalog=archive.catalog.own_paths()), archive.catalog.version


def _run(work: Work, context: LockContext, items: list[LockItem]) -> list[LockOutcome]:
    tasks = [items[start : start + _TASK_OBJECTS] for start in range(0, len(items), _TASK_OBJECTS)]
    if not tasks:
        return []
    # Requests of a few bytes, and many at once in each task: no JVM is worth its start.
    executor = work.workers(needs_storage(context.place.url, context.place.storage)).for_bytes(0)
    return executor.run(
        extend_locks,
        context,
        tasks,
        name=f"lock-{uuid.uuid4().hex[:12]}",
        meter=work.meter("looking at locks" if context.dry_run else "extending locks", tasks=len(tasks)),
        stop=work.stop,
        gentle=True,
    )


def _keeps_versions(bucket: Bucket) -> bool | None:
    try:
        return bucket.keeps_versions()
    except AccessDeniedError:
        return None


def _report(
    archive: Archive,
    needed: Sequence[LockItem],
    others: Sequence[ObjectInfo],
    outcomes: list[LockOutcome],
    *,
    version: int | None,
    until_ms: int | None,
    dry_run: bool,
    locking: BucketLocking,
    versions: bool | None,
) -> LockReport:
    by_state = {state: [outcome for outcome in outcomes if outcome.state is state] for state in LockState}
    ends = [outcome.until_ms for outcome in outcomes if outcome.state is not LockState.GONE]
    known = [end for end in ends if end is not None]
    default = locking.default
    changed = by_state[LockState.EXTENDED]
    if dry_run and until_ms is not None:
        changed = by_state[LockState.SHORT] + by_state[LockState.NONE]
    lasting = by_state[LockState.LASTS] + (by_state[LockState.SHORT] if until_ms is None else [])
    return LockReport(
        archive=archive.url,
        version=version,
        dry_run=dry_run,
        until_ms=until_ms,
        object_lock=locking.enabled,
        default_mode=None if default is None else default.mode,
        default_days=None if default is None else default.period_ms // _DAY_MS,
        versions=versions,
        needed=_totals(needed),
        extended=_totals(outcome.item for outcome in changed),
        lasting=_totals(outcome.item for outcome in lasting),
        unlocked=_totals(needed if not locking.enabled else (found.item for found in by_state[LockState.NONE])),
        first_end_ms=min(known) if known and len(known) == len(ends) else None,
        not_needed=_totals(others),
        gone=len(by_state[LockState.GONE]),
        refused=tuple(
            RefusedLock(path=found.item.path, reason=found.reason or "") for found in by_state[LockState.REFUSED]
        )[:_REFUSED_MAX],
        left=len(by_state[LockState.LEFT]),
    )


def _totals(objects: Iterable[ObjectInfo | LockItem]) -> LockTotals:
    sizes = [found.size for found in objects]
    return LockTotals(objects=len(sizes), bytes=sum(sizes))
