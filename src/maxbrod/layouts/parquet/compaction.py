"""Merges many small segments of a partition into one of the next level. Works within one region.

The rules are the tool's: segments of a span of levels, old enough to have been copied elsewhere, in order of offsets,
from where the levels above end; at least so many and so large, at most so many and so large. Where offsets are missing
between two segments the tool gives up; here the run ends before the hole and another begins after it, so that the hole
stays to be seen. The merged segment is complete before anything is deleted, and deleted is only what is covered by it
or by levels above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from maxbrod.errors import CorruptDataError, ObjectExistsError, UnsupportedFormatError, UsageError, naming
from maxbrod.layouts.foreign import ForeignSegment, WriteOptions
from maxbrod.layouts.parquet.conversion import as_written
from maxbrod.layouts.parquet.footer import footer_of
from maxbrod.layouts.parquet.names import SegmentName, parse_name
from maxbrod.layouts.parquet.objects import parquet_errors
from maxbrod.layouts.parquet.overlaps import SegmentRange, shares
from maxbrod.layouts.parquet.reading import stored_records
from maxbrod.layouts.parquet.schema import FILE_SCHEMA
from maxbrod.layouts.parquet.survey import open_found
from maxbrod.layouts.parquet.writing import compression_of, described, parquet_writer

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterable, Iterator, Sequence

    from maxbrod.layouts.foreign import Survey
    from maxbrod.storage.interface import ObjectInfo, Storage, Writer

_GROUP_BYTES: Final = 64 << 20
"""Of a row group, before compression: this much is held in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    """Which segments are merged. The defaults are the tool's."""

    level_min: int = 0
    level_max: int = 0
    age_ms_min: int = 3_600_000
    segments_min: int = 10
    bytes_min: int = 1 << 30
    segments_max: int = 10_000
    bytes_max: int = 4 << 30
    delete: bool = True

    def __post_init__(self) -> None:
        pairs = ((self.level_min, self.level_max), (self.segments_min, self.segments_max))
        if self.segments_min < 2 or self.age_ms_min < 0 or any(least > most for least, most in pairs):
            raise UsageError(f"segments cannot be compacted within {self}")
        if not 1 <= self.bytes_min <= self.bytes_max:
            raise UsageError(f"segments cannot be compacted within {self.bytes_min} to {self.bytes_max} bytes")


def compact(
    storage: Storage,
    survey: Survey,
    limits: CompactionLimits | None = None,
    *,
    now_ms: int,
    options: WriteOptions | None = None,
) -> list[ForeignSegment]:
    """Merge what can be merged of every partition that `survey` knows, and return the new segments.

    May be repeated at any time, also after a crash. One at a time: two at once do the work twice and harm nothing.
    """
    limits = limits or CompactionLimits()
    compression = compression_of(options or WriteOptions())
    merged: list[ForeignSegment] = []
    for folder in sorted({_partition_folder(segment) for segment in survey.segments}):
        objects = _objects(storage, folder)
        runs = plan_runs(objects, limits, now_ms=now_ms)
        merged.extend(_merge(storage, run, objects, compression) for run in runs)
        if limits.delete:
            storage.delete(_superfluous(storage, _objects(storage, folder), limits, now_ms=now_ms))
    return merged


def plan_runs(
    objects: dict[SegmentName, ObjectInfo], limits: CompactionLimits, *, now_ms: int
) -> list[list[SegmentRange]]:
    """Which parts of which segments become one, run after run. Pure."""
    considered = [name for name in objects if name.level > limits.level_max]
    considered += [name for name, info in objects.items() if _is_candidate(name, info, limits, now_ms)]
    runs: list[list[SegmentRange]] = [[]]
    for share in shares(considered):
        run = runs[-1]
        full = len(run) >= limits.segments_max or _bytes(run, objects) >= limits.bytes_max
        if run and (full or run[-1].end != share.base):
            runs.append([])
        if share.name.level <= limits.level_max:
            runs[-1].append(share)
    sound = [_ending_with_a_record(run) for run in runs]
    return [each for each in sound if len(each) >= limits.segments_min and _bytes(each, objects) >= limits.bytes_min]


def _ending_with_a_record(run: list[SegmentRange]) -> list[SegmentRange]:
    """The tool reads a segment until it meets the offset at the end of its name, so that must be a record's."""
    while run and run[-1].end != run[-1].name.end + 1:
        run = run[:-1]
    return run


def _is_candidate(name: SegmentName, info: ObjectInfo, limits: CompactionLimits, now_ms: int) -> bool:
    return limits.level_min <= name.level <= limits.level_max and info.modified_ms <= now_ms - limits.age_ms_min


def _superfluous(
    storage: Storage, objects: dict[SegmentName, ObjectInfo], limits: CompactionLimits, *, now_ms: int
) -> list[str]:
    """Segments whose every offset a level above has, in an object that opens. Of this run, or of one cut short."""
    above = {name: info for name, info in objects.items() if name.level > limits.level_max}
    covered = shares(name for name, info in above.items() if _opens(storage, name, info))
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
    for share in covered:
        if share.base <= at < share.end:
            at = share.end
    return at > name.end


def _merge(
    storage: Storage, run: Sequence[SegmentRange], objects: dict[SegmentName, ObjectInfo], compression: dict[str, Any]
) -> ForeignSegment:
    first, last = run[0].name, run[-1].name
    level = max(share.name.level for share in run) + 1
    name = SegmentName(folder=first.folder, where=first.where, level=level, start=run[0].base, end=last.end)
    region = open_found(storage, first, objects[first]).footer.region
    try:
        with naming(storage.name_of(name.path)), storage.create(name.path) as sink:
            records = 0
            with parquet_writer(_Sink(sink), compression) as writer:
                for table in _tables(storage, run, objects):
                    records += table.num_rows
                    writer.write_table(table, row_group_size=table.num_rows)
                footer = footer_of(name, region=region, records=records)
                writer.add_key_value_metadata(footer.keys())
        return described(name, footer, sink.size, (None, None))
    except ObjectExistsError:
        return _merged_before(storage, name)


def _merged_before(storage: Storage, name: SegmentName) -> ForeignSegment:
    """An earlier run has made it, and did not come to delete what it merged."""
    info = storage.head(name.path)
    found = open_found(storage, name, info)
    return described(name, found.footer, info.size, (found.min_timestamp, found.max_timestamp))


def _tables(
    storage: Storage, run: Sequence[SegmentRange], objects: dict[SegmentName, ObjectInfo]
) -> Iterator[pa.Table]:
    """The records of a run in pieces that make a row group each."""
    held: list[pa.RecordBatch] = []
    for batch in _batches(storage, run, objects):
        held.append(batch)
        if sum(each.nbytes for each in held) >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _batches(
    storage: Storage, run: Sequence[SegmentRange], objects: dict[SegmentName, ObjectInfo]
) -> Iterator[pa.RecordBatch]:
    for share in run:
        last = -1
        for found, offset in stored_records(storage, _as_segment(share, objects[share.name]), FILE_SCHEMA.names):
            with parquet_errors(storage.name_of(share.name.path), offset):
                batch = as_written(found)
            last = batch.column("offset")[-1].as_py()
            yield batch
        if last != share.name.end == share.end - 1:
            raise CorruptDataError(
                f"the segment ends with offset {last}, its name says {share.name.end}",
                object_name=storage.name_of(share.name.path),
                offset=share.name.end,
            )


def _as_segment(share: SegmentRange, info: ObjectInfo) -> ForeignSegment:
    return ForeignSegment(
        where=share.name.where,
        path=share.name.path,
        base_offset=share.base,
        end_offset=share.end,
        records=None,
        bytes=info.size,
    )


def _partition_folder(segment: ForeignSegment) -> str:
    return segment.path.rsplit("/", 2)[0]


def _objects(storage: Storage, folder: str) -> dict[SegmentName, ObjectInfo]:
    named = ((parse_name(info.path), info) for info in storage.list(folder))
    return {name: info for name, info in named if name is not None}


def _bytes(run: Iterable[SegmentRange], objects: dict[SegmentName, ObjectInfo]) -> int:
    return sum(objects[share.name].size for share in run)


class _Sink:
    """A storage's writer as the file that Arrow writes to."""

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
