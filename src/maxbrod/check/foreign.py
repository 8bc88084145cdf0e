"""The check of an archive in another tool's layout: its metadata, and with `deep` every record."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from maxbrod.archive.surveyed import partitions_without_records
from maxbrod.batch.columns import number_column
from maxbrod.check.problems import Verdict
from maxbrod.errors import BatchLimitError, MaxbrodError, UsageError
from maxbrod.layouts.foreign import Fault, ForeignSegment, describe, described
from maxbrod.layouts.registry import layout_of, repair_of
from maxbrod.model import GapReason
from maxbrod.storage.stores import open_storage
from maxbrod.work.executor import Workers
from maxbrod.work.preflight import needs_storage
from maxbrod.work.progress import Meter, OnProgress, silent
from maxbrod.work.reach import Place
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.config import SparkConfig
    from maxbrod.layouts.foreign import Doubt, ForeignGap
    from maxbrod.storage.interface import Storage
    from maxbrod.work.session import Session

_TASKS_PER_CORE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCheckReport:
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
    """What the archive cannot prove."""

    @property
    def verdict(self) -> Verdict:
        """Repaired faults and doubts do not fail a check."""
        if any(fault.fatal for fault in self.faults):
            return Verdict.DAMAGED
        if self.unexplained:
            return Verdict.INCOMPLETE
        return Verdict.SOUND if self.deep else Verdict.WHOLE

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict, "exit_code": self.exit_code}


def check_foreign(
    archive: Archive,
    spark: SparkConfig | None = None,
    *,
    session: Session | None = None,
    on_progress: OnProgress = silent,
) -> ForeignCheckReport:
    """Check an archive; with `spark` deep, which reads every segment."""
    survey = archive.survey
    if survey is None:
        raise UsageError("this archive is in our own layout", object_name=archive.url)
    storage = open_storage(archive.url, archive.options)
    faults = list(layout_of(survey.layout).check(storage, survey, deep=False))
    if spark is not None:
        needs = needs_storage(archive.url, archive.options)
        with Workers(spark, needs=needs, session=session, on_progress=on_progress) as workers:
            described = [(segment.bytes, describe(survey.layout, segment)) for segment in survey.segments]
            total = sum(segment.bytes for segment in survey.segments)
            executor = workers.for_bytes(total)
            tasks = spread(described, _TASKS_PER_CORE * executor.parallelism)
            meter = Meter(on_progress, "checking", total)
            meter.begin(len(tasks), total)
            known = {(fault.path, fault.offset) for fault in faults}
            place = Place(url=archive.url, storage=archive.options)
            found = executor.run(check_segments, place, tasks, name="check", on_done=meter.tasks_done)
            faults += [each for each in found if (each.path, each.offset) not in known]
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
        deep=spark is not None,
        faults=tuple(faults),
        unexplained=tuple(gap for gap in survey.gaps if gap.reason == GapReason.UNEXPLAINED),
        doubts=survey.doubts,
    )


def repair_foreign(archive: Archive) -> list[Fault]:
    """Repair indexes that are wrong or missing. UsageError if the layout has nothing to repair."""
    if archive.survey is None:
        raise UsageError("this archive is in our own layout", object_name=archive.url)
    return repair_of(archive.survey.layout)(open_storage(archive.url, archive.options))


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
