"""Whether a backup is what its manifest says. Quick: names and sizes. Deep: every checksum, count and record."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from maxbrod.batch.columns import number_column
from maxbrod.errors import MaxbrodError
from maxbrod.layouts.backups import Backup, parse_name
from maxbrod.layouts.foreign import Fault, ForeignSegment, Survey
from maxbrod.layouts.found import Stored
from maxbrod.layouts.kbak.reading import read
from maxbrod.layouts.kbak.schema import SEGMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.storage.interface import Storage


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    yield from survey.faults
    backup = Backup.surveyed(survey)
    if backup is None:
        return
    sizes = {info.path: info.size for info in storage.list(backup.path("topics"))}
    for segment in survey.segments:
        yield from _check_object(segment, sizes, backup)
        if deep and segment.path in sizes:
            yield from check_segment(storage, segment)
    named = {segment.path for segment in survey.segments}
    for path in sizes:
        if path not in named and parse_name(SEGMENT, backup.name(path)) is not None:
            yield Fault(path=path, message="no manifest names this segment", fatal=False)


def _check_object(segment: ForeignSegment, sizes: dict[str, int], backup: Backup) -> Iterator[Fault]:
    size = sizes.get(segment.path)
    if size is None:
        yield Fault(path=segment.path, message="the segment is missing", offset=segment.base_offset)
    elif segment.bytes and size != segment.bytes:
        message = f"the segment has {size} bytes, and the manifest says {segment.bytes}"
        yield Fault(path=segment.path, message=message, offset=segment.base_offset)
    start = segment.details.get("start_offset", segment.base_offset)
    if parse_name(SEGMENT, backup.name(segment.path)) != (segment.where, start):
        message = f"the segment is not named as {segment.where} from offset {start} on"
        yield Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False)


def check_segment(storage: Storage, segment: ForeignSegment) -> Iterator[Fault]:
    """Reads all of a segment, and compares it with the manifest."""
    sha256 = segment.details.get("sha256")
    try:
        if sha256 and _sha256(storage, segment.path) != sha256:
            yield Fault(path=segment.path, message="the segment has another SHA-256", offset=segment.base_offset)
        timestamps = [number_column(batch.column(0)) for batch in read(storage, segment, ["timestamp_ms"])]
    except MaxbrodError as error:
        yield Fault(path=segment.path, message=error.message, offset=error.offset or segment.base_offset)
        return
    if timestamps and "start_timestamp" in segment.details and "from_offset" not in segment.details:
        first, last = int(timestamps[0][0]), int(timestamps[-1][-1])
        noted = segment.details["start_timestamp"], segment.details["end_timestamp"]
        if (first, last) != noted:
            message = f"the records have the times {first} to {last}, and the manifest says {noted[0]} to {noted[1]}"
            yield Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False)


def _sha256(storage: Storage, path: str) -> str:
    stored, digest = Stored(storage, path), hashlib.sha256()
    for piece in stored.pieces(0, stored.size):
        digest.update(piece)
    return digest.hexdigest()
