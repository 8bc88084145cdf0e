"""Whether a backup is what its manifest says. Quick: names and sizes. Deep: every checksum, count and record."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from maxbrod.batch.columns import number_column
from maxbrod.errors import MaxbrodError
from maxbrod.layouts.backups import Backup
from maxbrod.layouts.foreign import Fault
from maxbrod.layouts.found import Stored
from maxbrod.layouts.kbak.reading import read
from maxbrod.layouts.kbak.schema import parse_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.layouts.foreign import ForeignSegment, Survey
    from maxbrod.storage.interface import Storage


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    yield from survey.faults
    if "folder" not in survey.details:
        return
    backup = Backup(backup_id=survey.details["backup_id"], folder=survey.details["folder"])
    prefix = f"{backup.folder}/" if backup.folder else ""
    sizes = {info.path: info.size for info in storage.list(backup.path("topics"))}
    for segment in survey.segments:
        yield from _check_object(segment, sizes, prefix)
        if deep and segment.path in sizes:
            yield from check_segment(storage, segment)
    named = {segment.path for segment in survey.segments}
    for path in sizes:
        if path not in named and parse_name(path.removeprefix(prefix)) is not None:
            yield Fault(path=path, message="no manifest names this segment", fatal=False)


def _check_object(segment: ForeignSegment, sizes: dict[str, int], prefix: str) -> Iterator[Fault]:
    size = sizes.get(segment.path)
    if size is None:
        yield Fault(path=segment.path, message="the segment is missing", offset=segment.base_offset)
    elif segment.bytes and size != segment.bytes:
        message = f"the segment has {size} bytes, and the manifest says {segment.bytes}"
        yield Fault(path=segment.path, message=message, offset=segment.base_offset)
    start = segment.details.get("start_offset", segment.base_offset)
    if parse_name(segment.path.removeprefix(prefix)) != (segment.where, start):
        message = f"the segment is not named as {segment.where} from offset {start} on"
        yield Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False)


def check_segment(storage: Storage, segment: ForeignSegment) -> Iterator[Fault]:
    """Read all of it, and compare with what the manifest says."""
    try:
        yield from _check_digest(storage, segment)
        times = [number_column(batch.column(0)) for batch in read(storage, segment, ["timestamp_ms"])]
    except MaxbrodError as error:
        yield Fault(path=segment.path, message=error.message, offset=error.offset or segment.base_offset)
        return
    if times and "start_timestamp" in segment.details and "from_offset" not in segment.details:
        yield from _check_times(segment, int(times[0][0]), int(times[-1][-1]))


def _check_digest(storage: Storage, segment: ForeignSegment) -> Iterator[Fault]:
    wanted: Any = segment.details.get("sha256")
    if not wanted:
        return
    stored, digest = Stored(storage, segment.path), hashlib.sha256()
    for piece in stored.pieces(0, stored.size):
        digest.update(piece)
    if digest.hexdigest() != wanted:
        yield Fault(path=segment.path, message="the segment has another SHA-256", offset=segment.base_offset)


def _check_times(segment: ForeignSegment, first: int, last: int) -> Iterator[Fault]:
    wanted = segment.details["start_timestamp"], segment.details["end_timestamp"]
    if (first, last) != wanted:
        message = f"the records begin at time {first} and end at {last}, and the manifest says {wanted[0]}, {wanted[1]}"
        yield Fault(path=segment.path, message=message, offset=segment.base_offset, fatal=False)
