"""Objects of replication that later ones take the place of: leases, signs of life, heartbeats.

Their writers delete them. A writer that may not delete leaves them, and `gc`, run by somebody who may, finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from maxbrod.storage.interface import ObjectInfo

REPLICATION: Final = "replication"
LEASE: Final = f"{REPLICATION}/lease"
MEMBERS: Final = f"{REPLICATION}/members"
HEARTBEATS: Final = f"{REPLICATION}/heartbeats"
_ALL_KEPT: Final = 8
"""The newest heartbeats, of which none is thinned out."""


def passed(listed: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    """The objects of replication that nobody reads any more; they are listed in the order of their names."""
    found: list[ObjectInfo] = []
    for folder, group in groupby(listed, key=lambda info: info.path.rpartition("/")[0]):
        infos = list(group)
        if folder == LEASE or folder.startswith(f"{MEMBERS}/"):
            found += infos[:-1]
        elif folder == HEARTBEATS:
            found += _thinned_out(infos)
    return found


def _thinned_out(infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    names = {info.path: info.path.rpartition("/")[2].partition(".")[0] for info in infos}
    kept = thinned(int(name) for name in names.values() if name.isdigit())
    return [info for info in infos if names[info.path].isdigit() and int(names[info.path]) not in kept]


def thinned(times_ms: Iterable[int]) -> set[int]:
    """The heartbeats to keep: all of the newest, and of the older ones fewer the older they are."""
    ordered = sorted(times_ms, reverse=True)
    kept = set(ordered[:_ALL_KEPT])
    if not ordered:
        return kept
    newest, spans = ordered[0], set[int]()
    for at_ms in reversed(ordered[_ALL_KEPT:]):  # the oldest of each span stays: it never has to move to another one
        span = (newest - at_ms).bit_length()
        if span not in spans:
            spans.add(span)
            kept.add(at_ms)
    return kept
