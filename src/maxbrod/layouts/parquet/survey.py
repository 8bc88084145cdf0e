"""Surveys an archive by names and footers: one listing, and the tail of each object, several at a time.

Whoever surveys again and again passes a memory: then only objects that are new, or were replaced, are opened.
"""

from __future__ import annotations

from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maxbrod.batch.columns import number_column
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError, UsageError
from maxbrod.layouts.coverage import EMPTY, with_holes
from maxbrod.layouts.foreign import Fault, ForeignGap, ForeignSegment, Survey
from maxbrod.layouts.parquet.format import (
    NANOSECONDS,
    NO_TIMESTAMP,
    PREFIX,
    Footer,
    SegmentName,
    check_footer,
    parse_footer,
    parse_name,
)
from maxbrod.layouts.parquet.reader import check_columns, open_parquet, parquet_errors, read, stored_batches
from maxbrod.layouts.tree import check_records, is_published, survey_tree, surveyed_facts
from maxbrod.model import GapReason, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maxbrod.layouts.parquet.metadata import FileMetadata
    from maxbrod.storage.interface import ObjectInfo, Storage

THREADS: Final = 16
"""Footers that are fetched concurrently, to hide the latency of requests."""
_NAMES_EXAMINED_MAX: Final = 1000
_TEMPORARY: Final = "temp/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedSegment:
    """An object with a segment's name and a valid footer."""

    name: SegmentName
    size: int
    modified_ms: int
    footer: Footer
    rows: int
    min_timestamp: int | None
    max_timestamp: int | None


def detect(storage: Storage) -> bool:
    names = (info.path for folder in (PREFIX, "") for info in islice(storage.list(folder), _NAMES_EXAMINED_MAX))
    return any(parse_name(name) is not None for name in names) or is_published(storage, "parquet")


def survey(storage: Storage, *, region: str | None = None, seen: dict[str, SurveyedSegment] | None = None) -> Survey:
    """All segments of one region, or of all regions if no two have records of the same partition."""
    faults: list[Fault] = []
    # Before the objects are listed: if segments are published in between, more are listed than the facts name, never
    # fewer.
    facts = surveyed_facts(storage, faults)
    objects, unknown = _named(storage, region)
    faults += unknown
    found: list[SurveyedSegment] = []
    for outcome in _opened(storage, objects, {} if seen is None else seen):
        if isinstance(outcome, Fault):
            faults.append(outcome)
        else:
            found.append(outcome)
    faults.extend(_miscounted(found))
    by_path = {opened.name.path: opened for opened in found}
    segments = [
        _segment(by_path[part.name.path], part)
        for where, names in sorted(_partitions(found).items())
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


def open_found(storage: Storage, name: SegmentName, info: ObjectInfo) -> SurveyedSegment:
    """Open a segment and check its footer against its name."""
    opened = open_parquet(storage, name.path, info.size)
    with parquet_errors(opened.object_name, name.start):
        footer = parse_footer(opened.keys)
        check_footer(footer, name)
        check_columns(opened)
        least, most = _bounds(opened.metadata)
    return SurveyedSegment(
        name=name,
        size=info.size,
        modified_ms=info.modified_ms,
        footer=footer,
        rows=opened.metadata.rows,
        min_timestamp=least,
        max_timestamp=most,
    )


def _named(storage: Storage, region: str | None) -> tuple[list[tuple[SegmentName, ObjectInfo]], list[Fault]]:
    """Objects with a segment's name, and faults for other objects in the same folders."""
    named: list[tuple[SegmentName, ObjectInfo]] = []
    others: list[str] = []
    for info in storage.list():
        name = None if info.path.startswith(_TEMPORARY) else parse_name(info.path)
        if name is None:
            others.append(info.path)
        elif region is None or name.region in {None, region}:
            named.append((name, info))
    folders = tuple({f"{name.folder}/" for name, _ in named if name.folder})
    unknown = [path for path in others if folders and path.startswith(folders)]
    return named, [Fault(path=path, message="is not a segment's name: not read", fatal=False) for path in unknown]


def _opened(
    storage: Storage, objects: Sequence[tuple[SegmentName, ObjectInfo]], seen: dict[str, SurveyedSegment]
) -> Iterable[SurveyedSegment | Fault]:
    def attempt(named: tuple[SegmentName, ObjectInfo]) -> SurveyedSegment | Fault | None:
        name, info = named
        known = seen.get(name.path)
        if known is not None and (known.size, known.modified_ms) == (info.size, info.modified_ms):
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


def _miscounted(found: Iterable[SurveyedSegment]) -> list[Fault]:
    return [
        Fault(
            path=opened.name.path,
            message=f"the footer claims {opened.footer.records} records, the file has {opened.rows}",
            offset=opened.name.start,
        )
        for opened in found
        if opened.footer.records != opened.rows
    ]


def _partitions(found: Iterable[SurveyedSegment]) -> dict[TopicPartition, list[SegmentName]]:
    grouped: dict[TopicPartition, list[SegmentName]] = {}
    for opened in found:
        grouped.setdefault(opened.name.where, []).append(opened.name)
    return grouped


def _one_region(storage: Storage, where: TopicPartition, names: list[SegmentName]) -> list[SegmentRange]:
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
    return ForeignSegment(
        where=found.name.where,
        path=found.name.path,
        base_offset=part.base,
        end_offset=part.end,
        records=found.rows if whole else None,
        bytes=found.size,
        min_timestamp=found.min_timestamp,
        max_timestamp=found.max_timestamp,
        details={"region": found.footer.region, "level": found.name.level, "created": found.footer.created},
    )


def _is_of(folder: str, region: str | None) -> bool:
    """True if the folder of a partition belongs to the chosen region."""
    return region is None or folder.split("/")[-3:-2] in ([], [region])


def _bounds(metadata: FileMetadata) -> tuple[int | None, int | None]:
    """The lowest and highest timestamp, if the statistics of every row group have them."""
    nanoseconds = _statistics(metadata, "timestamp")
    ours = "timestamp_beyond_ms" in metadata.columns
    if nanoseconds is None or (ours and _statistics(metadata, "timestamp_beyond_ms") != (0, 0)):
        return None, None
    least, most = (bound // NANOSECONDS for bound in nanoseconds)
    # A record without a timestamp has -1 in Kafka.
    return (least, max(most, -1)) if nanoseconds[0] <= NO_TIMESTAMP else (least, most)


def _statistics(metadata: FileMetadata, column: str) -> tuple[int, int] | None:
    chunks = [chunk for group in metadata.groups for chunk in group.chunks if chunk.column == column]
    bounds = [chunk.bounds for chunk in chunks if chunk.bounds is not None]
    if not bounds or len(bounds) != len(metadata.groups):
        return None
    return min(least for least, _ in bounds), max(most for _, most in bounds)


class SegmentRange(NamedTuple):
    """The offsets [base, end) to read from a segment."""

    name: SegmentName
    base: int
    end: int


def without_overlaps(names: Iterable[SegmentName]) -> list[SegmentRange]:
    """Return the ranges to read of one partition's segments, in order. Segments that others cover are left out.

    Compaction leaves the merged segments until they are deleted, and two writers may have overlapped. A higher level
    wins: it holds what the levels below held, and those may be deleted at any time. Within a level the earlier start
    wins, and of two with the same start the longer, as when the tool reads or compacts.
    """
    taken = _Taken()
    for name in sorted(names, key=lambda name: (-name.level, name.start, -name.end)):
        taken.add(name)
    return taken.ranges


class _Taken:
    def __init__(self) -> None:
        self.ranges: list[SegmentRange] = []
        self._bases: list[int] = []

    def add(self, name: SegmentName) -> None:
        """Assign the free part of its range to the segment."""
        base, end = name.start, name.end + 1
        at = bisect_right(self._bases, base)
        if at and self.ranges[at - 1].end > base:
            base = self.ranges[at - 1].end
        while base < end:
            free = min(end, self._bases[at]) if at < len(self._bases) else end
            if base < free:
                self.ranges.insert(at, SegmentRange(name, base, free))
                self._bases.insert(at, base)
                at += 1
            if at >= len(self.ranges):
                break
            base = max(base, self.ranges[at].end)
            at += 1


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
    name = parse_name(segment.path)
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
    if not faults:
        yield from _fine_times(storage, segment)


def _fine_times(storage: Storage, segment: ForeignSegment) -> Iterator[Fault]:
    """Timestamps finer than Kafka's milliseconds did not come from Kafka; reading rounds them down."""
    opened = open_parquet(storage, segment.path, segment.bytes)
    fine = 0
    with parquet_errors(opened.object_name, segment.base_offset):
        for batch in stored_batches(opened, ["timestamp"], segment.base_offset):
            times = number_column(batch.column("timestamp"))
            fine += int(np.count_nonzero((times % NANOSECONDS != 0) & (times != NO_TIMESTAMP)))
    if fine:
        message = f"{fine} records have timestamps finer than a millisecond, which are rounded down"
        yield Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False)


def _fault(segment: ForeignSegment, message: str, offset: int | None = None) -> Fault:
    return Fault(path=segment.path, message=message, offset=segment.base_offset if offset is None else offset)
