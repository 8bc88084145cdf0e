"""Which segment answers for an offset where several hold it. Pure.

Compaction leaves the segments that it merged until they are deleted, and two writers may have overlapped. A higher
level comes first: it holds what those below it held, and those may be deleted at any time. Within a level it is the
earlier start, and of two that start together the longer, as the tool decides when it reads or compacts.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.layouts.parquet.names import SegmentName


class SegmentRange(NamedTuple):
    """The offsets [base, end) that a segment answers for."""

    name: SegmentName
    base: int
    end: int


def shares(names: Iterable[SegmentName]) -> list[SegmentRange]:
    """The segments of one partition without overlaps, in order of offsets. Those that others cover are left out."""
    taken = _Taken()
    for name in sorted(names, key=lambda each: (-each.level, each.start, -each.end)):
        taken.add(name)
    return taken.shares


class _Taken:
    def __init__(self) -> None:
        self.shares: list[SegmentRange] = []
        self._bases: list[int] = []

    def add(self, name: SegmentName) -> None:
        """Give the segment what is free of its range."""
        base, end = name.start, name.end + 1
        at = bisect_right(self._bases, base)
        if at and self.shares[at - 1].end > base:
            base = self.shares[at - 1].end
        while base < end:
            free = min(end, self._bases[at]) if at < len(self._bases) else end
            if base < free:
                self.shares.insert(at, SegmentRange(name, base, free))
                self._bases.insert(at, base)
                at += 1
            if at >= len(self.shares):
                break
            base = max(base, self.shares[at].end)
            at += 1
