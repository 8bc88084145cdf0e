"""Whether a binlog archive is whole: quickly by names and indexes, or by decoding everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.layouts.binlog.reading import read
from maxbrod.layouts.foreign import Fault, Survey
from maxbrod.layouts.tree import check_records

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
            end = None if segment.records is None else segment.end_offset
            batches = read(storage, segment, ["offset", "key", "value", "headers"])
            yield from check_records(segment, batches, end=end)
