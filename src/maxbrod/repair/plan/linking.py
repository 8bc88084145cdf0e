"""Aborted transactions that reach over several slices of a partition, from what each slice alone tells. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from maxbrod.model import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.repair.plan.found import FoundSlice


@dataclass(slots=True)
class Linked:
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
