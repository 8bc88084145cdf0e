"""Merges many small segments of a partition into one of the next level. Works within one region.

The rules are the tool's: it merges segments of a range of levels that are old enough to have been copied elsewhere, in
order of offsets, from the end of the levels above, within a minimum and a maximum of count and size. The merged segment
is complete before anything is deleted, and only segments that it or higher levels cover are deleted.

The tool takes the end of the highest level for how far it has merged, and deletes unread whatever lies before that. So
beside it nothing is merged behind a segment that is missing, too young or damaged: that segment would be lost when it
comes, or is old enough. What an earlier merge has stepped over is merged at once. Holes are never closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from maxbrod.errors import (
    CorruptDataError,
    MaxbrodError,
    ObjectExistsError,
    ObjectNotFoundError,
    UnsupportedFormatError,
    naming,
)
from maxbrod.layouts.foreign import CompactionLimits, ForeignSegment, WriteOptions
from maxbrod.layouts.parquet.format import FILE_SCHEMA, Footer, SegmentName, as_written, parse_name
from maxbrod.layouts.parquet.reader import parquet_errors, stored_records
from maxbrod.layouts.parquet.survey import SegmentRange, open_found, without_overlaps
from maxbrod.layouts.parquet.writer import compression_of, parquet_writer, segment_of
from maxbrod.layouts.tree import surveyed_facts
from maxbrod.storage.interface import ObjectInfo, Storage, Writer

if TYPE_CHECKING:
    from collections.abc import Buffer

FEW: Final = "too few or too small together"
MISSING: Final = "behind missing offsets"
WAITING: Final = "behind segments that are too young or of a lower level"
DAMAGED: Final = "behind a damaged segment"
_GROUP_BYTES: Final = 64 << 20
"""The size of a row group before compression, which is held in memory."""


def partition_folders(segments: Iterable[ForeignSegment]) -> list[str]:
    """The folders of the partitions that these segments belong to."""
    return sorted({segment.path.rsplit("/", 2)[0] for segment in segments})


def compact_folder(
    storage: Storage,
    folder: str,
    limits: CompactionLimits,
    *,
    now_ms: int,
    options: WriteOptions | None = None,
    on_damage: Callable[[Sequence[SegmentRange], MaxbrodError], None] | None = None,
) -> list[ForeignSegment]:
    """Merge the segments of one partition; returns the new segments.

    May be repeated at any time, also after a crash. Two simultaneous compactions do the work twice, without harm.
    With `on_damage`, a run that cannot be read is reported and stays as it is.
    """
    compression = compression_of(options or WriteOptions())
    objects = _objects(storage, folder)
    merged = []
    for run in plan_runs(objects, limits, _explainer(storage, objects), now_ms=now_ms).runs:
        try:
            merged.append(_merge(storage, run, objects, compression))
        except (CorruptDataError, ObjectNotFoundError, UnsupportedFormatError) as error:
            if on_damage is None:
                raise
            on_damage(run, error)
            if not limits.step_over:
                break
    if limits.delete:
        storage.delete(_superfluous(storage, _objects(storage, folder), limits, now_ms=now_ms))
    return merged


def plan_folder(
    storage: Storage, folder: str, limits: CompactionLimits, *, now_ms: int
) -> tuple[list[tuple[list[SegmentRange], int]], Mapping[str, int]]:
    """The runs that `compact_folder` would merge now, each with its stored bytes, and the segments that stay."""
    objects = _objects(storage, folder)
    plan = plan_runs(objects, limits, _explainer(storage, objects), now_ms=now_ms)
    return [(run, _bytes(run, objects)) for run in plan.runs], plan.left


class Plan(NamedTuple):
    runs: list[list[SegmentRange]]
    """The ranges of segments to merge, one run per new segment."""
    left: Counter[str]
    """The number of segments that are old enough and stay as they are, by reason."""


def plan_runs(
    objects: dict[SegmentName, ObjectInfo],
    limits: CompactionLimits,
    explains: Callable[[SegmentName, int], bool],
    *,
    now_ms: int,
) -> Plan:
    """Plan the merges of a partition. `explains` says of a segment whether none is missing between it and an offset."""
    above = [name for name in objects if name.level > limits.level_max]
    considered = above + [name for name, info in objects.items() if _is_candidate(name, info, limits, now_ms)]
    # What lies before this offset counts as merged for the tool, whether it is or not.
    reached = max((name.end + 1 for name in above), default=min((name.start for name in objects), default=0))
    runs: list[list[SegmentRange]] = [[]]
    left: Counter[str] = Counter()
    at, obstacle = reached, None
    for part in without_overlaps(considered):
        if part.name.level > limits.level_max:
            continue
        if part.base >= reached and not limits.step_over:
            if obstacle is None and part.base != at and not explains(part.name, at):
                between = (name.start < part.base and name.end >= at for name in objects)
                obstacle = WAITING if any(between) else MISSING
            at = part.end
            if obstacle is not None:
                left[obstacle] += 1
                continue
        run = runs[-1]
        full = len(run) >= limits.segments_max or _bytes(run, objects) >= limits.bytes_max
        if run and (full or run[-1].end != part.base):
            runs.append([])
        runs[-1].append(part)
    chosen: list[list[SegmentRange]] = []
    stopped = False
    for found in runs:
        run = _ending_with_a_record(found)
        enough = len(run) >= limits.segments_min and _bytes(run, objects) >= limits.bytes_min
        if run and not limits.step_over and run[-1].end <= reached:
            chosen.append(run)
        elif enough and not stopped:
            chosen.append(run)
            stopped = not limits.step_over and len(run) < len(found)
        else:
            left[FEW] += len(found)
            stopped = not limits.step_over
    return Plan(chosen, +left)


def _explainer(storage: Storage, objects: dict[SegmentName, ObjectInfo]) -> Callable[[SegmentName, int], bool]:
    facts = cache(lambda: surveyed_facts(storage, []))

    def explains(name: SegmentName, at: int) -> bool:
        """True if the writer says, in its footer or its list, that no segment comes between `at` and this one."""
        try:
            follows = open_found(storage, name, objects[name]).footer.follows
        except (CorruptDataError, ObjectNotFoundError, UnsupportedFormatError):
            return False
        if follows is not None and follows <= at:
            return True
        known = facts().coverage.get(name.where)
        return known is not None and any(
            base <= at and name.start <= end for base, end in (*known.empty, *known.deleted)
        )

    return explains


def _ending_with_a_record(run: list[SegmentRange]) -> list[SegmentRange]:
    """The tool reads a segment up to the end offset in its name, so there must be a record with that offset."""
    while run and run[-1].end != run[-1].name.end + 1:
        run = run[:-1]
    return run


def _is_candidate(name: SegmentName, info: ObjectInfo, limits: CompactionLimits, now_ms: int) -> bool:
    return limits.level_min <= name.level <= limits.level_max and info.modified_ms <= now_ms - limits.age_ms_min


def _superfluous(
    storage: Storage, objects: dict[SegmentName, ObjectInfo], limits: CompactionLimits, *, now_ms: int
) -> list[str]:
    """Segments whose offsets a higher level covers, in readable objects. Left by this run or an interrupted one."""
    above = {name: info for name, info in objects.items() if name.level > limits.level_max}
    covered = without_overlaps(name for name, info in above.items() if _opens(storage, name, info))
    return [
        name.path
        for name, info in objects.items()
        if _is_candidate(name, info, limits, now_ms) and _covers(covered, name)
    ]


def _opens(storage: Storage, name: SegmentName, info: ObjectInfo) -> bool:
    try:
        return open_found(storage, name, info).rows > 0
    except (CorruptDataError, UnsupportedFormatError):
        return False


def _covers(covered: Sequence[SegmentRange], name: SegmentName) -> bool:
    at = name.start
    for part in covered:
        if part.base <= at < part.end:
            at = part.end
    return at > name.end


def _merge(
    storage: Storage, run: Sequence[SegmentRange], objects: dict[SegmentName, ObjectInfo], compression: dict[str, Any]
) -> ForeignSegment:
    first, last = run[0].name, run[-1].name
    level = max(part.name.level for part in run) + 1
    name = SegmentName(folder=first.folder, where=first.where, level=level, start=run[0].base, end=last.end)
    footer = open_found(storage, first, objects[first]).footer
    region, whole = footer.region, run[0].base == first.start
    follows, deleted = (footer.follows, footer.deleted) if whole else (None, None)
    try:
        with naming(storage.name_of(name.path)), storage.create(name.path) as sink:
            records = 0
            with parquet_writer(_Sink(sink), compression) as writer:
                for table in _tables(storage, run, objects):
                    records += table.num_rows
                    writer.write_table(table, row_group_size=table.num_rows)
                footer = Footer(name=name, region=region, records=records, follows=follows, deleted=deleted)
                writer.add_key_value_metadata(footer.keys())
        return segment_of(footer, sink.size, (None, None))
    except ObjectExistsError:
        # An earlier run created it, but was interrupted before it deleted the merged segments.
        return open_found(storage, name, storage.head(name.path)).segment


def _tables(
    storage: Storage, run: Sequence[SegmentRange], objects: dict[SegmentName, ObjectInfo]
) -> Iterator[pa.Table]:
    """The records of a run, one table per row group."""
    held: list[pa.RecordBatch] = []
    for batch in _batches(storage, run, objects):
        held.append(batch)
        if sum(batch.nbytes for batch in held) >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _batches(
    storage: Storage, run: Sequence[SegmentRange], objects: dict[SegmentName, ObjectInfo]
) -> Iterator[pa.RecordBatch]:
    for part in run:
        last = -1
        segment = ForeignSegment(
            where=part.name.where,
            path=part.name.path,
            base_offset=part.base,
            end_offset=part.end,
            records=None,
            bytes=objects[part.name].size,
        )
        for found, offset in stored_records(storage, segment, FILE_SCHEMA.names):
            with parquet_errors(storage.name_of(part.name.path), offset):
                batch = as_written(found)
            last = batch.column("offset")[-1].as_py()
            yield batch
        if last != part.name.end == part.end - 1:
            raise CorruptDataError(
                f"the segment ends with offset {last}, but its name says {part.name.end}",
                object_name=storage.name_of(part.name.path),
                offset=part.name.end,
            )


def _objects(storage: Storage, folder: str) -> dict[SegmentName, ObjectInfo]:
    named = ((parse_name(info.path), info) for info in storage.list(folder))
    return {name: info for name, info in named if name is not None}


def _bytes(run: Iterable[SegmentRange], objects: dict[SegmentName, ObjectInfo]) -> int:
    return sum(objects[part.name].size for part in run)


class _Sink:
    """A storage's writer as a file for Arrow."""

    closed = False

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def write(self, data: Buffer) -> int:
        self._writer.write(data)
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self._writer.size

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True
