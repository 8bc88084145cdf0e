"""Checks an archive: quickly by names and footers, or deeply by reading every record of every segment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.columns import number_column
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.layouts.foreign import Fault, ForeignSegment, Survey
from maxbrod.layouts.parquet.groups import stored_batches
from maxbrod.layouts.parquet.names import parse_name
from maxbrod.layouts.parquet.objects import open_parquet, parquet_errors
from maxbrod.layouts.parquet.reading import read
from maxbrod.layouts.parquet.schema import NANOSECONDS, NO_TIMESTAMP
from maxbrod.layouts.parquet.survey import THREADS, open_found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.storage.interface import Storage


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
    records, last = 0, segment.base_offset - 1
    try:
        for batch in read(storage, segment):
            records += batch.num_rows
            last = int(number_column(batch.column("offset"))[-1])
    except (CorruptDataError, UnsupportedFormatError) as error:
        yield _fault(segment, error.message, max(last + 1, error.offset or 0))
        return
    if segment.records is not None and records != segment.records:
        yield _fault(segment, f"there are {records} records instead of {segment.records}")
    if segment.records is not None and last != segment.end_offset - 1:
        yield _fault(segment, f"the last record has offset {last}, not {segment.end_offset - 1}", last)
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
