"""The work of topics that get another number of partitions: into how many tasks, with what each has to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.restore.items import SharedItem, SharedSource
from maxbrod.restore.repartition.blocks import SHARES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.kafka.state.cluster_state import Group
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.model import PartitionId
    from maxbrod.restore.plan.plan import TopicPlan

TASKS_MAX: Final = 8
"""Of one topic. Each reads all of it and writes its part, so that more would only read more."""


def shared_items(
    topic: TopicPlan,
    slices: Mapping[PartitionId, Sequence[Slice]],
    groups: Iterable[Group],
    *,
    topic_id: str,
    batch_bytes_max: int,
    tasks: int,
) -> list[SharedItem]:
    """One for each of so many tasks, or fewer. `groups` are all that were archived, whoever is moved in the end."""
    target, marks = topic.target, group_marks(topic, groups)
    sources = tuple(
        SharedSource(
            partition=each.source.partition,
            first_offset=each.source.first_offset,
            end_offset=each.source.asked_end,
            slices=tuple(slices.get(each.source.id, ())),
            marks=marks.get(each.source.partition, ()),
        )
        for each in topic.partitions
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
            blocks=topic.blocks,
        )
        for number in range(tasks)
    ]


def group_marks(topic: TopicPlan, groups: Iterable[Group]) -> dict[int, tuple[int, ...]]:
    """Where groups stood in each source partition: there shares end, so that positions are exact.

    Where that would be too many some are left out: a group that stood there may see more twice, and skips nothing.
    """
    found: dict[int, set[int]] = {}
    for group in groups:
        for each in group.offsets or ():
            if each.topic == topic.target.source_topic and each.topic_id in {None, topic.target.topic_id}:
                found.setdefault(each.partition, set()).add(each.offset)
    total = sum(map(len, found.values())) * topic.target.partition_count
    step = -(-total // SHARES_MAX) or 1
    return {partition: tuple(sorted(offsets)[::step]) for partition, offsets in found.items()}
