"""CrowdStrike kafka-replicator. A survey by names and footers: one listing, and the tails of objects, many at a time.

Whoever surveys again and again passes a memory: then only objects that are new, or were replaced, are opened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from maxbrod.batch.columns import number_column
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError, UsageError
from maxbrod.layouts.foreign import Fault, ForeignGap, ForeignSegment, Layout, Loss, RecordAccess, Survey
from maxbrod.layouts.parquet import format as parquet
from maxbrod.layouts.parquet import writer
from maxbrod.layouts.parquet.metadata import FileMetadata
from maxbrod.layouts.parquet.reader import open_parquet, open_segment, parquet_errors, read, stored_batches
from maxbrod.layouts.tree import (
    EMPTY,
    check_records,
    is_published,
    prune_tree,
    publisher,
    survey_tree,
    surveyed_facts,
    with_holes,
)
from maxbrod.model import GapReason, TopicPartition
from maxbrod.storage.interface import ObjectInfo, Storage

THREADS: Final = 16
"""Footers that are fetched concurrently, to hide the latency of requests."""
_NAMES_EXAMINED_MAX: Final = 1000
_TEMPORARY: Final = "temp/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedSegment:
    """An object with a segment's name and a valid footer. The footer may claim another number of records."""

    segment: ForeignSegment
    footer: parquet.Footer
    rows: int
    modified_ms: int

    @property
    def name(self) -> parquet.SegmentName:
        return self.footer.name


def detect(storage: Storage) -> bool:
    names = (info.path for folder in (parquet.PREFIX, "") for info in islice(storage.list(folder), _NAMES_EXAMINED_MAX))
    return any(parquet.parse_name(name) is not None for name in names) or is_published(storage, "parquet")


def survey(storage: Storage, *, region: str | None = None, seen: dict[str, SurveyedSegment] | None = None) -> Survey:
    """All segments of one region, or of all regions if no two have records of the same partition."""
    faults: list[Fault] = []
    # Before the objects are listed: if segments are published in between, more are listed than the facts name, never
    # fewer.
    facts = surveyed_facts(storage, faults)
    objects, unknown = _named(storage, region)
    faults += unknown
    outcomes = _opened(storage, objects, {} if seen is None else seen)
    faults += [outcome for outcome in outcomes if isinstance(outcome, Fault)]
    found = [outcome for outcome in outcomes if isinstance(outcome, SurveyedSegment)]
    partitions: dict[TopicPartition, list[parquet.SegmentName]] = {}
    for opened in found:
        partitions.setdefault(opened.name.where, []).append(opened.name)
        if opened.footer.records != opened.rows:
            message = f"the footer claims {opened.footer.records} records, the file has {opened.rows}"
            faults.append(Fault(path=opened.name.path, message=message, offset=opened.name.start))
    by_path = {opened.name.path: opened for opened in found}
    segments = [
        _segment(by_path[part.name.path], part)
        for where, names in sorted(partitions.items())
        for part in _one_region(storage, where, names)
    ]
    coverage = {where: known for where, known in facts.coverage.items() if _is_of(known.folder, region)}
    coverage = with_holes(coverage, _holes(found))
    return survey_tree(
        "parquet",
        segments,
        replace(facts, coverage=coverage),
        faults,
        topics=[segment.where.topic for segment in segments],
        details={"regions": {opened.footer.region: opened.name.folder for opened in reversed(found)}},
    )


def open_found(storage: Storage, name: parquet.SegmentName, info: ObjectInfo) -> SurveyedSegment:
    """Open a segment and check its footer against its name."""
    opened, footer = open_segment(storage, name, info.size)
    with parquet_errors(opened.object_name, name.start):
        segment = writer.segment_of(footer, info.size, _bounds(opened.metadata))
    return SurveyedSegment(segment=segment, footer=footer, rows=opened.metadata.rows, modified_ms=info.modified_ms)


def _named(storage: Storage, region: str | None) -> tuple[list[tuple[parquet.SegmentName, ObjectInfo]], list[Fault]]:
    """Objects with a segment's name, and faults for other objects in the same folders."""
    named: list[tuple[parquet.SegmentName, ObjectInfo]] = []
    others: list[str] = []
    for info in storage.list():
        name = None if info.path.startswith(_TEMPORARY) else parquet.parse_name(info.path)
        if name is None:
            others.append(info.path)
        elif region is None or name.region in {None, region}:
            named.append((name, info))
    folders = tuple({f"{name.folder}/" for name, _ in named if name.folder})
    unknown = [path for path in others if folders and path.startswith(folders)]
    return named, [Fault(path=path, message="is not a segment's name: not read", fatal=False) for path in unknown]


def _opened(
    storage: Storage, objects: Sequence[tuple[parquet.SegmentName, ObjectInfo]], seen: dict[str, SurveyedSegment]
) -> list[SurveyedSegment | Fault]:
    def attempt(named: tuple[parquet.SegmentName, ObjectInfo]) -> SurveyedSegment | Fault | None:
        name, info = named
        known = seen.get(name.path)
        if known is not None and (known.segment.bytes, known.modified_ms) == (info.size, info.modified_ms):
            return known
        try:
            return open_found(storage, name, info)
        except ObjectNotFoundError:
            return None  # compacted away since it was listed
        except (CorruptDataError, UnsupportedFormatError) as error:
            return Fault(path=name.path, message=error.message, offset=name.start)

    if not objects:
        return []
    with ThreadPoolExecutor(min(THREADS, len(objects))) as pool:
        outcomes = [outcome for outcome in pool.map(attempt, objects) if outcome is not None]
    seen.clear()
    seen.update((outcome.name.path, outcome) for outcome in outcomes if isinstance(outcome, SurveyedSegment))
    return outcomes


def _holes(found: Iterable[SurveyedSegment]) -> list[ForeignGap]:
    """Offsets before segments that never had a record, or that the source had deleted, as the footers tell."""
    holes: list[ForeignGap] = []
    for opened in found:
        where, follows, deleted = opened.name.where, opened.footer.follows, opened.footer.deleted
        if follows is not None and follows < opened.name.start:
            holes.append(ForeignGap(where=where, base_offset=follows, end_offset=opened.name.start, reason=EMPTY))
        if follows is not None and deleted is not None:
            reason = GapReason.RETENTION
            holes.append(ForeignGap(where=where, base_offset=deleted, end_offset=follows, reason=reason))
    return holes


def _one_region(storage: Storage, where: TopicPartition, names: list[parquet.SegmentName]) -> list[SegmentRange]:
    folders = sorted({name.folder for name in names})
    if len(folders) > 1:
        raise UsageError(
            f"{where} is in more than one region: {', '.join(folders)}",
            object_name=storage.url,
            hint=f"open the folder of one region, for example {storage.name_of(folders[0])}",
        )
    return without_overlaps(names)


def _segment(found: SurveyedSegment, part: SegmentRange) -> ForeignSegment:
    whole = (part.base, part.end) == (found.name.start, found.name.end + 1)
    return replace(found.segment, base_offset=part.base, end_offset=part.end, records=found.rows if whole else None)


def _is_of(folder: str, region: str | None) -> bool:
    """True if the folder of a partition belongs to the chosen region."""
    return region is None or folder.split("/")[-3:-2] in ([], [region])


def _bounds(metadata: FileMetadata) -> tuple[int | None, int | None]:
    """The lowest and highest timestamp, if the statistics of every row group have them."""
    nanoseconds = _statistics(metadata, "timestamp")
    ours = "timestamp_beyond_ms" in metadata.columns
    if nanoseconds is None or (ours and _statistics(metadata, "timestamp_beyond_ms") != (0, 0)):
        return None, None
    least, most = (bound // parquet.NANOSECONDS for bound in nanoseconds)
    # A record without a timestamp has -1 in Kafka.
    return (least, max(most, -1)) if nanoseconds[0] <= parquet.NO_TIMESTAMP else (least, most)


def _statistics(metadata: FileMetadata, column: str) -> tuple[int, int] | None:
    chunks = [chunk for group in metadata.groups for chunk in group.chunks if chunk.column == column]
    bounds = [chunk.bounds for chunk in chunks if chunk.bounds is not None]
    if not bounds or len(bounds) != len(metadata.groups):
        return None
    return min(least for least, _ in bounds), max(most for _, most in bounds)


class SegmentRange(NamedTuple):
    """The offsets [base, end) to read from a segment."""

    name: parquet.SegmentName
    base: int
    end: int


def without_overlaps(names: Iterable[parquet.SegmentName]) -> list[SegmentRange]:
    """Return the ranges to read of one partition's segments, in order. Segments that others cover are left out.

    Compaction leaves the merged segments until they are deleted, and two writers may have overlapped. A higher level
    wins: it holds what the levels below held, and those may be deleted at any time. Within a level the earlier start
    wins, and of two with the same start the longer, as when the tool reads or compacts.
    """
    ranges: list[SegmentRange] = []
    for name in sorted(names, key=lambda name: (-name.level, name.start, -name.end)):
        base, end = name.start, name.end + 1
        at = bisect_right(ranges, base, key=attrgetter("base"))
        if at and ranges[at - 1].end > base:
            base = ranges[at - 1].end
        while base < end:
            free = min(end, ranges[at].base) if at < len(ranges) else end
            if base < free:
                ranges.insert(at, SegmentRange(name, base, free))
                at += 1
            if at >= len(ranges):
                break
            base = max(base, ranges[at].end)
            at += 1
    return ranges


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    """All faults, those of the survey first."""
    yield from survey.faults
    with ThreadPoolExecutor(THREADS) as pool:
        for segment, fault in zip(survey.segments, pool.map(partial(_quick, storage), survey.segments), strict=True):
            if fault is not None:
                yield fault
            elif deep:
                yield from _deep(storage, segment)


def _quick(storage: Storage, segment: ForeignSegment) -> Fault | None:
    """Check that the object exists as surveyed and that its footer is valid."""
    name = parquet.parse_name(segment.path)
    try:
        info = storage.head(segment.path)
        if info.size != segment.bytes:
            return _fault(segment, f"the object has {info.size} bytes instead of {segment.bytes}")
        if name is not None:
            open_found(storage, name, info)
    except ObjectNotFoundError:
        return _fault(segment, "the object is missing")
    except (CorruptDataError, UnsupportedFormatError) as error:
        return _fault(segment, error.message, error.offset)
    return None


def _deep(storage: Storage, segment: ForeignSegment) -> Iterator[Fault]:
    """Decode everything; the reader itself checks that offsets rise within the range of the name."""
    end = None if segment.records is None else segment.end_offset
    faults = list(check_records(segment, read(storage, segment), end=end))
    yield from faults
    if faults:
        return
    # Timestamps finer than Kafka's milliseconds did not come from Kafka; reading rounds them down.
    opened = open_parquet(storage, segment.path, segment.bytes)
    fine = 0
    with parquet_errors(opened.object_name, segment.base_offset):
        for batch in stored_batches(opened, ["timestamp"], segment.base_offset):
            times = number_column(batch.column("timestamp"))
            fine += int(np.count_nonzero((times % parquet.NANOSECONDS != 0) & (times != parquet.NO_TIMESTAMP)))
    if fine:
        message = f"{fine} records have timestamps finer than a millisecond, which are rounded down"
        yield Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False)


def _fault(segment: ForeignSegment, message: str, offset: int | None = None) -> Fault:
    return Fault(path=segment.path, message=message, offset=segment.base_offset if offset is None else offset)


LAYOUT: Final = Layout(
    name="parquet",
    detect=detect,
    look=survey,
    publish=publisher(writer.check_options, levels=1),
    prune=prune_tree,
    records=lambda: RecordAccess(read=read, write=writer.write, check=check),
    choices=("region",),
    remembers=True,
    losses=(
        Loss(what="producer ids, sequences, leader epochs and which records were written in transactions", real=False),
        Loss(what="transaction markers, which no consumer sees", real=False),
    ),
)
