"""Groups in our part of the manifest: `{"group_id": …, "offsets": {"topic-0": next offset}}`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.layouts.backups import known_topic
from maxbrod.layouts.documents import INT32_MAX
from maxbrod.layouts.foreign import ForeignGroup
from maxbrod.layouts.kbs.manifest import OURS
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from maxbrod.layouts.documents import Fields


def parse_groups(manifest: Fields) -> tuple[ForeignGroup, ...]:
    groups = []
    for group in manifest.inner(OURS).objects("groups"):
        offsets = group.inner("offsets")
        held = {_partition(offsets, name): offsets.integer(name) for name in offsets.values}
        groups.append(ForeignGroup(group_id=group.text("group_id"), offsets=held))
    return tuple(groups)


def _partition(offsets: Fields, name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    if not partition.isascii() or not partition.isdigit() or int(partition[:11]) > INT32_MAX:
        raise offsets.wrong(name, "no partition of a topic")
    return TopicPartition(topic=known_topic(topic, offsets.object_name), partition=int(partition))
