"""Decides which segment to read for an offset that several segments hold. Pure.

Compaction leaves the merged segments until they are deleted, and two writers may have overlapped. A higher level wins:
it holds what the levels below held, and those may be deleted at any time. Within a level the earlier start wins, and of
two with the same start the longer, as when the tool reads or compacts.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.layouts.parquet.names import SegmentName


class SegmentRange(NamedTuple):
    """The offsets [base, end) to read from a segment."""

    name: SegmentName
    base: int
    end: int


def without_overlaps(names: Iterable[SegmentName]) -> list[SegmentRange]:
    """The ranges to read of one partition's segments, in order of offsets. Segments that others cover are left out."""
    taken = _Taken()
    for name in sorted(names, key=lambda each: (-each.level, each.start, -each.end)):
        taken.add(name)
    return taken.ranges


class _Taken:
    def __init__(self) -> None:
        self.ranges: list[SegmentRange] = []
        self._bases: list[int] = []

    def add(self, name: SegmentName) -> None:
        """Assign the free part of its range to the segment."""
        base, end = name.start, name.end + 1
        at = bisect_right(self._bases, base)
        if at and self.ranges[at - 1].end > base:
            base = self.ranges[at - 1].end
        while base < end:
            free = min(end, self._bases[at]) if at < len(self._bases) else end
            if base < free:
                self.ranges.insert(at, SegmentRange(name, base, free))
                self._bases.insert(at, base)
                at += 1
            if at >= len(self.ranges):
                break
            base = max(base, self.ranges[at].end)
            at += 1
