"""`consumer-groups-snapshot.json`: the next offset to read, of each group and partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.layouts.backups import known_topic
from maxbrod.layouts.documents import INT32_MAX
from maxbrod.layouts.foreign import ForeignGroup
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from maxbrod.layouts.documents import Fields


def parse_groups(snapshot: Fields) -> tuple[ForeignGroup, ...]:
    return tuple(
        ForeignGroup(group_id=group.text("group_id"), offsets=dict(_offsets(group.inner("offsets"))))
        for group in snapshot.objects("groups")
    )


def _offsets(topics: Fields) -> Iterator[tuple[TopicPartition, int]]:
    for topic in topics.values:
        partitions = topics.inner(topic)
        for partition in partitions.values:
            if not partition.isascii() or not partition.isdigit() or int(partition[:11]) > INT32_MAX:
                raise partitions.wrong(partition, "no partition")
            # A group that has committed nothing is told as -1 by brokers.
            offset = partitions.integer(partition, least=-1)
            if offset >= 0:
                where = TopicPartition(topic=known_topic(topic, topics.object_name), partition=int(partition))
                yield where, offset


def groups_document(groups: Iterable[ForeignGroup], taken_at_ms: int) -> dict[str, Any]:
    return {
        "snapshot_time": taken_at_ms,
        "groups": [{"group_id": group.group_id, "offsets": _by_topic(group)} for group in groups],
    }


def _by_topic(group: ForeignGroup) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for where, offset in sorted(group.offsets.items()):
        topics.setdefault(where.topic, {})[str(where.partition)] = offset
    return topics
