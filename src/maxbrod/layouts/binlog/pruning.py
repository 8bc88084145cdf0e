"""Deletes old segments, and updates the partition index."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from maxbrod.layouts.binlog.schema import INDEX, RECORDS, arrange, encode_partition_index, index_path, segment_path

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from maxbrod.layouts.foreign import ForeignSegment, Survey
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage


def prune(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    """Deletes these segments. The index is replaced before: after a crash it names no deleted segment."""
    for where, group in groupby(survey.segments, key=lambda segment: segment.where):
        segments = list(group)
        kept = [segment for segment in segments if segment.path not in going]
        if len(kept) < len(segments):
            starts = [int(segment.details["start_offset"]) for segment in kept]
            storage.replace(index_path(where), encode_partition_index(where.partition, starts))
        _delete_below(storage, where, kept)


def _delete_below(storage: Storage, where: TopicPartition, kept: Sequence[ForeignSegment]) -> None:
    """Deletes every segment below the first one that is kept, those that an earlier run has left included."""
    if not kept:
        return
    first = int(kept[0].details["start_offset"])
    objects = arrange(storage.list(where.topic)).get(where)
    gone = [start for start in objects.segments if start < first] if objects else []
    storage.delete([segment_path(where, start, kind) for start in gone for kind in (RECORDS, INDEX)])
