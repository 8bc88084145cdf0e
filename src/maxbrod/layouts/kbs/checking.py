"""Whether a backup is what its manifest says. Quick: names, sizes and counts. Deep: every checksum and record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.errors import MaxbrodError
from maxbrod.layouts.backups import MANIFEST, Backup, list_segments
from maxbrod.layouts.documents import read_document
from maxbrod.layouts.foreign import Fault, ForeignSegment, Survey
from maxbrod.layouts.kbs.manifest import parse_partitions
from maxbrod.layouts.kbs.reading import read
from maxbrod.layouts.kbs.schema import EMPTY_BYTES, SEGMENT
from maxbrod.layouts.kbs.survey import read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.storage.interface import Storage


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    yield from survey.faults
    backup = Backup.surveyed(survey)
    if backup is None:
        return
    objects = list(list_segments(storage, backup, SEGMENT))
    sizes = {path: size for _, _, path, size in objects}
    for segment in survey.segments:
        yield from _check_object(storage, segment, sizes)
        if deep and segment.path in sizes:
            yield from check_segment(storage, segment)
    yield from _check_counts(storage, backup, survey)
    named = {segment.path for segment in survey.segments}
    emptied = survey.details.get("emptied", {})
    for where, number, path, size in sorted(objects):
        if number < emptied.get(where.topic, {}).get(str(where.partition), 0):
            if size != EMPTY_BYTES:
                yield Fault(path=path, message="was pruned, and still takes space: prune again", fatal=False)
        elif path not in named:
            yield Fault(path=path, message="no manifest counts this segment", fatal=False)


def _check_object(storage: Storage, segment: ForeignSegment, sizes: dict[str, int]) -> Iterator[Fault]:
    size = sizes.get(segment.path)
    if size is None:
        yield Fault(path=segment.path, message="the segment is missing", offset=segment.base_offset)
        return
    if size != segment.bytes:
        message = f"the segment has {size} bytes, and the manifest says {segment.bytes}"
        yield Fault(path=segment.path, message=message, offset=segment.base_offset)
        return
    try:
        header = read_header(storage, segment.path, size)
    except MaxbrodError as error:
        yield Fault(path=segment.path, message=error.message, offset=segment.base_offset)
        return
    if (header.first_offset, header.records) != (segment.base_offset, segment.records):
        message = f"the segment has {header.records} records from offset {header.first_offset} on"
        yield Fault(path=segment.path, message=message, offset=segment.base_offset)


def check_segment(storage: Storage, segment: ForeignSegment) -> Iterator[Fault]:
    """Reads all of a segment, which compares every checksum and count."""
    try:
        for _ in read(storage, segment, ["offset"]):
            pass
    except MaxbrodError as error:
        yield Fault(path=segment.path, message=error.message, offset=error.offset or segment.base_offset)


def _check_counts(storage: Storage, backup: Backup, survey: Survey) -> Iterator[Fault]:
    """Compares the manifest's own sums with the segments."""
    path = backup.path(MANIFEST)
    if survey.details.get("rebuilt"):
        return
    try:
        manifest = read_document(storage, path)
        topics = [] if manifest is None else manifest.objects("topics")
        entries = [entry for topic in topics for entry in parse_partitions(topic)]
    except MaxbrodError:
        return  # a fault of the survey
    for entry in entries:
        held = [segment for segment in survey.segments if segment.where == entry.where]
        records = sum(segment.records or 0 for segment in held)
        first = held[0].base_offset if held else entry.first_offset
        if (records, first) != (entry.records, entry.first_offset):
            message = (
                f"{entry.where} has {entry.records} records from offset {entry.first_offset} on by the manifest, "
                f"and {records} from {first} on by its segments"
            )
            yield Fault(path=path, message=message, offset=first, fatal=records < entry.records)
