"""From ranges of offsets to Spark tasks: large ranges are split, small ones grouped, and the work is spread evenly.

Tasks come in waves. Each wave is committed before the next begins, which bounds the work that a crash can undo. The
same ranges always give the same tasks.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from maxbrod.backup.plan.items import RangeItem, Task
from maxbrod.work.windows import estimate_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Wave: TypeAlias = tuple[Task, ...]

WAVE_BYTES: Final = 64 << 30
PACK_BYTES_MAX: Final = 8 << 20
_TASK_BYTES_MIN: Final = 64 << 20
_TASK_BYTES_MAX: Final = 1 << 30
"""What a task that fails has to read again."""
_TASKS_PER_CORE: Final = 2
"""More than one, so that a core that finishes early has more to do; not many, because every task has a fixed cost."""
_WORTH_A_TASK_BYTES: Final = 4 << 20
"""Reading less takes no longer than starting a second task, and a second task writes a second object."""
_ITEM_COST_BYTES: Final = 64 << 10
"""The fixed cost of requesting a range, as the number of bytes that could be read meanwhile."""
_SPLITS_MAX: Final = 1 << 16
"""The most items of one range: a wrong estimate must not fill the driver's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """Offsets [start, end) of one partition to read."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    bytes_per_offset: float | None = None
    compacted: bool = False
    floor: int | None = None
    """The end of the archive: the log may begin within a batch that begins here or later."""

    @property
    def bytes_estimate(self) -> int:
        return estimate_bytes(self.end - self.start, self.bytes_per_offset)


def choose_task_bytes(total_bytes: int, parallelism: int) -> int:
    """Several tasks per core if there is much to read; few and large ones otherwise."""
    fair = -(-total_bytes // (_TASKS_PER_CORE * parallelism))
    return min(max(fair, _TASK_BYTES_MIN), _TASK_BYTES_MAX)


def plan_tasks(
    ranges: Sequence[PartitionRange],
    *,
    parallelism: int,
    task_bytes: int | None = None,
    wave_bytes: int = WAVE_BYTES,
    pack_bytes_max: int = PACK_BYTES_MAX,
) -> tuple[Wave, ...]:
    """Ranges do not overlap. The items of a partition are in the order of offsets, from wave to wave and within a task.

    A wave has as many tasks as there are cores or as `task_bytes` requires, whichever is more, and fewer if there is
    little to read: the number of tasks bounds the number of objects.
    """
    ordered = sorted(
        (each for each in ranges if each.start < each.end),
        key=lambda each: (each.topic, each.topic_id, each.partition, each.start),
    )
    if task_bytes is None:
        total = min(sum(each.bytes_estimate for each in ordered), wave_bytes)
        task_bytes = choose_task_bytes(total, parallelism)
    task_bytes = max(1, min(task_bytes, wave_bytes))
    items = [item for each in ordered for item in _split(each, task_bytes, pack_bytes_max)]
    return tuple(_spread(wave, parallelism, task_bytes) for wave in _waves(items, wave_bytes))


def _split(whole: PartitionRange, task_bytes: int, pack_bytes_max: int) -> Iterator[RangeItem]:
    offsets, size = whole.end - whole.start, whole.bytes_estimate
    count = max(1, min(-(-size // task_bytes), offsets, _SPLITS_MAX))
    for number in range(count):
        start, end = whole.start + offsets * number // count, whole.start + offsets * (number + 1) // count
        estimate = estimate_bytes(end - start, whole.bytes_per_offset)
        yield RangeItem(
            topic=whole.topic,
            topic_id=whole.topic_id,
            partition=whole.partition,
            start=start,
            end=end,
            bytes_estimate=estimate,
            packed=estimate <= pack_bytes_max,
            compacted=whole.compacted,
            floor=None if number else whole.floor,
        )


def _waves(items: Sequence[RangeItem], wave_bytes: int) -> Iterator[Sequence[RangeItem]]:
    """Begin a new wave when one is full. Items are in order, so the offsets of a partition are too."""
    first, size = 0, 0
    for number, item in enumerate(items):
        if number > first and size + item.bytes_estimate > wave_bytes:
            yield items[first:number]
            first, size = number, 0
        size += item.bytes_estimate
    if first < len(items):
        yield items[first:]


def _spread(items: Sequence[RangeItem], parallelism: int, task_bytes: int) -> Wave:
    """Longest first, each to the task with the least work: at most a third worse than the optimum."""
    count = _task_count(items, parallelism, task_bytes)
    loads = [(0, number) for number in range(count)]
    shares: list[list[int]] = [[] for _ in range(count)]
    longest_first = sorted(range(len(items)), key=lambda place: -items[place].bytes_estimate)
    for place in longest_first:
        load, number = loads[0]
        shares[number].append(place)
        heapq.heapreplace(loads, (load + items[place].bytes_estimate + _ITEM_COST_BYTES, number))
    # Places are in the order of partition and offset. Spark starts tasks in order: the largest should not start last.
    tasks = [Task(items=tuple(items[place] for place in sorted(share))) for share in shares if share]
    return tuple(sorted(tasks, key=lambda task: -task.bytes_estimate))


def _task_count(items: Sequence[RangeItem], parallelism: int, task_bytes: int) -> int:
    total = sum(item.bytes_estimate for item in items)
    allowed = max(parallelism, -(-total // task_bytes))
    worthwhile = -(-max(total, len(items) * _ITEM_COST_BYTES) // _WORTH_A_TASK_BYTES)
    return max(1, min(allowed, worthwhile, len(items)))
