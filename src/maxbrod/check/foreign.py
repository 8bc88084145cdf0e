"""The check of an archive in another tool's layout: its metadata, and with `deep` every record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from maxbrod.archive.surveyed import partitions_without_records
from maxbrod.batch.columns import number_column
from maxbrod.check.deep import in_waves
from maxbrod.check.problems import Verdict
from maxbrod.errors import BatchLimitError, MaxbrodError
from maxbrod.layouts.foreign import Doubt, Fault, ForeignGap, ForeignSegment, describe, described
from maxbrod.layouts.registry import layout_of, repair_of
from maxbrod.model import GapReason
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage
from maxbrod.work.reach import Place
from maxbrod.work.report import Report
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.work.work import Work

_TASKS_PER_CORE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCheckReport(Report):
    archive: str
    layout: str
    topics: int
    partitions: int
    partitions_without_records: int
    segments: int
    records: int
    bytes: int
    deep: bool
    faults: tuple[Fault, ...]
    unexplained: tuple[ForeignGap, ...] = ()
    """Offsets between segments that nothing explains: a segment may be lost there."""
    doubts: tuple[Doubt, ...] = ()
    """The facts that the archive cannot prove."""
    interrupted: bool = False
    """A deep check was stopped before it had read every segment."""
    published: ClassVar = ("verdict", "exit_code")

    @property
    def verdict(self) -> Verdict:
        """Repaired faults and doubts do not fail a check."""
        if any(fault.fatal for fault in self.faults):
            return Verdict.DAMAGED
        if self.unexplained:
            return Verdict.INCOMPLETE
        if self.interrupted:
            return Verdict.STOPPED
        return Verdict.SOUND if self.deep else Verdict.WHOLE

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code


def check_foreign(archive: Archive, work: Work | None = None) -> ForeignCheckReport:
    """Check an archive; with `work` deep, which reads every segment."""
    survey = archive.surveyed
    layout = survey.layout
    read = 0
    faults = list(layout_of(layout).check(open_storage(archive.url, archive.options), survey, deep=False))
    if work is not None:
        known = {(fault.path, fault.offset) for fault in faults}

        def tasks(segments: Sequence[ForeignSegment], parallelism: int) -> list[list[str]]:
            return spread(
                [(segment.bytes, describe(layout, segment)) for segment in segments], _TASKS_PER_CORE * parallelism
            )

        for wave, found in in_waves(
            work, archive, survey.segments, check_segments, tasks, bytes_of=lambda segment: segment.bytes
        ):
            read += len(wave)
            faults += [fault for fault in found if (fault.path, fault.offset) not in known]
    partitions = {
        *survey.positions,
        *(segment.where for segment in survey.segments),
        *partitions_without_records(survey),
    }
    return ForeignCheckReport(
        archive=archive.url,
        layout=survey.layout,
        topics=len({partition.topic for partition in partitions}),
        partitions=len(partitions),
        partitions_without_records=len(
            partitions - {segment.where for segment in survey.segments if segment.end_offset > segment.base_offset}
        ),
        segments=len(survey.segments),
        records=sum(segment.records or 0 for segment in survey.segments),
        bytes=sum(segment.bytes for segment in survey.segments),
        deep=work is not None,
        faults=tuple(faults),
        unexplained=tuple(gap for gap in survey.gaps if gap.reason == GapReason.UNEXPLAINED),
        doubts=survey.doubts,
        interrupted=work is not None and read < len(survey.segments),
    )


def repair_foreign(archive: Archive) -> list[Fault]:
    """Repair indexes that are wrong or missing. UsageError if the layout has nothing to repair."""
    return repair_of(archive.surveyed.layout)(open_storage(archive.url, archive.options))


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
