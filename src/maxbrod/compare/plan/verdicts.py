"""What follows from the digests of parts: which partitions are equal, and where to look for the first differences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maxbrod.batch.digest import Digest, join
from maxbrod.compare.plan.pairs import Match
from maxbrod.compare.plan.parts import Side

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.compare.plan.pairs import Extent, Pair
    from maxbrod.compare.plan.parts import ComparePart

    Digests = Mapping[tuple[int, Side, int], Digest]
    """By pair, side and number of the part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Of one pair."""

    source: Digest
    target: Digest
    equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Offsets of both sides that do not hold the same. `skipped`: records before them, which do."""

    pair: int
    source: Extent
    target: Extent
    skipped: int = 0


def judge(number: int, pair: Pair, parts: Sequence[ComparePart], digests: Digests) -> Verdict:
    """`parts` of all pairs will do. A part that was not read, because it has no offset, has no records."""
    source, target = (join(_of(number, side, parts, digests)) for side in Side)
    if pair.match is Match.SET:
        # A single partition proves nothing here: see `judge_set`.
        return Verdict(source=source, target=target, equal=True)
    equal = (source.records, source.sequence) == (target.records, target.sequence)
    return Verdict(source=source, target=target, equal=equal)


def tell_log_starts(pair: Pair) -> tuple[str, ...]:
    """Words for logs that were to begin at the same offset and do not; none for others."""
    if pair.log_starts is None or pair.log_starts[0] == pair.log_starts[1]:
        return ()
    source, target = pair.log_starts
    return (f"the log starts at offset {source} in the source, and at {target} in the target",)


def judge_set(verdicts: Sequence[Verdict]) -> Verdict:
    """Of all partitions of a topic together, in any order."""
    source, target = join(each.source for each in verdicts), join(each.target for each in verdicts)
    equal = (source.records, source.total) == (target.records, target.total)
    return Verdict(source=source, target=target, equal=equal)


def find_suspects(number: int, pair: Pair, parts: Sequence[ComparePart], digests: Digests, limit: int) -> list[Suspect]:
    """Where the first differences of a pair that is not equal are to be found; each has one at least."""
    source, target = pair.source, pair.target
    if source is None or target is None or pair.match is Match.SET:
        return []
    if pair.match is Match.APPEND:
        return [_after_equal_beginning(number, source, target, parts, digests)]
    found = []
    sides = {
        side: {part.number: part.extent for part in parts if (part.pair, part.side) == (number, side)} for side in Side
    }
    for each in sorted(sides[Side.SOURCE].keys() | sides[Side.TARGET].keys()):
        mine, its = (digests.get((number, side, each), Digest()) for side in Side)
        if (mine.records, mine.sequence) != (its.records, its.sequence):
            nothing_there = replace(source, end=source.first), replace(target, end=target.first)
            first = sides[Side.SOURCE].get(each, nothing_there[0])
            second = sides[Side.TARGET].get(each, nothing_there[1])
            found.append(Suspect(pair=number, source=first, target=second))
    return found[: max(limit, 1)]


def _of(pair: int, side: Side, parts: Sequence[ComparePart], digests: Digests) -> Iterator[Digest]:
    numbers = sorted(part.number for part in parts if (part.pair, part.side) == (pair, side))
    return (digests[pair, side, number] for number in numbers)


def _after_equal_beginning(
    number: int, source: Extent, target: Extent, parts: Sequence[ComparePart], digests: Digests
) -> Suspect:
    """Sides are cut at different records, so that an equal beginning is known only where two cuts happen to agree."""
    starts = [_starts(number, side, parts, digests) for side in Side]
    common = [count for count in starts[0].keys() & starts[1].keys() if starts[0][count][0] == starts[1][count][0]]
    skipped = max(common, default=0)
    (_, first), (_, second) = (each.get(skipped, (Digest(), None)) for each in starts)
    return Suspect(
        pair=number,
        source=replace(source, first=source.first if first is None else first),
        target=replace(target, first=target.first if second is None else second),
        skipped=skipped,
    )


def _starts(pair: int, side: Side, parts: Sequence[ComparePart], digests: Digests) -> dict[int, tuple[Digest, int]]:
    """By how many records stand before it: the digest of those, and the offset at which a part begins."""
    found, before = {}, Digest()
    for part in sorted(
        (each for each in parts if (each.pair, each.side) == (pair, side)), key=lambda each: each.number
    ):
        found[before.records] = (before, part.extent.first)
        before = before.then(digests[pair, side, part.number])
    return found
