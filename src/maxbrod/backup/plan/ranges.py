"""The ranges that a backup reads of each partition, the tasks that read them, and their outcomes. Pure.

The ranges follow from the state of each log and of the archive. Large ranges are split, small ones grouped, and the
work is spread evenly. Tasks come in waves. Each wave is committed before the next begins, which bounds the work that a
crash can undo. The same ranges always give the same tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from maxbrod.backup.plan.starts import AtOffsets, Earliest, Latest, Start, resolve_start
from maxbrod.model import InPartition, PartitionId, TopicPartition
from maxbrod.work.windows import cut_waves, estimate_bytes

if TYPE_CHECKING:
    from maxbrod.batch.erased import ErasedRecords
    from maxbrod.catalog.queries import ArchivedRange
    from maxbrod.layouts.kafka.format import Slice


WAVE_BYTES: Final = 64 << 30
PACK_BYTES_MAX: Final = 8 << 20
_TASK_BYTES_MIN: Final = 64 << 20
_TASK_BYTES_MAX: Final = 1 << 30
"""The most that a task which fails has to read again."""
_TASKS_PER_CORE: Final = 2
"""More than one, so that a core that finishes early has more to do; not many, because every task has a fixed cost."""
_WORTH_A_TASK_BYTES: Final = 4 << 20
"""Reading less takes no longer than starting a second task, and a second task writes a second object."""
_ITEM_COST_BYTES: Final = 64 << 10
"""The fixed cost of requesting a range, as the number of bytes that could be read meanwhile."""
_SPLITS_MAX: Final = 1 << 16
"""The most items of one range: a wrong estimate must not fill the driver's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeItem(InPartition):
    """Offsets [start, end) of one partition to read: the batches whose base offset is among them."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    bytes_per_offset: float | None = None
    packed: bool = False
    """Small: its slice shares an object with others."""
    compacted: bool = False
    """Holes between batches are normal."""
    floor: int | None = None
    """In a partition's first range: the batch that contains `start` belongs to it if it begins here or later."""
    erased: ErasedRecords | None = None
    """Records that were erased from the archive, and are not read into it again."""

    @property
    def bytes_estimate(self) -> int:
        return estimate_bytes(self.end - self.start, self.bytes_per_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The items that one Spark task reads, in this order."""

    items: tuple[RangeItem, ...]

    @property
    def bytes_estimate(self) -> int:
        return sum(item.bytes_estimate for item in self.items)


Wave: TypeAlias = tuple[Task, ...]


def choose_task_bytes(total_bytes: int, parallelism: int) -> int:
    """Several tasks per core if there is much to read; few and large ones otherwise."""
    fair = -(-total_bytes // (_TASKS_PER_CORE * parallelism))
    return min(max(fair, _TASK_BYTES_MIN), _TASK_BYTES_MAX)


def plan_tasks(
    ranges: Sequence[RangeItem],
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
        (item for item in ranges if item.start < item.end),
        key=lambda item: (item.topic, item.topic_id, item.partition, item.start),
    )
    if task_bytes is None:
        total = min(sum(item.bytes_estimate for item in ordered), wave_bytes)
        task_bytes = choose_task_bytes(total, parallelism)
    task_bytes = max(1, min(task_bytes, wave_bytes))
    items = [item for whole in ordered for item in _split(whole, task_bytes, pack_bytes_max)]
    # Items are in order, so the offsets of a partition are too.
    waves = cut_waves(items, bytes_of=lambda item: item.bytes_estimate, bytes_max=wave_bytes)
    return tuple(_spread(wave, parallelism, task_bytes) for wave in waves)


def _split(whole: RangeItem, task_bytes: int, pack_bytes_max: int) -> Iterator[RangeItem]:
    offsets = whole.end - whole.start
    count = max(1, min(-(-whole.bytes_estimate // task_bytes), offsets, _SPLITS_MAX))
    for number in range(count):
        start, end = whole.start + offsets * number // count, whole.start + offsets * (number + 1) // count
        packed = estimate_bytes(end - start, whole.bytes_per_offset) <= pack_bytes_max
        # Spelled out: `replace` takes twice as long, and there may be 100,000 of them.
        yield RangeItem(
            topic=whole.topic,
            topic_id=whole.topic_id,
            partition=whole.partition,
            start=start,
            end=end,
            bytes_per_offset=whole.bytes_per_offset,
            packed=packed,
            compacted=whole.compacted,
            floor=None if number else whole.floor,
        )


def _spread(items: Sequence[RangeItem], parallelism: int, task_bytes: int) -> Wave:
    """Longest first, each to the task with the least work: at most a third worse than the optimum."""
    sizes = [item.bytes_estimate for item in items]
    total = sum(sizes)
    allowed = max(parallelism, -(-total // task_bytes))
    worthwhile = -(-max(total, len(items) * _ITEM_COST_BYTES) // _WORTH_A_TASK_BYTES)
    count = max(1, min(allowed, worthwhile, len(items)))
    loads = [(0, number) for number in range(count)]
    shares: list[list[int]] = [[] for _ in range(count)]
    for place in sorted(range(len(items)), key=lambda place: -sizes[place]):
        load, number = loads[0]
        shares[number].append(place)
        heapq.heapreplace(loads, (load + sizes[place] + _ITEM_COST_BYTES, number))
    # Places are in the order of partition and offset. Spark starts tasks in order: the largest should not start last.
    shares.sort(key=lambda share: -sum(sizes[place] for place in share))
    return tuple(Task(items=tuple(items[place] for place in sorted(share))) for share in shares if share)


class FailureKind(StrEnum):
    """The reason why a range was not read to its end."""

    UNAVAILABLE = "unavailable"
    DELETED = "deleted"
    """Deleted, or deleted and created again: this incarnation no longer exists."""
    TRUNCATED = "truncated"
    DENIED = "denied"
    UNSUPPORTED = "unsupported"
    STOPPED = "stopped"
    """On request. What was read before counts."""
    STORAGE = "storage"
    """The archive could not be written: nothing of the whole task counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The error that ended the reading of a range early."""

    kind: FailureKind
    message: str
    offset: int | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A batch that the broker delivers damaged each time it is fetched."""

    offset: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one item. Offsets [item.start, reached) are read; the slices hold every batch that the log had."""

    item: RangeItem
    slices: tuple[Slice, ...]
    reached: int
    log_start_offset: int
    """The highest start of the log that a broker reported: below it, retention deleted what no slice holds."""
    damages: tuple[Damage, ...] = ()
    failure: Failure | None = None
    erased: int = 0
    """The number of records that were left out because they were erased from the archive."""


def outcomes_by_partition(outcomes: Iterable[Outcome]) -> dict[PartitionId, list[Outcome]]:
    found: dict[PartitionId, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.item.id, []).append(outcome)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState(InPartition):
    """A partition at the moment of planning."""

    topic: str
    topic_id: str
    partition: int
    log_start: int
    end: int
    """The last stable offset: no run reads past it."""
    high_watermark: int
    held: ArchivedRange | None
    """What the archive holds. Its two offsets are equal if an earlier run began at the end of the log and nothing was
    written since: only the snapshot of that run knows."""
    truncated_at: int | None = None
    """The log was cut here, below the end of the archive: see `backup/truncation.py`."""
    bytes_per_offset: float | None
    compacted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBackup:
    """The run accounts for offsets [first, end), and reads those from `start` on.

    Retention deleted the offsets between `first` and `start`: they become a gap when the run is assembled.
    """

    state: PartitionState
    first: int
    start: int
    end: int
    first_time: bool = False
    """The archive holds nothing of the partition yet."""
    note: str | None = None

    @property
    def truncated_at(self) -> int | None:
        """The archive's rows from this offset on are not the log's any more; the run replaces them."""
        return self.state.truncated_at

    @property
    def gap(self) -> tuple[int, int] | None:
        """The offsets that retention deleted before they were read."""
        return (self.first, self.start) if self.first < self.start else None

    @property
    def idle(self) -> bool:
        """There is nothing to read, to explain or to replace."""
        return self.first >= self.end and self.truncated_at is None

    @property
    def bytes_estimate(self) -> int:
        return estimate_bytes(self.end - self.start, self.state.bytes_per_offset)

    @property
    def range(self) -> RangeItem:
        state = self.state
        return RangeItem(
            topic=state.topic,
            topic_id=state.topic_id,
            partition=state.partition,
            start=self.start,
            end=self.end,
            bytes_per_offset=state.bytes_per_offset,
            compacted=state.compacted,
            floor=0 if self.first_time else self.first,
        )


Plans: TypeAlias = Mapping[PartitionId, PartitionBackup]
Held: TypeAlias = "Mapping[PartitionId, ArchivedRange]"
"""What the archive holds of each partition, with what is proved and not committed yet."""


def plan_partitions(
    states: Iterable[PartitionState],
    start: Start,
    *,
    appeared: Container[PartitionId] = (),
    offsets_for_time: Mapping[TopicPartition, int],
) -> dict[PartitionId, PartitionBackup]:
    """A plan for each partition; `appeared` are those that the cluster did not have at the last run.

    `latest` and given offsets are about the partitions that exist at the first run. Nobody meant to skip records of
    later partitions, and a topic that was created again has offsets of its own: those begin at the earliest offset.
    """
    at_first = isinstance(start, Latest | AtOffsets)
    return {
        partition: plan_partition(
            state,
            Earliest() if at_first and partition in appeared else start,
            offset_for_time=offsets_for_time.get(state.where, -1) if offsets_for_time else -1,
        )
        for partition, state in ((state.id, state) for state in states)
    }


def plan_partition(state: PartitionState, start: Start, *, offset_for_time: int = -1) -> PartitionBackup:
    """`start` is for partitions that no run has read yet; `offset_for_time` is the broker's answer if it is a time."""
    held = state.held
    if held is None:
        found = resolve_start(
            start,
            state.where,
            log_start=state.log_start,
            end=state.end,
            high_watermark=state.high_watermark,
            offset_for_time=offset_for_time,
        )
        end = max(state.end, found.offset)
        return PartitionBackup(
            state=state, first=found.offset, start=found.offset, end=end, first_time=True, note=found.note
        )
    first = held.end_offset if state.truncated_at is None else state.truncated_at
    begin = max(first, state.log_start)
    return PartitionBackup(
        state=state,
        first=first,
        start=begin,
        end=max(state.end, begin),
        # A run has read it, but nothing of it is archived: it may still begin within a batch.
        first_time=first <= held.first_offset,
    )


# A backup that follows may leave records in the log until there are enough for larger segments. What waits there is not
# archived yet, so these limits bound how fresh a backup can be.


@dataclass(frozen=True, slots=True, kw_only=True)
class RollLimits:
    """A partition is read when it reaches any of these. With an age of 0, the default, every interval reads all."""

    bytes: int | None = None
    records: int | None = None
    age_ms: int = 0


class RollSchedule:
    """Remembers from run to run since when partitions wait.

    A crash loses this, and the next run then counts from its own start: safety does not depend on it.
    """

    def __init__(self, limits: RollLimits, by_topic: Mapping[str, RollLimits] | None = None) -> None:
        """`by_topic`: limits of topics that have their own."""
        self._limits, self._by_topic = limits, by_topic or {}
        self._since_ms: dict[PartitionId, int] = {}

    @property
    def any(self) -> bool:
        """True if the last run has deferred any partition."""
        return bool(self._since_ms)

    def choose(
        self, plans: Sequence[PartitionBackup], *, now_ms: int
    ) -> tuple[list[PartitionBackup], list[PartitionBackup]]:
        """The plans to carry out now, and those to defer."""
        since_ms = track_waiting(self._since_ms, plans, now_ms=now_ms)
        deferred = {
            plan.state.id: plan
            for plan in plans
            if not plan.idle
            and not due(
                plan,
                waiting_since_ms=since_ms.get(plan.state.id),
                now_ms=now_ms,
                limits=self._by_topic.get(plan.state.topic, self._limits),
            )
        }
        self._since_ms = {partition: since for partition, since in since_ms.items() if partition in deferred}
        return [plan for plan in plans if plan.state.id not in deferred], list(deferred.values())


def due(plan: PartitionBackup, *, waiting_since_ms: int | None, now_ms: int, limits: RollLimits) -> bool:
    """True if this interval reads the partition; `waiting_since_ms` is when `track_waiting` first saw it wait.

    Offsets that retention deleted, and truncations, are recorded at once.
    """
    if plan.idle:
        return False
    if plan.gap is not None or plan.truncated_at is not None:
        return True
    if limits.bytes is not None and plan.bytes_estimate >= limits.bytes:
        return True
    # Offsets count as records: only reading the records would tell the difference.
    if limits.records is not None and plan.end - plan.start >= limits.records:
        return True
    since_ms = now_ms if waiting_since_ms is None else waiting_since_ms
    return now_ms - since_ms >= limits.age_ms


def track_waiting(
    waiting_since_ms: Mapping[PartitionId, int], plans: Iterable[PartitionBackup], *, now_ms: int
) -> dict[PartitionId, int]:
    """Since when each partition has had something to read; partitions without anything are dropped.

    Drop a partition that was read, so that what arrives later counts from the next interval on.
    """
    partitions = (plan.state.id for plan in plans if not plan.idle)
    return {partition: waiting_since_ms.get(partition, now_ms) for partition in partitions}
