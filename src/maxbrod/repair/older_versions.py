"""Brings an archive back from the older versions of a bucket: `maxbrod repair --versions-before`.

Nothing is lost on the way: a copy becomes the newest version above the others, a marker that is removed hid an object,
and what is hidden stays as an older version. It may be stopped and repeated: what has come back is found as it was.
Records come first and the catalog last, so that no entry names an object that is not back yet.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from maxbrod.archive.selection import parse_time_ms
from maxbrod.errors import AccessDeniedError, ForbiddenError, MaxbrodError, RefusedError, StoppedError
from maxbrod.model import now_ms
from maxbrod.repair.plan.older_versions import CATALOG, ObjectReturn, ReturnPlan, plan_return
from maxbrod.repair.report import OlderVersions
from maxbrod.storage.bucket import Bucket, LockRule, ObjectLock
from maxbrod.storage.remote import RetryPolicy
from maxbrod.storage.stores import open_bucket, open_plain
from maxbrod.text import human_time
from maxbrod.work.work import Work

T = TypeVar("T")

_AT_ONCE: Final = 16
_NO_VERSIONS: Final = "use a bucket that keeps versions, or restore the archive from a copy"


def bring_back(work: Work, before: str) -> OlderVersions:
    """Bring every object of the archive back as it was before a time; without `apply`, only say what would be done.

    RefusedError: the place keeps no versions, or had no archive then.
    """
    config = work.config
    before_ms = parse_time_ms(before)
    url = config.archive_url
    bucket = open_bucket(url, config.storage)
    if bucket is None:
        raise _refused("older versions of objects are known of s3:// only", url)
    if before_ms > now_ms():
        raise _refused("that time is in the future", url, "give the time of the last good moment, before the attack")
    with work.looking("listing versions"):
        plan = plan_return(bucket.versions(), before_ms=before_ms)
        if not _keeps_versions(bucket) and not plan.returns:
            raise _refused("the bucket keeps no older versions of objects", url)
    if not any(path.startswith(CATALOG) for path in _paths(plan)) and not plan.unchanged:
        raise _refused(f"there was no archive here before {human_time(before_ms)}", url, "give another time")
    if config.repair.apply:
        Return(work, bucket, plan).run()
    return OlderVersions(
        before_ms=before_ms,
        applied=config.repair.apply,
        objects=len(plan.returns),
        bytes=plan.bytes,
        copied=sum(not item.markers for item in plan.returns),
        hidden=len(plan.hidden),
        unchanged=plan.unchanged,
        later=plan.later,
    )


@dataclass(frozen=True, slots=True)
class Return:
    """The execution of a plan."""

    work: Work
    bucket: Bucket
    plan: ReturnPlan

    def run(self) -> None:
        """StoppedError: some objects are back, the others are not."""
        self.work.tell("bringing objects back")
        catalog = [item for item in self.plan.returns if item.path.startswith(CATALOG)]
        self._each([item for item in self.plan.returns if not item.path.startswith(CATALOG)])
        # Entries that were added come off before those that they follow come back.
        if self.plan.hidden:
            config = self.work.config
            held = open_plain(config.archive_url, config.storage).delete(self.plan.hidden)
            for item in held:
                raise ForbiddenError(item.reason, operation="repair", object_name=item.path, hint=item.hint)
        self._each(catalog)

    def _each(self, returns: list[ObjectReturn]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(self._one, returns):
                pass

    def _one(self, item: ObjectReturn) -> None:
        if self.work.is_stopped():
            raise StoppedError(
                "stopped on request; some objects are back",
                operation="repair",
                object_name=item.path,
                hint="the same command goes on",
            )
        if item.markers:
            with suppress(ForbiddenError):  # a copy does as well
                for marker in item.markers:
                    self._retried(lambda marker=marker: self.bucket.remove_version(marker))  # type: ignore[misc]
                return
        self._retried(lambda: self.bucket.bring_back(item.chosen, lock=self._lock()))

    def _lock(self) -> ObjectLock | None:
        options = self.work.config.storage
        if options.lock is None:
            return None
        return LockRule(mode=options.lock_mode, period_ms=int(options.lock * 1000)).at(now_ms())

    def _retried(self, action: Callable[[], T]) -> T:
        return RetryPolicy(deadline_s=self.work.config.storage.deadline_s).run(action)


def _keeps_versions(bucket: Bucket) -> bool:
    try:
        return bucket.keeps_versions()
    except AccessDeniedError:
        return True  # not known; the listing tells whether there are any


def _paths(plan: ReturnPlan) -> list[str]:
    return [item.path for item in plan.returns]


def _refused(message: str, url: str, hint: str = _NO_VERSIONS) -> MaxbrodError:
    return RefusedError(message, operation="repair", object_name=url, hint=hint)
