"""Checks an Avro archive: quickly by names and headers, or deeply by decoding everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.batch.columns import number_column
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, RefusedError
from maxbrod.layouts.avro.names import parse_name
from maxbrod.layouts.avro.reading import read
from maxbrod.layouts.foreign import Fault, ForeignSegment, Survey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.storage.interface import Storage


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    """All faults. Quick: files, sizes and names as surveyed; deep: every record is decoded."""
    yield from survey.faults
    sizes = {info.path: info.size for info in storage.list()}
    for segment in survey.segments:
        size = sizes.get(segment.path)
        name = parse_name(segment.path)
        if size is None or size != segment.bytes:
            message = "is gone" if size is None else f"has {size} bytes, where it had {segment.bytes}"
            yield Fault(path=segment.path, message=message, offset=segment.base_offset)
            continue
        first = name.first_offset if name else None
        if first is not None and first > segment.base_offset:
            message = f"begins with offset {segment.base_offset}, before the one in its name"
            yield Fault(path=segment.path, message=message, offset=segment.base_offset)
        if deep:
            yield from _check_records(storage, segment)


def _check_records(storage: Storage, segment: ForeignSegment) -> Iterator[Fault]:
    records, first, last = 0, None, segment.base_offset - 1
    try:
        for batch in read(storage, segment, ["offset", "key", "value", "headers"]):
            offset = number_column(batch.column("offset"))
            first = int(offset[0]) if first is None else first
            records, last = records + len(offset), int(offset[-1])
    except (CorruptDataError, RefusedError, ObjectNotFoundError) as error:
        yield Fault(path=segment.path, message=error.message, offset=error.offset)
        return
    trimmed = "from_offset" in segment.details
    counted = segment.records is None or records == segment.records
    if not counted or last + 1 != segment.end_offset or (first != segment.base_offset and not trimmed):
        message = f"has {records} records from offset {first} to {last}, which is not what it says of itself"
        yield Fault(path=segment.path, message=message, offset=first)
