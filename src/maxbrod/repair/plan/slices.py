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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import AbortedTransaction, GapReason, PartitionId

if TYPE_CHECKING:
    from maxbrod.catalog.ledger import SliceKey


def place_of(row: object) -> dict[str, Any]:
    """The fields that say whose offsets a row, a slice or a range has."""
    return {name: getattr(row, name) for name in ("topic", "topic_id", "partition")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    topic: str
    topic_id: str
    partition: int

    @property
    def id(self) -> PartitionId:
        return PartitionId(topic_id=self.topic_id, partition=self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTransactions:
    """The transactions of a slice, as its batches alone tell."""

    aborted: tuple[tuple[int, int, int], ...] = ()
    """Those that begin and end in the slice: producer id, first offset, offset of the marker."""
    heads: tuple[tuple[int, int | None, int, bool], ...] = ()
    """The first marker of each producer: producer id, its first records in the slice before it, if there are any,
    the offset of the marker, and whether it aborts. The transaction may have begun before the slice."""
    tails: tuple[tuple[int, int], ...] = ()
    """Transactions without a marker in the slice: producer id and first offset in the slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSlice(Placed):
    """A slice whose stored bytes are sound."""

    slice: Slice
    epochs: tuple[tuple[int, int], ...]
    """The beginnings of leader epochs: offset and epoch."""
    modified_ms: int
    """The time at which the store got the object."""
    run_id: str | None = None
    """The run that wrote it, if the object says so."""
    written_at: int | None = None
    level: int = 0
    reason: str | None = None
    """The reason why it has fewer records than offsets, if a row of the old catalog says so."""
    transactions: SliceTransactions | None = None
    """None: `slice.aborted` is known to be complete."""

    @property
    def key(self) -> SliceKey:
        return self.slice.path, self.slice.position, self.base, self.end

    @property
    def base(self) -> int:
        return self.slice.base_offset

    @property
    def end(self) -> int:
        return self.slice.end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRange(Placed):
    """Offsets whose bytes are damaged or gone. `end` None: up to the next offset that is there."""

    base: int
    end: int | None
    path: str
    message: str
    slice: Slice | None = None
    """The damaged slice, if it is known: its first batches may be sound."""
    missing: bool = False
    """True if there is no object at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedRange(Placed):
    """Offsets that a prune took out of the archive."""

    base: int
    end: int
    at_ms: int | None
    """When. What was written before and overlaps is not the archive any more. None: only older runs saw the offsets,
    and what replaced them stays."""

    def takes(self, found: FoundSlice) -> bool:
        written = found.modified_ms if found.written_at is None else found.written_at
        return self.at_ms is not None and self.base < found.end and found.base < self.end and written <= self.at_ms


def choose(candidates: Sequence[FoundSlice], settled: Sequence[FoundSlice] = ()) -> list[FoundSlice]:
    """Slices that do not overlap, by offset: all that are settled, and of the candidates those that fit best."""
    kept = sorted(settled, key=_place)
    if any(one.end > other.base for one, other in pairwise(kept)):
        # Documents of the ledger are lost.
        candidates, kept = [*candidates, *kept], []
    others = [candidate for candidate in candidates if not overlapping(candidate, kept)]
    ordered = sorted([*kept, *others], key=_place)
    if _is_one_log(ordered):
        return ordered
    fixed = {part.key for part in kept}
    return sorted(
        [*kept, *_best_chain([part for part in newest_history(ordered) if part.key not in fixed])], key=_place
    )


def overlapping(one: FoundSlice, ordered: Sequence[FoundSlice]) -> list[FoundSlice]:
    """Return those of some slices, disjoint and by offset, that share an offset with this one."""
    found = []
    for piece in ordered[bisect_right(ordered, one.base, key=lambda part: part.end) :]:
        if piece.base >= one.end:
            break
        found.append(piece)
    return found


def _place(part: FoundSlice) -> tuple[int, int]:
    return part.base, part.end


def _is_one_log(ordered: Sequence[FoundSlice]) -> bool:
    end, epoch = -1, -1
    for part in ordered:
        if part.base < end or any(0 <= found < epoch for _, found in part.epochs):
            return False
        end, epoch = part.end, max(epoch, part.slice.last_leader_epoch)
    return True


def newest_history(candidates: Sequence[FoundSlice]) -> list[FoundSlice]:
    """Without slices of a history that the log has lost, as leader epochs tell."""
    starts = sorted((offset, epoch) for candidate in candidates for offset, epoch in candidate.epochs)
    offsets = [offset for offset, _ in starts]
    highest: list[int] = []
    for _, epoch in starts:
        highest.append(max(epoch, highest[-1] if highest else epoch))

    def is_newest(part: FoundSlice) -> bool:
        ends = [offset for offset, _ in part.epochs[1:]] + [part.end]
        return all(
            epoch < 0 or highest[bisect_right(offsets, end - 1) - 1] <= epoch
            for (_, epoch), end in zip(part.epochs, ends, strict=True)
        )

    return [candidate for candidate in candidates if is_newest(candidate)]


def _best_chain(candidates: Sequence[FoundSlice]) -> list[FoundSlice]:
    """The cheapest chain: each uncovered offset costs more than any number of slices. O(n log n)."""
    ordered = sorted(candidates, key=lambda part: (part.end, part.base))
    ends: list[int] = []
    best: list[tuple[tuple[int, int, int], int | None]] = []
    """For each end, the least cost of a chain that ends there or before, less the end; and its last slice."""
    before: list[int | None] = []
    for number, part in enumerate(ordered):
        place = bisect_right(ends, part.base) - 1
        (lacking, count, age), last = best[place] if place >= 0 else ((0, 0, 0), None)
        cost = (lacking + part.base - part.end, count + 1, age - part.modified_ms)
        before.append(last)
        known = best[-1][0] if best else (0, 0, 0)
        ends.append(part.end)
        best.append((cost, number) if cost < known else best[-1] if best else ((0, 0, 0), None))
    chain: list[FoundSlice] = []
    last = best[-1][1] if best else None
    while last is not None:
        chain.append(ordered[last])
        last = before[last]
    return chain[::-1]


def link(chain: Sequence[FoundSlice]) -> tuple[list[FoundSlice], list[tuple[int, int]], list[FoundSlice]]:
    """The slices of a partition in order, with the aborted transactions that reach over several of them.

    Also the producer id and first offset of transactions whose end the archive does not hold, and the slices whose
    transactions must be scanned before the others can be decided.
    """
    if all(found.transactions is None for found in chain):
        return list(chain), [], []
    aborted: list[set[tuple[int, int, int]]] = [set() for _ in chain]
    opened: dict[int, tuple[int, int]] = {}
    """For each producer the first offset of its transaction, and the number of the slice in which that is."""
    needed = []
    for number, part in enumerate(chain):
        found = part.transactions
        if found is None:
            if opened:
                needed.append(part)
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
    undecided = sorted((producer, first) for producer, (first, _) in opened.items())
    return [_with_aborted(*pair) for pair in zip(chain, aborted, strict=True)], undecided, needed


def _with_aborted(found: FoundSlice, aborted: set[tuple[int, int, int]]) -> FoundSlice:
    if found.transactions is None or found.slice.aborted:
        return found
    transactions = tuple(
        AbortedTransaction(producer_id=producer, first_offset=first, last_offset=last)
        for producer, first, last in sorted(aborted, key=lambda one: (one[1], one[0], one[2]))
    )
    return replace(found, slice=replace(found.slice, aborted=transactions))


@dataclass(slots=True, kw_only=True)
class GapEvidence:
    """The reasons why offsets of a partition have no data, as far as snapshots and the old catalog say."""

    stated: list[tuple[int, int, GapReason]] = field(default_factory=list)
    """Gaps that runs recorded, oldest first."""
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Offsets whose objects are damaged."""
    pruned: list[tuple[int, int]] = field(default_factory=list)
    ends: list[tuple[int, int | None]] = field(default_factory=list)
    """The end of the log, and its start if it is known, as each run recorded them, in order."""

    def explain(
        self, first: int, end: int, *, written_so: GapReason | None = None
    ) -> Iterator[tuple[int, int, GapReason]]:
        """Parts of [first, end) in order, each with its reason. `written_so`: the writer itself left the hole."""
        # Where the log began at the run that first accounted for these offsets; 0 if no run says so.
        start = next((log_start for log_end, log_start in self.ends if log_end >= end), None) or 0
        ranges = [*((base, stop) for base, stop, _ in self.stated), *self.lost, *self.pruned, (start, start)]
        edges = {first, end, *(edge for found in ranges for edge in found if first < edge < end)}
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
        if any(base <= first and end <= stop for base, stop in self.lost):
            return GapReason.CORRUPT
        for base, stop, reason in reversed(self.stated):
            if base <= first and end <= stop:
                return reason
        if written_so is not None:
            return written_so
        return GapReason.RETENTION if end <= log_start else GapReason.UNEXPLAINED
