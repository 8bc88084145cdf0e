"""Chooses the slices that are the archive of one partition, out of all that objects hold of it. Pure.

Objects may overlap: a killed run left some that no commit named, a compaction of segments has replaced others, or the
log was truncated and grew again. Two rules decide.

1. *Leader epochs.* Along one log, epochs only rise. A slice that has an older epoch where another has a younger one at
   the same or a lower offset is of a history that the log has lost. Batches without an epoch (-1) say nothing.
2. *Coverage.* Of what remains, the chain that covers most offsets; of such chains, the one of fewest slices, and of
   those the one that was written last.

What rows of the ledger name is *settled*: nothing else takes its place.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.repair.plan.found import FoundSlice


def choose(candidates: Sequence[FoundSlice], settled: Sequence[FoundSlice] = ()) -> list[FoundSlice]:
    """Slices that do not overlap, by offset: all that are settled, and of the candidates those that fit best."""
    kept = sorted(settled, key=_place)
    if not _is_disjoint(kept):
        # Documents of the ledger are lost.
        candidates, kept = [*candidates, *kept], []
    others = [candidate for candidate in candidates if not overlapping(candidate, kept)]
    ordered = sorted([*kept, *others], key=_place)
    if _is_one_log(ordered):
        return ordered
    fixed = {each.key for each in kept}
    return sorted(
        [*kept, *_best_chain([each for each in newest_history(ordered) if each.key not in fixed])], key=_place
    )


def overlapping(one: FoundSlice, ordered: Sequence[FoundSlice]) -> list[FoundSlice]:
    """Those of some slices, disjoint and by offset, that share an offset with this one."""
    found = []
    for each in ordered[bisect_right(ordered, one.base, key=lambda each: each.end) :]:
        if each.base >= one.end:
            break
        found.append(each)
    return found


def _place(each: FoundSlice) -> tuple[int, int]:
    return each.base, each.end


def _is_disjoint(ordered: Sequence[FoundSlice]) -> bool:
    return all(one.end <= other.base for one, other in pairwise(ordered))


def _is_one_log(ordered: Sequence[FoundSlice]) -> bool:
    end, epoch = -1, -1
    for each in ordered:
        if each.base < end or any(0 <= found < epoch for _, found in each.epochs):
            return False
        end, epoch = each.end, max(epoch, each.slice.last_leader_epoch)
    return True


def newest_history(candidates: Sequence[FoundSlice]) -> list[FoundSlice]:
    """Without slices of a history that the log has lost, as leader epochs tell."""
    starts = sorted((offset, epoch) for candidate in candidates for offset, epoch in candidate.epochs)
    offsets = [offset for offset, _ in starts]
    highest: list[int] = []
    for _, epoch in starts:
        highest.append(max(epoch, highest[-1] if highest else epoch))

    def is_newest(each: FoundSlice) -> bool:
        ends = [offset for offset, _ in each.epochs[1:]] + [each.end]
        return all(
            epoch < 0 or highest[bisect_right(offsets, end - 1) - 1] <= epoch
            for (_, epoch), end in zip(each.epochs, ends, strict=True)
        )

    return [candidate for candidate in candidates if is_newest(candidate)]


def _best_chain(candidates: Sequence[FoundSlice]) -> list[FoundSlice]:
    """The cheapest chain: each uncovered offset costs more than any number of slices. O(n log n)."""
    ordered = sorted(candidates, key=lambda each: (each.end, each.base))
    ends: list[int] = []
    best: list[tuple[tuple[int, int, int], int | None]] = []
    """For each end, the least cost of a chain that ends there or before, less the end; and its last slice."""
    before: list[int | None] = []
    for number, each in enumerate(ordered):
        place = bisect_right(ends, each.base) - 1
        (lacking, count, age), last = best[place] if place >= 0 else ((0, 0, 0), None)
        cost = (lacking + each.base - each.end, count + 1, age - each.modified_ms)
        before.append(last)
        known = best[-1][0] if best else (0, 0, 0)
        ends.append(each.end)
        best.append((cost, number) if cost < known else best[-1] if best else ((0, 0, 0), None))
    chain: list[FoundSlice] = []
    last = best[-1][1] if best else None
    while last is not None:
        chain.append(ordered[last])
        last = before[last]
    return chain[::-1]
