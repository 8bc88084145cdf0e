"""Decides about generations of compacted topics: when one begins, how much of it a run reads, and when it is dropped.

A generation must be read from its start to its targets within the topic's `delete.retention.ms`. A reader that takes
longer may see a record and miss the tombstone after it, and the record would come back to life. So a run reads at least
as much as is needed to keep that time, and a generation that has missed it is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from maxbrod.backup.plan.ranges import PartitionBackup, PartitionState
from maxbrod.catalog.generations import Generation, GenerationStage, TopicGenerations
from maxbrod.errors import UsageError
from maxbrod.model import CLOCKS_APART_MS
from maxbrod.work.windows import estimate_bytes

if TYPE_CHECKING:
    from maxbrod.catalog.queries import ArchivedRange

TOMBSTONES_MS: Final = 24 * 3600 * 1000
"""Kafka's default of `delete.retention.ms`, where it could not be read."""
_AGAIN_SHARE: Final = 10
"""After a generation was dropped, the next one begins after a tenth of the interval between generations."""
_SAFETY: Final = 2
"""A generation is read in half of the time that it has."""
DAYS, HOURS = "compacted.log.backup.length.days", "compacted.log.backup.length.hours"
_LENGTHS_S: Final = {DAYS: 86_400.0, HOURS: 3_600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPolicy:
    """The intervals at which generations begin, and the bytes of them that each run reads."""

    every_ms: int
    interval_ms: int | None = None
    """The time between two runs; None for a single run, which reads everything."""
    bytes_max: int = 256 << 20
    """Per run, as long as that keeps the time of tombstones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition of a compacted topic: its log, what the archive holds, and what its generation has read."""

    state: PartitionState
    held: ArchivedRange
    read_to: int
    """Offsets below are in the generation under construction."""

    @property
    def partition(self) -> int:
        return self.state.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """A chosen topic as a run sees it."""

    topic: str
    topic_id: str
    compacted: bool | None
    """None if this user may not read the configuration."""
    tombstones_ms: int
    partitions: tuple[PartitionView, ...]
    complete: bool
    """True if the archive reaches the end of every partition's log."""

    def left(self, generation: Generation) -> list[tuple[PartitionView, int]]:
        """The partitions that are not read up to their targets, with the target."""
        targets = (
            (partition, generation.targets.get(partition.partition, partition.held.first_offset))
            for partition in self.partitions
        )
        return [(view, target) for view, target in targets if view.read_to < target]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationShare:
    """A part of a partition that this run reads for a generation."""

    generation: int
    plan: PartitionBackup


def parse_length(generation_every: float | None, options: Mapping[str, str]) -> float | None:
    """The seconds between generations, from our own option or from one of the original tool's. None: no generations."""
    given = {name: options[name] for name in _LENGTHS_S if name in options}
    if len(given) + (generation_every is not None) > 1:
        names = ", ".join(sorted([*given, *(["--generation-every"] if generation_every is not None else [])]))
        raise UsageError(f"the time between generations is given twice: {names}")
    for name, text in given.items():
        try:
            seconds = float(text) * _LENGTHS_S[name]
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise UsageError(f"{name} cannot be {text!r}", hint="give a number above 0")
        return seconds
    return generation_every


def why_drop(view: TopicView | None, known: TopicGenerations, *, present: bool, now_ms: int) -> str | None:
    """The reason to drop the generation under construction; None if it can. `view` is of a chosen topic."""
    building = known.building
    if building is None:
        return None
    if not present:
        return "the topic was deleted"
    if view is None:
        return None
    if view.compacted is False:
        return "the topic is no longer compacted"
    for partition in view.partitions:
        cut = partition.state.truncated_at
        if cut is not None and cut < building.targets.get(partition.partition, 0):
            return f"the log of partition {partition.partition} was truncated at offset {cut}"
    return why_late(building, view, now_ms=now_ms) if view.left(building) else None


def why_late(building: Generation, view: TopicView, *, now_ms: int) -> str | None:
    """The reason why a generation whose last offset was read now is not trusted."""
    took_ms = now_ms - building.began_at
    if took_ms < -CLOCKS_APART_MS:
        return "the clock was set back since it began, so it is unknown whether tombstones are missing from it"
    if took_ms < view.tombstones_ms:
        return None
    return (
        f"it was not read within the {view.tombstones_ms // 1000} s of delete.retention.ms, so tombstones may be "
        "missing from it"
    )


def first_generation(view: TopicView, *, began_at: int, now_ms: int) -> TopicGenerations | None:
    """The first generation: what the archive holds, once it is complete. None: it is not, or there is nothing."""
    if not view.compacted or not view.complete:
        return None
    generation = Generation(
        number=1, stage=GenerationStage.ACTIVE, began_at=began_at, activated_at=now_ms, log_ends=log_ends(view)
    )
    return TopicGenerations(topic=view.topic, topic_id=view.topic_id, generations=(generation,))


def log_ends(view: TopicView) -> dict[int, int]:
    """The last stable offsets that the run was to reach."""
    return {partition.partition: partition.state.end for partition in view.partitions}


def is_due(known: TopicGenerations, policy: GenerationPolicy, *, now_ms: int) -> bool:
    """True if the next generation should begin. A clock that was set back delays it."""
    active, dropped = known.active, known.dropped
    if active is None or known.building is not None or now_ms - active.began_at < policy.every_ms:
        return False
    if dropped is None or dropped.ended_at is None or dropped.number < active.number:
        return True
    return now_ms - dropped.ended_at >= policy.every_ms // _AGAIN_SHARE


def begin(known: TopicGenerations, view: TopicView, *, now_ms: int) -> TopicGenerations | None:
    """With the next generation, which reads afresh what the archive holds now. None: that is nothing."""
    targets = {partition.partition: partition.held.end_offset for partition in view.partitions}
    if all(partition.held.first_offset >= partition.held.end_offset for partition in view.partitions):
        return None
    new = Generation(number=known.next_number, stage=GenerationStage.BUILDING, began_at=now_ms, targets=targets)
    return known.with_generation(new)


def bytes_left(view: TopicView, generation: Generation) -> int:
    return sum(_bytes(seen, seen.read_to, target) for seen, target in view.left(generation))


def budget(view: TopicView, generation: Generation, policy: GenerationPolicy, *, room: int, now_ms: int) -> int:
    """About how many bytes of this generation a run reads, with `room` left of the run's own limit."""
    left = bytes_left(view, generation)
    if policy.interval_ms is None:
        return left
    time_ms = (generation.began_at + view.tombstones_ms // _SAFETY) - now_ms
    # The last run before the deadline reads all that is left.
    runs = max(time_ms // max(policy.interval_ms, 1), 1)
    return min(left, max(room, -(-left // runs)))


def plan_shares(view: TopicView, generation: Generation, bytes_max: int) -> list[GenerationShare]:
    """The parts to read now, about `bytes_max` of them, partition by partition. At least one offset.

    What the log has nothing of any more costs nothing.
    """
    shares: list[GenerationShare] = []
    for seen, target in view.left(generation):
        size = _bytes(seen, seen.read_to, target)
        if shares and bytes_max <= 0 < size:
            continue
        offsets = target - seen.read_to
        if size > max(bytes_max, 0):
            offsets = max(int(offsets * max(bytes_max, 0) / size), 1)
        plan = _plan(seen, seen.read_to + offsets, target)
        shares.append(GenerationShare(generation=generation.number, plan=plan))
        bytes_max -= _bytes(seen, plan.start, plan.end)
    return shares


def raise_targets(
    generation: Generation, read_to: Mapping[int, int], live_rows: Sequence[tuple[int, int, int]]
) -> Generation:
    """With targets at boundaries of the archive's rows, so that whole rows are retired.

    `live_rows` are partition, base offset and end offset. A target lies within a row if compaction of segments has
    joined rows, or if a batch that was read reaches beyond it.
    """
    targets = {partition: max(target, read_to.get(partition, 0)) for partition, target in generation.targets.items()}
    for partition, base, end in sorted(live_rows):
        if base < targets.get(partition, 0) < end:
            targets[partition] = end
    return replace(generation, targets=targets)


def _plan(view: PartitionView, end: int, target: int) -> PartitionBackup:
    start = min(max(view.read_to, view.state.log_start), target)
    return PartitionBackup(
        # It is read as if nothing of it had been archived yet, apart from its own part.
        state=view.state,
        first=view.read_to,
        start=start,
        end=min(max(end, start), target),
        first_time=view.read_to == view.held.first_offset,
    )


def _bytes(view: PartitionView, first: int, end: int) -> int:
    """The bytes that the log has of these offsets."""
    return estimate_bytes(max(end - max(first, view.state.log_start), 0), view.state.bytes_per_offset)
