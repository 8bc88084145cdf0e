"""Divides a transfer into waves, each of which is published as a whole, and spreads a wave over tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from maxbrod.model import TopicPartition

Item = TypeVar("Item")

BYTES_PER_OFFSET: Final = 1024.0
"""The estimate where the bytes per offset of a partition are unknown."""


def estimate_bytes(offsets: int, bytes_per_offset: float | None) -> int:
    size = BYTES_PER_OFFSET if bytes_per_offset is None else bytes_per_offset
    return math.ceil(offsets * size)


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
        where: replace(part, end=min(part.end, part.start + max(int((part.end - part.start) * share), 1)))
        for where, part in windows.items()
    }


def spread(items: Sequence[tuple[int, Item]], parallelism: int) -> list[list[Item]]:
    """Spread sized items over as many tasks as can run at once: the largest first, each to the least loaded task."""
    tasks: list[list[Item]] = [[] for _ in range(min(parallelism, len(items)))]
    loads = [0] * len(tasks)
    for size, item in sorted(items, key=lambda pair: -pair[0]):
        number = loads.index(min(loads))
        tasks[number].append(item)
        loads[number] += size + 1
    return tasks


def rate_of_one(rate_bytes_per_s: int | None, tasks: int) -> float | None:
    """Return the limit of one of so many tasks that run at once, in bytes a second; None: there is none."""
    return None if rate_bytes_per_s is None else rate_bytes_per_s / max(tasks, 1)


def cut_waves(
    items: Iterable[Item],
    *,
    bytes_of: Callable[[Item], int],
    bytes_max: int,
    rows_of: Callable[[Item], int] = lambda _: 1,
    rows_max: int | None = None,
) -> Iterator[list[Item]]:
    """Cut items, in their order, into waves of at most so many bytes and rows. A larger item is a wave of its own."""
    wave: list[Item] = []
    size = rows = 0
    for item in items:
        item_bytes = bytes_of(item)
        full = size + item_bytes > bytes_max or (rows_max is not None and rows + rows_of(item) > rows_max)
        if wave and full:
            yield wave
            wave, size, rows = [], 0, 0
        wave.append(item)
        size += item_bytes
        rows += rows_of(item)
    if wave:
        yield wave
