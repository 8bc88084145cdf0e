"""The tasks of deep checks: each reads slices or segments whole and returns what is wrong. They write nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.columns import number_column
from maxbrod.errors import BatchLimitError, MaxbrodError
from maxbrod.layouts.foreign import Fault, ForeignSegment, described
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.layouts.registry import layout_of
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.storage.interface import Storage
    from maxbrod.work.reach import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceProblem:
    """What is wrong with a slice. `number` is its index in the list that was given."""

    number: int
    offset: int
    message: str
    limit: bool = False
    """It is sound, but larger than what is looked into."""


def verify_slices(place: Place, slices: Sequence[tuple[int, Slice]]) -> list[SliceProblem]:
    """Verify numbered slices. A storage error ends the job: a slice that was not read may be sound or damaged."""
    storage = open_storage(place.url, place.storage)
    return [
        SliceProblem(number=number, offset=problem.offset, message=problem.message, limit=problem.limit)
        for number, stored in slices
        for problem in verify_slice(storage, stored)
    ]


def check_segments(place: Place, segments: Sequence[str]) -> list[Fault]:
    """Read segments of another layout: every record, every checksum. `foreign.describe` makes their descriptions."""
    storage = open_storage(place.url, place.storage)
    faults = [_check_segment(storage, *described(details)) for details in segments]
    return [fault for fault in faults if fault is not None]


def _check_segment(storage: Storage, layout: str, segment: ForeignSegment) -> Fault | None:
    records, last = 0, segment.base_offset - 1
    try:
        for batch in layout_of(layout).read(storage, segment, columns=["offset"]):
            offsets = number_column(batch.column(0))
            wrong = np.flatnonzero(np.diff(offsets, prepend=np.int64(last)) <= 0)
            if wrong.size:
                return Fault(path=segment.path, message="offsets do not rise", offset=int(offsets[wrong[0]]))
            records += offsets.size
            last = int(offsets[-1]) if offsets.size else last
    except MaxbrodError as error:
        # Larger than what is decoded is no damage.
        fatal = not isinstance(error, BatchLimitError)
        return Fault(path=segment.path, message=error.message, offset=error.offset, fatal=fatal)
    # Batches also count control records, which readers do not return; their own checksums cover them.
    counted = layout_of(layout).read_batches is None
    if counted and segment.records is not None and records != segment.records:
        message = f"it has {records} records, its metadata says {segment.records}"
        return Fault(path=segment.path, message=message, offset=segment.base_offset)
    if records and last >= segment.end_offset:
        return Fault(path=segment.path, message="it has records beyond its end", offset=last)
    return None
