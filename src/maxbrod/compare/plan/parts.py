"""Pairs cut into parts that tasks read, and parts put together into tasks.

Where records are compared by offset, both sides are cut at the same records, so that parts can be compared one by one
and only those that differ are looked into. Where only the order counts, each side is cut as it likes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from maxbrod.compare.plan.pairs import Match

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maxbrod.compare.plan.pairs import Extent, Pair

PART_BYTES: Final = 128 << 20
PART_OFFSETS: Final = 500_000
"""Of a live topic, whose bytes nobody counts."""
_RECORD_BYTES: Final = 256
_PART_COST_BYTES: Final = 1 << 20
"""To open a connection or an object, and to ask."""
_TASK_BYTES: Final = 512 << 20
_TASKS_PER_CORE: Final = 3


class Side(StrEnum):
    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePart:
    """Offsets [extent.first, extent.end) of one side of a pair. Parts of the same number are of the same records."""

    pair: int
    side: Side
    number: int
    extent: Extent
    split: bool
    """There are others of this pair and side."""
    cost_bytes: int


def cut_parts(pairs: Sequence[Pair]) -> list[ComparePart]:
    """All that has to be read; parts without an offset are left out."""
    return [
        part for number, pair in enumerate(pairs) for part in _cut(number, pair) if part.extent.first < part.extent.end
    ]


def spread(parts: Sequence[ComparePart], parallelism: int) -> list[list[ComparePart]]:
    """Into tasks of about the same cost, a few for each core, the largest parts first."""
    cost = sum(part.cost_bytes for part in parts)
    count = min(len(parts), max(_TASKS_PER_CORE * parallelism, cost // _TASK_BYTES))
    tasks: list[list[ComparePart]] = [[] for _ in range(count)]
    loads = [0] * count
    for part in sorted(parts, key=lambda each: -each.cost_bytes):
        lightest = loads.index(min(loads))
        tasks[lightest].append(part)
        loads[lightest] += part.cost_bytes
    return tasks


def split_evenly(first: int, end: int) -> tuple[int, ...]:
    """Offsets to cut a live topic at."""
    return tuple(range(first + PART_OFFSETS, end - PART_OFFSETS // 2, PART_OFFSETS))


def _cut(number: int, pair: Pair) -> Iterator[ComparePart]:
    source, target = pair.source, pair.target
    if source is not None:
        yield from _parts(number, Side.SOURCE, source, _bounds(source, pair.splits), pair.bytes)
    if target is None:
        return
    if source is None or pair.match in {Match.APPEND, Match.SET}:
        yield from _parts(number, Side.TARGET, target, _bounds(target, split_evenly(target.first, target.end)), 0)
        return
    cuts = [_translated(pair, offset) for offset in _bounds(source, pair.splits)[1:-1]]
    yield from _parts(number, Side.TARGET, target, [target.first, *cuts, target.end], pair.bytes)


def _translated(pair: Pair, offset: int) -> int:
    return offset if pair.offset_map is None else pair.offset_map.translate(offset).offset


def _bounds(extent: Extent, splits: Sequence[int]) -> list[int]:
    return [extent.first, *(each for each in splits if extent.first < each < extent.end), extent.end]


def _parts(pair: int, side: Side, extent: Extent, bounds: Sequence[int], size: int) -> Iterator[ComparePart]:
    for number, (first, end) in enumerate(pairwise(bounds)):
        part = extent.clipped(first, end)
        share = size // (len(bounds) - 1) if size else (part.end - part.first) * _RECORD_BYTES
        yield ComparePart(
            pair=pair,
            side=side,
            number=number,
            extent=part,
            split=len(bounds) > 2,
            cost_bytes=share + _PART_COST_BYTES,
        )
