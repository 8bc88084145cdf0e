"""itadventurer's kafka-backup: plain binary records and their indexes. Its survey, and how it is published and pruned.

One request per segment reads the first and the last entry of its index. Only an index that looks torn is read whole,
and only if it is useless are the records walked. Publishing writes the partition index, then the groups' committed
offsets. The first segment of a partition, of offset 0, exists and is listed as soon as the partition is known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

import numpy as np

from maxbrod.errors import CorruptDataError, ObjectExistsError, UnsupportedFormatError, UsageError
from maxbrod.layouts.binlog import format as binlog
from maxbrod.layouts.foreign import (
    ClusterFacts,
    Fault,
    ForeignGroup,
    ForeignSegment,
    ForeignTopic,
    Layout,
    Loss,
    Survey,
    WriteOptions,
    by_partition,
)
from maxbrod.model import TopicPartition
from maxbrod.storage.interface import ByteRange, Storage

_REQUESTS: Final = 16
"""Requests at a time: an archive has many small indexes, and a cloud answers each after some ten milliseconds."""
_NAMES_LOOKED_AT: Final = 100
"""Every object of such an archive has a distinctive name, except a few that may not belong to it."""


def detect(storage: Storage) -> bool:
    return any(binlog.is_ours(info.path) for info in islice(storage.list(), _NAMES_LOOKED_AT))


def survey(storage: Storage) -> Survey:
    tree = binlog.arrange(storage.list())
    backed_up = [where for where, objects in tree.items() if objects.backed_up]
    faults: list[Fault] = []
    segments: list[ForeignSegment] = []
    positions: dict[TopicPartition, int] = {}
    groups: defaultdict[str, dict[TopicPartition, int]] = defaultdict(dict)
    with ThreadPoolExecutor(_REQUESTS) as pool:
        indexes = list(pool.map(lambda where: _listed(storage, where, tree[where]), backed_up))
        starts = [(where, start) for where, (listed, _) in zip(backed_up, indexes, strict=True) for start in listed]
        results = pool.map(lambda place: _look(storage, place[0], tree[place[0]], place[1]), starts)
        for where, (listed, problems) in zip(backed_up, indexes, strict=True):
            faults += problems
            found = _in_order(islice(results, len(listed)), faults)
            faults += _unlisted(where, tree[where], listed, found)
            segments += found
            positions[where] = found[-1].end_offset if found else 0
        committed = pool.map(lambda objects: _group_offsets(storage, objects), tree.values())
        for where, (offsets, problems) in zip(tree, committed, strict=True):
            faults += problems
            for group_id, offset in offsets.items():
                groups[group_id][where] = offset
    return Survey(
        layout="binlog",
        segments=tuple(segments),
        topics={where.topic: ForeignTopic(name=where.topic) for where in tree},
        groups=tuple(ForeignGroup(group_id=name, offsets=offsets) for name, offsets in sorted(groups.items())),
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


def _listed(storage: Storage, where: TopicPartition, objects: binlog.PartitionObjects) -> tuple[list[int], list[Fault]]:
    path = binlog.index_path(where)
    if "index" not in objects.files:
        message = "is missing, so the segments of the partition are unknown; repair rebuilds it"
        return [], [Fault(path=path, message=message)]
    start_offsets, problem = binlog.decode_partition_index(bytes(storage.get(path)), where.partition)
    return start_offsets, [Fault(path=path, message=f"{problem}; repair rebuilds it")] if problem else []


def files_of(objects: binlog.PartitionObjects, start_offset: int) -> binlog.SegmentFiles | None:
    """Return the files of a segment as the storage lists them; None if the records are missing."""
    found = objects.segments.get(start_offset, {})
    if binlog.RECORDS not in found:
        return None
    index = found.get(binlog.INDEX)
    return binlog.SegmentFiles(
        records=found[binlog.RECORDS].path,
        records_bytes=found[binlog.RECORDS].size,
        index=index.path if index else None,
        index_bytes=index.size if index else 0,
    )


def _look(
    storage: Storage, where: TopicPartition, objects: binlog.PartitionObjects, start_offset: int
) -> tuple[ForeignSegment | None, list[Fault]]:
    files = files_of(objects, start_offset)
    if files is None:
        path = binlog.segment_path(where, start_offset, binlog.RECORDS)
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
        details={"start_offset": start_offset, "index_bytes": None if files.index is None else files.index_bytes},
    )
    return segment, faults


def _bounds(storage: Storage, files: binlog.SegmentFiles, start_offset: int) -> tuple[int, int, int, list[Fault]]:
    """First offset, end offset, number of records, and the faults of the segment."""
    count, rest = divmod(max(files.index_bytes - len(binlog.MAGIC), 0), binlog.ENTRY_BYTES)
    if files.index is not None and files.index_bytes == len(binlog.MAGIC) and files.records_bytes <= len(binlog.MAGIC):
        return start_offset, start_offset, 0, []
    if files.index is not None and count and not rest:
        ranges = [ByteRange(start=0, size=1 + 3 * 8), ByteRange(start=files.index_bytes - binlog.ENTRY_BYTES, size=24)]
        head, tail = storage.get_ranges(files.index, ranges)
        first, last = np.frombuffer(head[1:], ">i8").tolist(), np.frombuffer(tail, ">i8").tolist()
        end = last[1] + last[2]
        if _plausible(first, last, count, files.records_bytes) and bytes(head[:1]) == binlog.MAGIC:
            return first[0], last[0] + 1, count, _tail(files, end)
    return _full_bounds(storage, files, start_offset)


def _plausible(first: list[int], last: list[int], count: int, records_bytes: int) -> bool:
    return (
        min(first[2], last[2]) >= binlog.RECORD_BYTES_MIN
        and first[0] >= 0
        and first[1] >= len(binlog.MAGIC)
        and last[1] + last[2] <= records_bytes
        and last[0] - first[0] >= count - 1
    )


def _tail(files: binlog.SegmentFiles, end: int) -> list[Fault]:
    rest = files.records_bytes - end
    if not rest:
        return []
    message = f"{rest} bytes after the last indexed record, which a crash has left, are skipped"
    return [Fault(path=files.records, message=message, fatal=False)]


def _full_bounds(storage: Storage, files: binlog.SegmentFiles, start_offset: int) -> tuple[int, int, int, list[Fault]]:
    from maxbrod.layouts.binlog.reader import entries  # noqa: PLC0415 - loads numba, which a survey must not

    base_offset, end_offset, records, end = start_offset, start_offset, 0, len(binlog.MAGIC)
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
    sound = files.index is not None and files.index_bytes == len(binlog.MAGIC)  # it is empty, and correct
    return base_offset, end_offset, records, ([] if sound else faults) + _tail(files, end)


def _unlisted(
    where: TopicPartition, objects: binlog.PartitionObjects, listed: list[int], segments: list[ForeignSegment]
) -> list[Fault]:
    """Faults for segments that the partition index does not name: never published, or lost by the index."""
    if "index" not in objects.files:
        return []
    faults = []
    ends = {int(segment.details["start_offset"]): segment.end_offset for segment in segments}
    for start_offset in sorted(set(objects.segments) - set(listed)):
        before = bisect_left(listed, start_offset) - 1
        between = 0 <= before < len(listed) - 1 and ends.get(listed[before], 0) <= start_offset
        message = "is not in the partition index, and is skipped; repair adds it"
        path = binlog.segment_path(where, start_offset, binlog.RECORDS)
        faults.append(Fault(path=path, message=message, offset=start_offset, fatal=between))
    return faults


def _group_offsets(storage: Storage, objects: binlog.PartitionObjects) -> tuple[dict[str, int], list[Fault]]:
    info = objects.files.get("consumer_offsets")
    try:
        return {} if info is None else binlog.decode_groups(bytes(storage.get(info.path))), []
    except CorruptDataError as error:
        return {}, [Fault(path=info.path if info else "", message=error.message)]


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
        # The commit point of a partition: readers see segments that its index lists, and no others.
        storage.replace(binlog.index_path(where), binlog.encode_partition_index(where.partition, sorted(starts[where])))
    topics = {where.topic for where in (*survey.positions, *starts)}
    _publish_groups(storage, survey, facts.groups, topics)


def _publish_groups(storage: Storage, survey: Survey, groups: Iterable[ForeignGroup], topics: set[str]) -> None:
    """Write the offsets of every partition of the archive's topics, backed up or not, as the tool does.

    Without any group the files are kept: the source may not know its groups.
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
        storage.replace(binlog.groups_path(where), binlog.encode_groups(offsets[where]))


def prune(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    """Delete these segments. The index is replaced before: after a crash it names no deleted segment."""
    for where, segments in by_partition(survey.segments).items():
        starts = [int(segment.details["start_offset"]) for segment in segments if segment.path not in going]
        if len(starts) < len(segments):
            storage.replace(binlog.index_path(where), binlog.encode_partition_index(where.partition, starts))
        if starts:
            # Every segment below the first one that is kept, those that an earlier run has left included.
            objects = binlog.arrange(storage.list(where.topic)).get(where, binlog.PartitionObjects())
            gone = [start for start in objects.segments if start < starts[0]]
            storage.delete(
                [binlog.segment_path(where, start, kind) for start in gone for kind in (binlog.RECORDS, binlog.INDEX)]
            )


def put_new(storage: Storage, path: str, data: bytes) -> None:
    """Put an object that means nothing yet, unless it exists: another writer may already have put more."""
    try:
        storage.put(path, data)
    except ObjectExistsError:
        return


def empty_segment(storage: Storage, where: TopicPartition) -> ForeignSegment:
    """Return the first segment of a partition that has no records."""
    for kind in (binlog.RECORDS, binlog.INDEX):
        put_new(storage, binlog.segment_path(where, 0, kind), binlog.MAGIC)
    return ForeignSegment(
        where=where,
        path=binlog.segment_path(where, 0, binlog.RECORDS),
        base_offset=0,
        end_offset=0,
        records=0,
        bytes=len(binlog.MAGIC),
        details={"start_offset": 0, "index_bytes": len(binlog.MAGIC)},
    )


def check_options(options: WriteOptions) -> None:
    if options.codec not in {None, "none"}:
        raise UsageError(f"the layout binlog has no codec {options.codec!r}", hint="leave the codec out")
    if options.extra:
        raise UsageError(f"the layout binlog has no option {', '.join(sorted(options.extra))}")
    for name in ("segment_bytes_max", "segment_records_max"):
        limit = getattr(options, name)
        if limit is not None and limit < (0 if name == "segment_bytes_max" else 1):
            raise UsageError(f"{name} cannot be {limit}")


def _repair(storage: Storage) -> list[Fault]:
    from maxbrod.layouts.binlog.reader import repair  # noqa: PLC0415 - loads numba, too

    return repair(storage)


LAYOUT: Final = Layout(
    name="binlog",
    detect=detect,
    look=survey,
    publish=publish,
    prune=prune,
    repair=_repair,
    losses=(
        Loss(what="leader epochs, producer ids and epochs, sequence numbers", real=False),
        Loss(what="which records a transaction wrote, and its markers", real=False),
        Loss(what="the topics' configuration, their number of partitions and of replicas", real=False),
    ),
)
