"""Whether a binlog archive is whole: quickly by names and indexes, or by decoding everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.batch.columns import number_column
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, RefusedError
from maxbrod.layouts.binlog.reading import read
from maxbrod.layouts.foreign import Fault, ForeignSegment, Survey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.storage.interface import Storage


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    """Quick: compares objects and sizes with the survey. Deep: decodes every record.

    A survey already compares names with indexes, and each index with the size of its records.
    """
    yield from survey.faults
    sizes = {info.path: info.size for info in storage.list()}
    for segment in survey.segments:
        size = sizes.get(segment.path)
        if size is None or size < segment.bytes:
            message = "is missing" if size is None else f"has {size} bytes, {segment.bytes - size} fewer than it had"
            yield Fault(path=segment.path, message=message, offset=segment.base_offset)
        elif deep:
            yield from _check_records(storage, segment)


def _check_records(storage: Storage, segment: ForeignSegment) -> Iterator[Fault]:
    records, last = 0, segment.base_offset - 1
    try:
        for batch in read(storage, segment, ["offset", "key", "value", "headers"]):
            offset = number_column(batch.column("offset"))
            if int(offset[0]) <= last:
                yield Fault(path=segment.path, message="has offsets that do not rise", offset=int(offset[0]))
            records, last = records + len(offset), int(offset[-1])
    except (CorruptDataError, RefusedError, ObjectNotFoundError) as error:
        yield Fault(path=segment.path, message=error.message, offset=last + 1 if error.offset is None else error.offset)
        return
    if segment.records is not None and (records != segment.records or last + 1 != segment.end_offset):
        message = f"has {records} records up to offset {last}, and the index lists {segment.records}"
        yield Fault(path=segment.path, message=message, offset=last + 1)
