"""Deletes old segments, and updates the partition index."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from maxbrod.batch.columns import number_column
from maxbrod.layouts.binlog.reading import read
from maxbrod.layouts.binlog.schema import INDEX, RECORDS, arrange, encode_partition_index, index_path, segment_path
from maxbrod.model import TimestampType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.foreign import ForeignSegment, Survey
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage


def prune(storage: Storage, survey: Survey, older_than_ms: int, *, delete: bool = True) -> list[ForeignSegment]:
    """Deletes the oldest segments of each partition in which every record is older than that, and returns them.

    The age of a record is that of its timestamp; without one, that of the object. The last segment of a partition is
    kept, so that a backup knows where to continue. Without `delete` nothing is changed. The index is replaced before
    anything is deleted: after a crash it names no deleted segment, and the next run deletes what this one has left.
    """
    modified = {info.path: info.modified_ms for info in storage.list()}
    pruned: list[ForeignSegment] = []
    for where, group in groupby(survey.segments, key=lambda segment: segment.where):
        segments = list(group)
        old = 0
        while old < len(segments) - 1 and _newest_ms(storage, segments[old], modified) < older_than_ms:
            old += 1
        pruned += segments[:old]
        if not delete:
            continue
        if old:
            kept = [int(segment.details["start_offset"]) for segment in segments[old:]]
            storage.replace(index_path(where), encode_partition_index(where.partition, kept))
        _delete_below(storage, where, segments[old:])
    return pruned


def _newest_ms(storage: Storage, segment: ForeignSegment, modified: dict[str, int]) -> int:
    newest: int | None = None
    for batch in read(storage, segment, ["timestamp_ms", "timestamp_type"]):
        timestamp = number_column(batch.column("timestamp_ms"))
        without = (number_column(batch.column("timestamp_type")) == TimestampType.NONE) | (timestamp == -1)
        if without.any():
            newest = max(newest or 0, modified.get(segment.path, 0))
        if not without.all():
            highest = int(timestamp[~without].max())
            newest = highest if newest is None else max(newest, highest)
    return modified.get(segment.path, 0) if newest is None else newest


def _delete_below(storage: Storage, where: TopicPartition, kept: Sequence[ForeignSegment]) -> None:
    """Deletes every segment below the first one that is kept, those that an earlier run has left included."""
    if not kept:
        return
    first = int(kept[0].details["start_offset"])
    objects = arrange(storage.list(where.topic)).get(where)
    gone = [start for start in objects.segments if start < first] if objects else []
    storage.delete([segment_path(where, start, kind) for start in gone for kind in (RECORDS, INDEX)])
