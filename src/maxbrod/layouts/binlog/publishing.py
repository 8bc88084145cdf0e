"""What makes written segments part of the archive: the partition index, then the groups' committed offsets."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from maxbrod.layouts.binlog.beginnings import empty_segment
from maxbrod.layouts.binlog.names import groups_path, index_path
from maxbrod.layouts.binlog.options import check_options
from maxbrod.layouts.binlog.schema import encode_groups, encode_partition_index

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maxbrod.layouts.foreign import ClusterFacts, ForeignGroup, ForeignSegment, Survey, WriteOptions
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage


def publish(
    storage: Storage, survey: Survey, written: Sequence[ForeignSegment], options: WriteOptions, facts: ClusterFacts
) -> None:
    check_options(options)
    starts: defaultdict[TopicPartition, set[int]] = defaultdict(set)
    for segment in survey.segments:
        starts[segment.where].add(int(segment.details["start_offset"]))
    held = {*survey.positions, *(segment.where for segment in written)}
    added = [*written, *(empty_segment(storage, where) for where in facts.empty if where not in held)]
    for where in dict.fromkeys(segment.where for segment in added):
        starts[where] |= {int(segment.details["start_offset"]) for segment in added if segment.where == where}
        storage.replace(index_path(where), encode_partition_index(where.partition, sorted(starts[where])))
    topics = {where.topic for where in (*survey.positions, *starts)}
    _publish_groups(storage, survey, facts.groups, topics)


def _publish_groups(storage: Storage, survey: Survey, groups: Iterable[ForeignGroup], topics: set[str]) -> None:
    """Of every partition of the archive's topics, backed up or not, as the tool does it.

    Without any group the files stay as they are: the source may simply not tell.
    """
    offsets: defaultdict[TopicPartition, dict[str, int]] = defaultdict(dict)
    for group in groups:
        for where, offset in group.offsets.items():
            if where.topic in topics:
                offsets[where][group.group_id] = offset
    if not offsets:
        return
    before = {where for group in survey.groups for where in group.offsets}
    for where in sorted(before | set(offsets)):
        storage.replace(groups_path(where), encode_groups(offsets[where]))
