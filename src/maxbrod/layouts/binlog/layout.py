"""itadventurer's kafka-backup, plain binary records and their indexes: how an archive of it is published and pruned.

Publishing writes the partition index, then the groups' committed offsets. The first segment of a partition, of offset
0, exists and is listed as soon as the partition is known.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from maxbrod.errors import ObjectExistsError, UsageError
from maxbrod.layouts.binlog.format import (
    INDEX,
    MAGIC,
    RECORDS,
    PartitionObjects,
    arrange,
    encode_groups,
    encode_partition_index,
    groups_path,
    index_path,
    segment_path,
)
from maxbrod.layouts.binlog.survey import detect
from maxbrod.layouts.binlog.survey import survey as survey_archive
from maxbrod.layouts.coverage import by_partition
from maxbrod.layouts.foreign import (
    ClusterFacts,
    Fault,
    ForeignGroup,
    ForeignSegment,
    Layout,
    Loss,
    RecordAccess,
    Survey,
    WriteOptions,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

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
        # The commit point of a partition: readers see segments that its index lists, and no others.
        storage.replace(index_path(where), encode_partition_index(where.partition, sorted(starts[where])))
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
        storage.replace(groups_path(where), encode_groups(offsets[where]))


def prune(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    """Delete these segments. The index is replaced before: after a crash it names no deleted segment."""
    for where, segments in by_partition(survey.segments).items():
        starts = [int(segment.details["start_offset"]) for segment in segments if segment.path not in going]
        if len(starts) < len(segments):
            storage.replace(index_path(where), encode_partition_index(where.partition, starts))
        if starts:
            # Every segment below the first one that is kept, those that an earlier run has left included.
            objects = arrange(storage.list(where.topic)).get(where, PartitionObjects())
            gone = [start for start in objects.segments if start < starts[0]]
            storage.delete([segment_path(where, start, kind) for start in gone for kind in (RECORDS, INDEX)])


def put_new(storage: Storage, path: str, data: bytes) -> None:
    """Put an object that means nothing yet, unless it exists: another writer may already have put more."""
    try:
        storage.put(path, data)
    except ObjectExistsError:
        return


def empty_segment(storage: Storage, where: TopicPartition) -> ForeignSegment:
    """Return the first segment of a partition that has no records."""
    for kind in (RECORDS, INDEX):
        put_new(storage, segment_path(where, 0, kind), MAGIC)
    return ForeignSegment(
        where=where,
        path=segment_path(where, 0, RECORDS),
        base_offset=0,
        end_offset=0,
        records=0,
        bytes=len(MAGIC),
        details={"start_offset": 0, "index_bytes": len(MAGIC)},
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


def _records() -> RecordAccess:
    from maxbrod.layouts.binlog import reader, writer  # noqa: PLC0415 - loads numba, which takes a second

    return RecordAccess(read=reader.read, write=writer.write, check=reader.check)


def _repair(storage: Storage) -> list[Fault]:
    from maxbrod.layouts.binlog.repair import repair  # noqa: PLC0415 - loads numba, too

    return repair(storage)


LAYOUT: Final = Layout(
    name="binlog",
    detect=detect,
    look=survey_archive,
    publish=publish,
    prune=prune,
    records=_records,
    repair=_repair,
    losses=(
        Loss(what="leader epochs, producer ids and epochs, sequence numbers", real=False),
        Loss(what="which records a transaction wrote, and its markers", real=False),
        Loss(what="the topics' configuration, their number of partitions and of replicas", real=False),
    ),
)
