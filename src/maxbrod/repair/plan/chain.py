"""The slices that are the archive of one partition, their transactions, and the reasons of its gaps. Pure.

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
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from maxbrod.model import AbortedTransaction, GapReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    """Return those of some slices, disjoint and by offset, that share an offset with this one."""
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


@dataclass(slots=True)
class Linked:
    """Slices with the aborted transactions that reach over several of them, from what each slice alone tells."""

    slices: list[FoundSlice]
    undecided: list[tuple[int, int]] = field(default_factory=list)
    """Producer id and first offset of transactions whose end the archive does not hold."""
    needed: list[FoundSlice] = field(default_factory=list)
    """Slices whose transactions must be scanned before the others can be decided."""


def link(chain: Sequence[FoundSlice]) -> Linked:
    """The slices of a partition in order, with their aborted transactions."""
    if all(each.transactions is None for each in chain):
        return Linked(list(chain))
    aborted: list[set[tuple[int, int, int]]] = [set() for _ in chain]
    opened: dict[int, tuple[int, int]] = {}
    """For each producer the first offset of its transaction, and the number of the slice in which that is."""
    needed = []
    for number, each in enumerate(chain):
        found = each.transactions
        if found is None:
            if opened:
                needed.append(each)
            continue
        aborted[number].update(found.aborted)
        for producer, first, marker, aborts in found.heads:
            began = opened.pop(producer, None)
            start, since = began if began is not None else (first, number)
            if aborts and start is not None:
                for place in range(since, number + 1):
                    aborted[place].add((producer, start, min(marker, chain[place].end - 1)))
        for producer, first in found.tails:
            opened.setdefault(producer, (first, number))
    return Linked(
        [_with(each, sorted(found)) for each, found in zip(chain, aborted, strict=True)],
        undecided=sorted((producer, first) for producer, (first, _) in opened.items()),
        needed=needed,
    )


def _with(each: FoundSlice, aborted: Sequence[tuple[int, int, int]]) -> FoundSlice:
    if each.transactions is None or each.slice.aborted:
        return each
    transactions = tuple(
        AbortedTransaction(producer_id=producer, first_offset=first, last_offset=last)
        for producer, first, last in sorted(aborted, key=lambda one: (one[1], one[0]))
    )
    return replace(each, slice=replace(each.slice, aborted=transactions))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The ends of a partition's log, as one run recorded them."""

    end: int
    log_start: int | None


@dataclass(slots=True, kw_only=True)
class GapEvidence:
    """The reasons why offsets of a partition have no data, as far as snapshots and the old catalog say."""

    stated: list[tuple[int, int, GapReason]] = field(default_factory=list)
    """Gaps that runs recorded, oldest first."""
    lost: list[tuple[int, int, str]] = field(default_factory=list)
    """Offsets whose objects are damaged, and what is wrong."""
    pruned: list[tuple[int, int]] = field(default_factory=list)
    runs: list[RunView] = field(default_factory=list)
    """In the order of runs."""

    def explain(
        self, first: int, end: int, *, written_so: GapReason | None = None
    ) -> Iterator[tuple[int, int, GapReason]]:
        """Parts of [first, end) in order, each with its reason. `written_so`: the writer itself left the hole."""
        edges = {first, end}
        for base, stop, _ in (*self.stated, *self.lost):
            edges.update(edge for edge in (base, stop) if first < edge < end)
        edges.update(edge for each in self.pruned for edge in each if first < edge < end)
        start = self._log_start(end)
        if first < start < end:
            edges.add(start)
        parts = [(base, stop, self._reason(base, stop, start, written_so)) for base, stop in pairwise(sorted(edges))]
        joined: list[tuple[int, int, GapReason]] = []
        for base, stop, reason in parts:
            if joined and joined[-1][2] is reason:
                joined[-1] = (joined[-1][0], stop, reason)
            else:
                joined.append((base, stop, reason))
        yield from joined

    def _reason(self, first: int, end: int, log_start: int, written_so: GapReason | None) -> GapReason:
        if any(base <= first and end <= stop for base, stop in self.pruned):
            return GapReason.PRUNED
        if any(base <= first and end <= stop for base, stop, _ in self.lost):
            return GapReason.CORRUPT
        for base, stop, reason in reversed(self.stated):
            if base <= first and end <= stop:
                return reason
        if written_so is not None:
            return written_so
        return GapReason.RETENTION if end <= log_start else GapReason.UNEXPLAINED

    def _log_start(self, end: int) -> int:
        """Where the log began at the run that first accounted for these offsets; 0 if no run says so."""
        found = next((run.log_start for run in self.runs if run.end >= end), None)
        return found or 0
