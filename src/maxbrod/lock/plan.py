"""Decides which objects of an archive are to be locked: all that it needs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from typing import Final

from maxbrod.storage.interface import ObjectInfo

_NAMED: Final = ("packs/", "prunes/", "segments/", "snapshots/")
"""Folders of which an archive needs what its catalog, or a prune that can be undone, names."""
_TABLE: Final = "catalog/segments/"
"""The folder of the catalog, of which it needs the files of its newest version."""
_PASSING: Final = ("probes/", "replication/", ".maxbrod/schedule/")
"""Folders of objects that are replaced within seconds: probes, leases, heartbeats, the state of a scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPlan:
    needed: tuple[ObjectInfo, ...]
    others: tuple[ObjectInfo, ...]
    """What the archive does not need: garbage, old files of the catalog, leases."""


def plan_locks(listed: Iterable[ObjectInfo], *, named: Container[str], catalog: Collection[str]) -> LockPlan:
    """`named` are the objects that rows and undo documents name, `catalog` the files of its newest version.

    What is in no folder that is known is needed: keys, ledgers, holds, proofs, and what later releases add.
    """
    needed: list[ObjectInfo] = []
    others: list[ObjectInfo] = []
    for info in listed:
        if info.path.startswith(_TABLE):
            is_needed = info.path in catalog
        elif info.path.startswith(_NAMED):
            is_needed = info.path in named
        else:
            is_needed = not info.path.startswith(_PASSING)
        (needed if is_needed else others).append(info)
    return LockPlan(needed=tuple(needed), others=tuple(others))
