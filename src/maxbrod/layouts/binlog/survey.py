"""The contents of a binlog archive, by its names and indexes.

One request per segment reads the first and the last entry of its index. Only an index that looks torn is read whole,
and only if it is useless are the records walked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.binlog.format import (
    ENTRY_BYTES,
    INDEX,
    MAGIC,
    RECORD_BYTES_MIN,
    RECORDS,
    PartitionObjects,
    SegmentFiles,
    arrange,
    decode_groups,
    decode_partition_index,
    index_path,
    is_ours,
    segment_path,
)
from maxbrod.layouts.foreign import Fault, ForeignGroup, ForeignSegment, ForeignTopic, Survey
from maxbrod.storage.interface import ByteRange, Storage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.model import TopicPartition

_REQUESTS: Final = 16
"""Requests at a time: an archive has many small indexes, and a cloud answers each after some ten milliseconds."""
_NAMES_LOOKED_AT: Final = 100
"""Every object of such an archive has a distinctive name, except a few that may not belong to it."""


def detect(storage: Storage) -> bool:
    return any(is_ours(info.path) for info in islice(storage.list(), _NAMES_LOOKED_AT))


def survey(storage: Storage) -> Survey:
    tree = arrange(storage.list())
    backed_up = [where for where, objects in tree.items() if objects.backed_up]
    faults: list[Fault] = []
    segments: list[ForeignSegment] = []
    positions: dict[TopicPartition, int] = {}
    with ThreadPoolExecutor(_REQUESTS) as pool:
        indexes = list(pool.map(lambda where: _listed(storage, where, tree[where]), backed_up))
        starts = [(where, start) for where, (listed, _) in zip(backed_up, indexes, strict=True) for start in listed]
        results = pool.map(lambda each: _look(storage, each[0], tree[each[0]], each[1]), starts)
        for where, (listed, about) in zip(backed_up, indexes, strict=True):
            faults += about
            found = _in_order(islice(results, len(listed)), faults)
            faults += _unlisted(where, tree[where], listed, found)
            segments += found
            positions[where] = found[-1].end_offset if found else 0
        groups = _groups(pool.map(lambda item: _group_offsets(storage, *item), tree.items()), faults)
    return Survey(
        layout="binlog",
        segments=tuple(segments),
        topics={where.topic: ForeignTopic(name=where.topic) for where in tree},
        groups=groups,
        positions=positions,
        faults=tuple(faults),
    )


def _in_order(looks: Iterable[tuple[ForeignSegment | None, list[Fault]]], faults: list[Fault]) -> list[ForeignSegment]:
    segments: list[ForeignSegment] = []
    for segment, about in looks:
        faults += about
        if segment is None:
            continue
        if segments and segment.records and segment.base_offset < segments[-1].end_offset:
            message = f"begins below offset {segments[-1].end_offset}, where the segment before it ends"
            faults.append(Fault(path=segment.path, message=message, offset=segment.base_offset))
            continue
        segments.append(segment)
    return segments


def _listed(storage: Storage, where: TopicPartition, objects: PartitionObjects) -> tuple[list[int], list[Fault]]:
    if objects.index is None:
        message = "is missing, so the segments of the partition are unknown; repair rebuilds it"
        return [], [Fault(path=index_path(where), message=message)]
    index = decode_partition_index(bytes(storage.get(objects.index.path)), where.partition)
    problem = (
        []
        if index.problem is None
        else [Fault(path=objects.index.path, message=f"{index.problem}; repair rebuilds it")]
    )
    return list(index.start_offsets), problem


def files_of(where: TopicPartition, objects: PartitionObjects, start_offset: int) -> SegmentFiles | None:
    """The files of a segment as the storage lists them; None if the records are missing."""
    found = objects.segments.get(start_offset)
    if found is None or found.records is None:
        return None
    return SegmentFiles(
        records=found.records.path,
        records_bytes=found.records.size,
        index=segment_path(where, start_offset, INDEX) if found.index else None,
        index_bytes=found.index.size if found.index else 0,
    )


def _look(
    storage: Storage, where: TopicPartition, objects: PartitionObjects, start_offset: int
) -> tuple[ForeignSegment | None, list[Fault]]:
    files = files_of(where, objects, start_offset)
    if files is None:
        path = segment_path(where, start_offset, RECORDS)
        return None, [Fault(path=path, message="is listed and missing", offset=start_offset)]
    try:
        base_offset, end_offset, records, faults = _bounds(storage, files, start_offset)
    except UnsupportedFormatError as error:
        return None, [Fault(path=files.records, message=error.message, offset=start_offset)]
    segment = ForeignSegment(
        where=where,
        path=files.records,
        base_offset=base_offset,
        end_offset=end_offset,
        records=records,
        bytes=files.records_bytes,
        details={
            "start_offset": start_offset,
            "index_bytes": files.index_bytes if files.index is not None else None,
        },
    )
    return segment, faults


def _bounds(storage: Storage, files: SegmentFiles, start_offset: int) -> tuple[int, int, int, list[Fault]]:
    """First offset, end offset, number of records, and the faults of the segment."""
    count, rest = divmod(max(files.index_bytes - len(MAGIC), 0), ENTRY_BYTES)
    if files.index is not None and files.index_bytes == len(MAGIC) and files.records_bytes <= len(MAGIC):
        return start_offset, start_offset, 0, []
    if files.index is not None and count and not rest:
        ranges = [ByteRange(start=0, size=1 + 3 * 8), ByteRange(start=files.index_bytes - ENTRY_BYTES, size=24)]
        head, tail = storage.get_ranges(files.index, ranges)
        first, last = np.frombuffer(head[1:], ">i8").tolist(), np.frombuffer(tail, ">i8").tolist()
        end = last[1] + last[2]
        if _plausible(first, last, count, files.records_bytes) and bytes(head[:1]) == MAGIC:
            return first[0], last[0] + 1, count, _tail(files, end)
    return _full_bounds(storage, files, start_offset)


def _plausible(first: list[int], last: list[int], count: int, records_bytes: int) -> bool:
    sizes = first[2] >= RECORD_BYTES_MIN and last[2] >= RECORD_BYTES_MIN
    return (
        sizes
        and first[0] >= 0
        and first[1] >= len(MAGIC)
        and last[1] + last[2] <= records_bytes
        and last[0] - first[0] >= count - 1
    )


def _tail(files: SegmentFiles, end: int) -> list[Fault]:
    rest = files.records_bytes - end
    if not rest:
        return []
    message = f"{rest} bytes after the last indexed record, which a crash has left, are skipped"
    return [Fault(path=files.records, message=message, fatal=False)]


def _full_bounds(storage: Storage, files: SegmentFiles, start_offset: int) -> tuple[int, int, int, list[Fault]]:
    from maxbrod.layouts.binlog.reader import entries  # noqa: PLC0415 - loads numba, which a survey must not

    base_offset, end_offset, records, end = start_offset, start_offset, 0, len(MAGIC)
    message = "the segment index is missing or incomplete, and the records are read instead; repair rebuilds it"
    faults = [Fault(path=files.index or files.records, message=message, fatal=False)]
    try:
        for found in entries(storage, files):
            base_offset = base_offset if records else int(found.offset[0])
            end_offset, end = int(found.offset[-1]) + 1, int(found.stop[-1])
            records += len(found.offset)
    except CorruptDataError as error:
        faults.append(Fault(path=files.records, message=error.message, offset=error.offset))
        return base_offset, end_offset, records, faults
    sound = files.index is not None and files.index_bytes == len(MAGIC)  # it is empty, and correct
    return base_offset, end_offset, records, ([] if sound else faults) + _tail(files, end)


def _unlisted(
    where: TopicPartition, objects: PartitionObjects, listed: list[int], segments: list[ForeignSegment]
) -> list[Fault]:
    """Faults for segments that the partition index does not name: never published, or lost by the index."""
    if objects.index is None:
        return []
    faults = []
    ends = {int(segment.details["start_offset"]): segment.end_offset for segment in segments}
    for start_offset in sorted(set(objects.segments) - set(listed)):
        before = bisect_left(listed, start_offset) - 1
        between = 0 <= before < len(listed) - 1 and ends.get(listed[before], 0) <= start_offset
        message = "is not in the partition index, and is skipped; repair adds it"
        path = segment_path(where, start_offset, RECORDS)
        faults.append(Fault(path=path, message=message, offset=start_offset, fatal=between))
    return faults


def _group_offsets(
    storage: Storage, where: TopicPartition, objects: PartitionObjects
) -> tuple[TopicPartition, dict[str, int], list[Fault]]:
    if objects.groups is None:
        return where, {}, []
    try:
        return where, decode_groups(bytes(storage.get(objects.groups.path))), []
    except CorruptDataError as error:
        return where, {}, [Fault(path=objects.groups.path, message=error.message)]


def _groups(
    found: Iterable[tuple[TopicPartition, dict[str, int], list[Fault]]], faults: list[Fault]
) -> tuple[ForeignGroup, ...]:
    groups: defaultdict[str, dict[TopicPartition, int]] = defaultdict(dict)
    for where, offsets, about in found:
        faults += about
        for group, offset in offsets.items():
            groups[group][where] = offset
    return tuple(ForeignGroup(group_id=group, offsets=offsets) for group, offsets in sorted(groups.items()))
