"""What a worker does: looks at the lock of each object, and extends it if it ends too early.

It may be repeated at any point, and beside itself: a lock is never shortened, and one that lasts long enough is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from maxbrod.board import stop_of_task
from maxbrod.errors import ForbiddenError, ObjectNotFoundError, StoppedError, UsageError
from maxbrod.storage.bucket import Bucket, LockMode, ObjectLock
from maxbrod.storage.remote import RetryPolicy
from maxbrod.storage.stores import open_bucket
from maxbrod.work.reach import Place

_AT_ONCE: Final = 16


class LockState(StrEnum):
    LASTS = "lasts"
    """Its lock lasts long enough."""
    SHORT = "short"
    """Its lock ends earlier. Of a dry run: it would be extended."""
    NONE = "none"
    """It has no lock. Of a dry run: it would get one."""
    EXTENDED = "extended"
    REFUSED = "refused"
    GONE = "gone"
    """Somebody has deleted it meanwhile."""
    LEFT = "left"
    """The command was stopped before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockContext:
    """The context that all tasks share. Contains secrets."""

    place: Place
    until_ms: int
    mode: LockMode
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LockItem:
    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOutcome:
    item: LockItem
    state: LockState
    until_ms: int | None = None
    """When the lock ends that it has now; None: it has none, or it is not known."""
    mode: str | None = None
    reason: str | None = None


def bucket_of(place: Place) -> Bucket:
    """UsageError: it is no bucket that could lock."""
    bucket = open_bucket(place.url, place.storage)
    if bucket is None:
        raise UsageError(
            "there are no locks here",
            object_name=place.url,
            hint="archives in s3:// have them; Google and Azure lock by a retention policy of the bucket",
        )
    return bucket


def extend_locks(context: LockContext, items: Sequence[LockItem]) -> list[LockOutcome]:
    bucket, stop = bucket_of(context.place), stop_of_task()
    retries = RetryPolicy(deadline_s=context.place.storage.deadline_s, stop=stop)

    def extend(item: LockItem) -> LockOutcome:
        if stop is not None and stop.is_set():
            return LockOutcome(item=item, state=LockState.LEFT)
        try:
            return _extend(bucket, context, item, retries)
        except StoppedError:
            return LockOutcome(item=item, state=LockState.LEFT)
        except ObjectNotFoundError:
            return LockOutcome(item=item, state=LockState.GONE)
        except ForbiddenError as error:
            return LockOutcome(item=item, state=LockState.REFUSED, reason=f"{error.message}; {error.hint or ''}")

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(extend, items))


def _extend(bucket: Bucket, context: LockContext, item: LockItem, retries: RetryPolicy) -> LockOutcome:
    def look() -> ObjectLock | None:
        return retries.run(lambda: bucket.lock_of(item.path))

    def lasts(lock: ObjectLock | None) -> LockOutcome | None:
        if lock is None or lock.until_ms < context.until_ms:
            return None
        return LockOutcome(item=item, state=LockState.LASTS, until_ms=lock.until_ms, mode=lock.mode)

    lock = look()
    if (done := lasts(lock)) is not None:
        return done
    if context.dry_run:
        if lock is None:
            return LockOutcome(item=item, state=LockState.NONE)
        return LockOutcome(item=item, state=LockState.SHORT, until_ms=lock.until_ms, mode=lock.mode)
    wanted = ObjectLock(mode=context.mode if lock is None else lock.mode, until_ms=context.until_ms)
    try:
        retries.run(lambda: bucket.set_lock(item.path, wanted))
    except ForbiddenError:
        # Somebody else may have extended it further since it was looked at.
        if (done := lasts(look())) is not None:
            return done
        raise
    return LockOutcome(item=item, state=LockState.EXTENDED, until_ms=wanted.until_ms, mode=wanted.mode)
