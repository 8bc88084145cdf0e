"""Divides a transfer into waves, each of which is published as a whole, and spreads a wave over tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.model import TopicPartition

Item = TypeVar("Item")

BYTES_PER_OFFSET: Final = 1024.0
"""The estimate where the bytes per offset of a partition are unknown."""


def estimate_bytes(offsets: int, bytes_per_offset: float | None) -> int:
    each = BYTES_PER_OFFSET if bytes_per_offset is None else bytes_per_offset
    return math.ceil(offsets * each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Offsets [start, end) of a partition that remain to be transferred."""

    topic_id: str
    start: int
    end: int
    bytes_per_offset: float | None = None

    @property
    def bytes(self) -> int:
        return estimate_bytes(self.end - self.start, self.bytes_per_offset)


def next_windows(windows: Mapping[TopicPartition, Window], *, bytes_max: int) -> dict[TopicPartition, Window]:
    """The first part of each, about `bytes_max` together. Each advances by at least one offset."""
    total = sum(window.bytes for window in windows.values())
    share = 1.0 if total <= bytes_max else bytes_max / total
    return {
        where: replace(each, end=min(each.end, each.start + max(int((each.end - each.start) * share), 1)))
        for where, each in windows.items()
    }


def spread(items: Sequence[tuple[int, Item]], parallelism: int) -> list[list[Item]]:
    """Spread sized items over as many tasks as can run at once: the largest first, each to the least loaded task."""
    tasks: list[list[Item]] = [[] for _ in range(min(parallelism, len(items)))]
    loads = [0] * len(tasks)
    for size, item in sorted(items, key=lambda each: -each[0]):
        number = loads.index(min(loads))
        tasks[number].append(item)
        loads[number] += size + 1
    return tasks
