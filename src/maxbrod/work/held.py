"""Objects that a verb wanted to delete and that the store keeps: which, how large, and until when.

In a bucket that keeps versions, a deletion hides an object and frees nothing, so that such objects are held as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from maxbrod.config import StorageConfig
from maxbrod.errors import (
    EnvironmentMissingError,
    MaxbrodError,
    ObjectNotFoundError,
)
from maxbrod.storage.interface import HeldObject, ObjectInfo, Storage
from maxbrod.storage.stores import open_bucket
from maxbrod.text import counted, human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.storage.bucket import Bucket, BucketLocking

T = TypeVar("T")

DESCRIBED_MAX: Final = 10_000
"""The held objects of which size and lock are asked for: two requests each."""
_ASKING: Final = 16
HIDDEN: Final = "the bucket keeps it as an older version: the deletion has hidden it and freed nothing"


def find_held(storage: Storage, url: str, options: StorageConfig) -> tuple[HeldObject, ...]:
    """What this storage was asked to delete and could not, with sizes and dates as far as the store tells them."""
    held = storage.held_back()
    if not held:
        return ()
    bucket = _bucket(url, options)
    locking = None if bucket is None else _told(bucket.locking)

    def describe(item: HeldObject) -> HeldObject | None:
        try:
            info = storage.head(item.path)
        except ObjectNotFoundError:
            return None  # somebody else could delete it
        except MaxbrodError:
            return item
        stored = replace(info, path=storage.stored_name(item.path))
        return replace(item, size=info.size, until_ms=_lock_end(bucket, locking, stored))

    with ThreadPoolExecutor(_ASKING) as pool:
        described = list(pool.map(describe, held[:DESCRIBED_MAX]))
    return (*(item for item in described if item is not None), *held[DESCRIBED_MAX:])


@dataclass(frozen=True, slots=True, kw_only=True)
class HidingBucket:
    """A bucket in which a deletion frees nothing."""

    bucket: Bucket

    def held(self, storage: Storage, objects: Iterable[ObjectInfo]) -> list[HeldObject]:
        """The objects, as they will be held once they are deleted. Asks for their locks, so call it before."""

        def hold(info: ObjectInfo) -> HeldObject:
            lock = _told(lambda: self.bucket.lock_of(storage.stored_name(info.path)))
            until_ms = None if lock is None else lock.until_ms
            return HeldObject(path=info.path, reason=HIDDEN, size=info.size, until_ms=until_ms)

        with ThreadPoolExecutor(_ASKING) as pool:
            return list(pool.map(hold, objects))


def find_hiding(url: str, options: StorageConfig) -> HidingBucket | None:
    """The bucket, if it keeps versions. None: it does not, it is no bucket of S3, or this user may not know."""
    bucket = _bucket(url, options)
    return HidingBucket(bucket=bucket) if bucket is not None and _told(bucket.keeps_versions) else None


def held_words(held: Sequence[HeldObject]) -> list[str]:
    """Lines about held objects: how many there are for each reason, their bytes, and until when."""
    lines = []
    for reason in dict.fromkeys(item.reason for item in held):
        items = [item for item in held if item.reason == reason]
        sizes = [item.size for item in items if item.size is not None]
        what = counted(len(items), "object")
        what += f" of {human_bytes(sum(sizes))}" if len(sizes) == len(items) else ""
        ends = [item.until_ms for item in items if item.until_ms is not None]
        until = f" until {human_time(max(ends))}" if ends else ""
        if ends and len(ends) < len(items):
            until += f" ({counted(len(items) - len(ends), 'object')} without a known end)"
        lines.append(f"{what} {'is' if len(items) == 1 else 'are'} held{until}: {reason}")
    return lines


def _bucket(url: str, options: StorageConfig) -> Bucket | None:
    with suppress(EnvironmentMissingError):
        return open_bucket(url, options)
    return None


def _told(ask: Callable[[], T]) -> T | None:
    """The answer; None: this user may not ask, or nobody answers. What was deleted is not in doubt by that."""
    try:
        return ask()
    except MaxbrodError:
        return None


def _lock_end(bucket: Bucket | None, locking: BucketLocking | None, info: ObjectInfo) -> int | None:
    """When the lock of an object ends. versitygw applies the bucket's own lock without writing it onto the object."""
    lock = None if bucket is None else _told(lambda: bucket.lock_of(info.path))
    if lock is not None:
        return lock.until_ms
    default = None if locking is None else locking.default
    return None if default is None else info.modified_ms + default.period_ms
