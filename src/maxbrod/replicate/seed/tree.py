"""The tree of segments: lists a topic of a region, reads a segment in batches, and recognizes segments in events."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.layouts.foreign import ForeignSegment
from maxbrod.layouts.parquet.events import EventSegment, EventType, SegmentEvent
from maxbrod.layouts.parquet.format import SegmentName, parse_footer, parse_name
from maxbrod.layouts.parquet.reader import open_parquet, read
from maxbrod.layouts.tree import Coverage, Facts, read_facts
from maxbrod.model import TopicPartition
from maxbrod.replicate.seed.machine import Before, Listing, Segment
from maxbrod.replicate.seed.s3_events import ObjectChange, ObjectEvent
from maxbrod.storage.interface import Storage

if TYPE_CHECKING:
    from maxbrod.replicate.seed.control_topics import TreeSource

_LOG: Final = logging.getLogger(__name__)
_MILLISECOND: Final = 1_000_000
_COLUMNS: Final = ("offset", "timestamp_ms", "key", "value", "headers")


class Tree:
    """The objects below `<prefix>/<region>/<topic>/` of a storage."""

    def __init__(self, storage: Storage, prefix: str) -> None:
        self._storage = storage
        self._prefix = prefix.strip("/")

    def listing(self, region: str, topic: str) -> dict[int, Listing]:
        """List the topic once, and return the segments of each partition."""
        folder = self._folder(region, topic)
        # Before the objects: what is published in between is listed, and not known to be empty.
        facts = self._facts()
        coverage = {each.folder: each for each in facts.coverage.values()}
        segments: dict[int, list[Segment]] = {}
        for info in self._storage.list(folder):
            name = parse_name(info.path)
            if name is not None and name.folder == self._folder(region) and name.where.topic == topic:
                found = _segment(name, size=info.size, time_ns=info.modified_ms * _MILLISECOND)
                segments.setdefault(name.where.partition, []).append(found)
        return {
            partition: replace(
                _listing(each, coverage.get(f"{folder}/{partition}")),
                source_end=facts.log_ends.get(TopicPartition(topic=topic, partition=partition)),
            )
            for partition, each in segments.items()
        }

    def batches(
        self, source: TreeSource, segment: Segment, first: int, *, records_max: int
    ) -> Iterator[pa.RecordBatch]:
        """The records of a segment from the offset `first` on, at most `records_max` at a time, in bounded memory.

        ObjectNotFoundError, CorruptDataError, UnsupportedFormatError: the segment is gone, damaged or incomplete.
        """
        info = self._storage.head(segment.path)
        found = ForeignSegment(
            where=TopicPartition(topic=source.topic, partition=source.partition),
            path=segment.path,
            base_offset=first,
            end_offset=segment.end + 1,
            records=None,
            bytes=info.size,
        )
        for batch in read(self._storage, found, _COLUMNS):
            for row in range(0, batch.num_rows, records_max):
                yield batch.slice(row, records_max)

    def before(self, segment: Segment) -> Before | None:
        """Return what a segment records about the offsets before it; None: nothing, or it is damaged."""
        try:
            info = self._storage.head(segment.path)
            footer = parse_footer(open_parquet(self._storage, segment.path, info.size).keys)
        except (ObjectNotFoundError, CorruptDataError, UnsupportedFormatError):
            return None  # whoever reads it finds out
        return None if footer.follows is None else Before(read_from=footer.follows, deleted_from=footer.deleted)

    def event_of(self, event: ObjectEvent) -> SegmentEvent | None:
        """The event as segment events have it; None if the object is no segment of this tree."""
        name = parse_name(event.key)
        if name is None or name.region is None or name.folder != self._folder(name.region):
            return None
        segment = EventSegment(
            region=name.region,
            topic=name.where.topic,
            partition=name.where.partition,
            level=name.level,
            start=name.start,
            end=name.end,
        )
        created = event.change is ObjectChange.CREATED
        kind = EventType.CREATED if created else EventType.REMOVED
        return SegmentEvent(type=kind, time_ns=event.time_ns, segment=segment, size=event.size if created else 0)

    def segment_of(self, event: SegmentEvent) -> Segment:
        found = event.segment
        where = TopicPartition(topic=found.topic, partition=found.partition)
        folder = self._folder(found.region)
        name = SegmentName(folder=folder, where=where, level=found.level, start=found.start, end=found.end)
        return _segment(name, size=event.size, time_ns=event.time_ns)

    def _folder(self, *parts: str) -> str:
        return "/".join((self._prefix, *parts) if self._prefix else parts)

    def _facts(self) -> Facts:
        """Return what the tree's writer recorded. The original records nothing."""
        try:
            return read_facts(self._storage)
        except (CorruptDataError, UnsupportedFormatError) as error:
            _LOG.warning("%s: holes between segments are waited for", error)
            return Facts()


def _segment(name: SegmentName, *, size: int, time_ns: int) -> Segment:
    return Segment(start=name.start, end=name.end, level=name.level, path=name.path, size=size, time_ns=time_ns)


def _listing(segments: list[Segment], coverage: Coverage | None) -> Listing:
    found = tuple(sorted(segments))
    if coverage is None or not coverage.held:
        return Listing(segments=found)
    first = coverage.held[0][0]
    # Before the first segment `empty` also has what was pruned: those offsets had records.
    empty = tuple(each for each in coverage.empty if each[0] >= first)
    return Listing(segments=found, empty=empty, first_offset=first)
