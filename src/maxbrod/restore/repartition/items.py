"""The items of repartitioned topics, which get another number of partitions: how many tasks, and what each must know.

Kept apart from the work itself, which loads numba: the driver only says what is to be done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.restore.repartition.extents import SHARES_MAX, SourceExtent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.kafka.state.cluster_state import Group
    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.model import PartitionId
    from maxbrod.restore.plan.plan import TopicPlan

TASKS_MAX: Final = 8
"""Tasks for one topic. Each reads the whole topic and writes its part, so more tasks would only read more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSource:
    """Offsets [first_offset, end_offset) of one source partition, and its slices in order."""

    partition: int
    first_offset: int
    end_offset: int
    slices: tuple[Slice, ...]
    marks: tuple[int, ...] = ()
    """Offsets at which groups stood, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedItem:
    """Some partitions of one target topic, and all sources of its records."""

    topic: str
    topic_id: str
    """The id of the target topic."""
    partition_count: int
    bases: dict[int, int]
    """The target partitions of this task, each with the target offset of its first record."""
    batch_bytes_max: int
    sources: tuple[SharedSource, ...]
    extents: tuple[SourceExtent, ...]


def shared_items(
    topic: TopicPlan,
    slices: Mapping[PartitionId, Sequence[Slice]],
    groups: Iterable[Group],
    *,
    topic_id: str,
    batch_bytes_max: int,
    tasks: int,
) -> list[SharedItem]:
    """One item for each of up to `tasks` tasks. `groups` are all archived groups, whether they are moved or not."""
    target, marks = topic.target, group_marks(topic, groups)
    sources = tuple(
        SharedSource(
            partition=partition.source.partition,
            first_offset=partition.source.first_offset,
            end_offset=partition.source.asked_end,
            slices=tuple(slices.get(partition.source.id, ())),
            marks=marks.get(partition.source.partition, ()),
        )
        for partition in topic.partitions
    )
    tasks = max(1, min(tasks, TASKS_MAX, target.partition_count))
    return [
        SharedItem(
            topic=target.name,
            topic_id=topic_id,
            partition_count=target.partition_count,
            bases={each: target.bases[each] for each in range(number, target.partition_count, tasks)},
            batch_bytes_max=batch_bytes_max,
            sources=sources,
            extents=topic.blocks,
        )
        for number in range(tasks)
    ]


def group_marks(topic: TopicPlan, groups: Iterable[Group]) -> dict[int, tuple[int, ...]]:
    """The offsets at which groups stood in each source partition. Shares end there, so that positions are exact.

    If there are too many, some are left out: a group that stood there may see more records twice, and skips none.
    """
    found: dict[int, set[int]] = {}
    for group in groups:
        for offset in group.offsets or ():
            if offset.topic == topic.target.source_topic and offset.topic_id in {None, topic.target.topic_id}:
                found.setdefault(offset.partition, set()).add(offset.offset)
    total = sum(map(len, found.values())) * topic.target.partition_count
    step = -(-total // SHARES_MAX) or 1
    return {partition: tuple(sorted(offsets)[::step]) for partition, offsets in found.items()}
