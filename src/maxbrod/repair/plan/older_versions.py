"""Decides how an archive comes back from the older versions of its objects: as it was at a time. Pure.

Every object that existed then is to have the bytes that it had. An object that only appeared later stays: it may be of
a backup that came after the attack. Files of the catalog are the exception: one more entry in the catalog's log would
change what the archive is, so they are hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from maxbrod.storage.bucket import ObjectVersion

CATALOG: Final = "catalog/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReturn:
    """How one object gets the bytes that it had: by a copy of its older version, or by removing what hides it."""

    chosen: ObjectVersion
    markers: tuple[ObjectVersion, ...] = ()
    """The markers to remove, newest first: nothing else is above the chosen version. Empty: it is copied."""

    @property
    def path(self) -> str:
        return self.chosen.path


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnPlan:
    returns: tuple[ObjectReturn, ...]
    hidden: tuple[str, ...]
    """Files of the catalog that did not exist then, and are there now."""
    unchanged: int
    """Objects that are what they were."""
    later: int
    """Other objects that did not exist then, and are there now: they stay."""

    @property
    def bytes(self) -> int:
        return sum(item.chosen.size for item in self.returns)


def plan_return(versions: Iterable[ObjectVersion], *, before_ms: int) -> ReturnPlan:
    """`versions` come in the order of names, the newest of each first."""
    returns: list[ObjectReturn] = []
    hidden: list[str] = []
    unchanged = later = 0
    for path, group in groupby(versions, key=lambda version: version.path):
        history = list(group)
        now = history[0]
        then = next((version for version in history if version.modified_ms < before_ms), None)
        if then is None or then.is_marker:
            if not now.is_marker and path.startswith(CATALOG):
                hidden.append(path)
            elif not now.is_marker:
                later += 1
        elif _same(now, then):
            unchanged += 1
        else:
            above = list(_above(history, then))
            bare = all(version.is_marker for version in above)
            returns.append(ObjectReturn(chosen=then, markers=tuple(above) if bare else ()))
    return ReturnPlan(returns=tuple(returns), hidden=tuple(hidden), unchanged=unchanged, later=later)


def _above(history: list[ObjectVersion], chosen: ObjectVersion) -> Iterator[ObjectVersion]:
    for version in history:
        if version is chosen:
            return
        yield version


def _same(now: ObjectVersion, then: ObjectVersion) -> bool:
    """True if the newest version is the chosen one, or a copy of it that an earlier attempt made."""
    if now.is_marker:
        return False
    return now.version == then.version or (now.etag is not None and (now.etag, now.size) == (then.etag, then.size))
