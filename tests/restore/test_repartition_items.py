"""The items of repartitioned topics: each target belongs to one task, and groups leave marks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

from maxbrod.restore import items as shared
from maxbrod.restore.items import TASKS_MAX, group_marks, shared_items
from maxbrod.restore.plan.request import RestoreRequest
from support.catalog_rows import TOPIC_ID, segment
from support.restore_plans import group, plan, topic

if TYPE_CHECKING:
    from maxbrod.restore.plan.plan import TopicPlan

GROUPS = [
    group("a", ("orders", 0, 5), ("orders", 1, 7), ("users", 0, 1)),
    group("b", ("orders", 0, 3), ("orders", 0, 5), topic_id=None),
    group("c", ("orders", 0, 4), topic_id="another"),
    group("d", offsets=None),
]


def planned(count: int) -> TopicPlan:
    rows = [segment(0, 10), segment(0, 10, partition=1)]
    (made,) = plan(rows, RestoreRequest(partition_count=count), archived=topic(partitions=2)).topics
    return made


def test_every_target_belongs_to_one_task() -> None:
    for count, tasks in ((1, 4), (5, 2), (50, 100), (3, 0)):
        items = shared_items(planned(count), {}, GROUPS, topic_id="t", batch_bytes_max=9, tasks=tasks)
        assert len(items) == max(1, min(count, tasks, TASKS_MAX))
        assert sorted(each for item in items for each in item.bases) == list(range(count))
        assert {tuple(each.partition for each in item.sources) for item in items} == {(0, 1)}


def test_where_groups_of_this_very_topic_stood_is_marked() -> None:
    assert planned(3).target.topic_id == TOPIC_ID
    assert group_marks(planned(3), GROUPS) == {0: (3, 5), 1: (7,)}


def test_marks_are_never_too_many() -> None:
    many = [group(f"g{number}", ("orders", 0, number)) for number in range(100)]
    with patch.object(shared, "SHARES_MAX", 60):
        assert len(group_marks(planned(3), many)[0]) == 20
