"""From the tasks' reports about one partition to rows that tile its offsets: each row is data, or a gap with a reason.

Rows follow the slices, not the borders of the ranges: a batch belongs to the range that contains its base offset, so
the last batch of a range may reach into the next one. The rows of a partition end with the first range that was not
read to its end. The next run reads what later ranges hold, and their objects become garbage. A deleted topic cannot be
read again: everything that was read of it is kept, and the rest becomes a gap `deleted`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from maxbrod.backup.notices import about
from maxbrod.backup.plan.evidence import DefaultReason, Evidence, collect, impossible
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Segment
from maxbrod.catalog.schema import Kind
from maxbrod.catalog.tiling import Overlap, UncoveredRange, find_tiling_faults
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_INCOMPLETE
from maxbrod.model import GapReason, PartitionId, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.backup.plan.items import Outcome
    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.notices import Notice

_HINTS: Final = {
    GapReason.CORRUPT: "a later run reads these offsets again, from an intact replica if one leads by then",
    GapReason.UNEXPLAINED: "a later run reads these offsets again; compare with kafka-dump-log on the leader",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Rows that tile [first, reached), in order, and the notices about them."""

    partition: PartitionId
    first: int
    reached: int
    rows: tuple[Segment | Gap, ...]
    notices: tuple[Notice, ...]


def assemble(
    partition: PartitionId,
    planned: tuple[int, int],
    outcomes: Sequence[Outcome],
    *,
    topic: str,
    compacted: bool,
    run_id: str,
    written_at: int,
    log_start: int = 0,
    first_time: bool = False,
) -> Assembly:
    """The rows of one partition for the planned offsets [first, end).

    No task was given offsets below `log_start`, the start of the log at planning. On the first run of a partition its
    first batch may begin before the first requested offset: the rows then begin with that batch.
    CorruptDataError: the tasks' reports are inconsistent, and nothing of them may be committed.
    """
    evidence = collect(partition, planned, outcomes, log_start=log_start, first_time=first_time)
    default: DefaultReason = GapReason.COMPACTED if compacted else GapReason.UNEXPLAINED
    author = _Author(topic, partition, run_id, written_at, evidence, default)
    cursor = evidence.first
    for found in evidence.slices:
        author.add_gaps(cursor, found.base_offset)
        author.add_segment(found)
        cursor = found.end_offset
    author.add_gaps(cursor, evidence.reached)
    failure = evidence.failure
    if failure is not None:
        author.notify("failed", evidence.reached, planned[1], failure.message, failure.hint, EXIT_INCOMPLETE)
    return Assembly(
        partition=partition,
        first=evidence.first,
        reached=evidence.reached,
        rows=tuple(author.rows),
        notices=tuple(author.notices),
    )


def check_tiling(rows: Sequence[Segment | Gap], expected: Mapping[PartitionId, tuple[int, int]]) -> None:
    """Prove that the rows of any number of partitions cover exactly the expected offsets [first, end), each once.

    This is the last check before a commit. CorruptDataError names the first offset where it fails.
    """
    tiling = find_tiling_faults(_tiling_table(rows), expected)
    faults: tuple[UncoveredRange | Overlap, ...] = (*tiling.holes, *tiling.overlaps)
    for fault in faults:
        what = f"offsets {fault.first_offset} to {fault.end_offset} are not covered exactly once"
        raise impossible(what, fault.partition, fault.first_offset)
    for row in rows:
        partition = PartitionId(topic_id=row.topic_id, partition=row.partition)
        first, end = expected.get(partition, (0, 0))
        if row.base_offset < first or row.end_offset > end:
            what = f"a row from {row.base_offset} to {row.end_offset} is outside of {first} to {end}"
            raise impossible(what, partition, row.base_offset)


def _tiling_table(rows: Sequence[Segment | Gap]) -> pa.Table:
    return pa.table(
        {
            "topic_id": pa.array([row.topic_id for row in rows], pa.string()),
            "partition": pa.array([row.partition for row in rows], pa.int32()),
            "base_offset": pa.array([row.base_offset for row in rows], pa.int64()),
            "end_offset": pa.array([row.end_offset for row in rows], pa.int64()),
            "kind": pa.array([str(Kind.DATA if isinstance(row, Segment) else Kind.GAP) for row in rows], pa.string()),
        }
    )


def _exit_code(reason: GapReason) -> int:
    """The exit code of a run that reports such offsets. A new reason fails at type checking: it must be put here."""
    match reason:
        case GapReason.CORRUPT:
            return EXIT_CORRUPT
        case GapReason.UNEXPLAINED:
            return EXIT_INCOMPLETE
        case (
            GapReason.COMPACTED
            | GapReason.RETENTION
            | GapReason.TRUNCATED
            | GapReason.PRUNED
            | GapReason.DELETED
            | GapReason.UNRECORDED
        ):
            return EXIT_DONE


@dataclass(slots=True)
class _Author:
    """Writes the rows of one partition and the notices about them."""

    topic: str
    partition: PartitionId
    run_id: str
    written_at: int
    evidence: Evidence
    default: DefaultReason
    rows: list[Segment | Gap] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    def add_gaps(self, first: int, end: int) -> None:
        if first >= end:
            return
        for part in self.evidence.explain(first, end, default=self.default):
            self.rows.append(Gap(**self._shared(), base_offset=part.first, end_offset=part.end, reason=part.reason))
            if part.reason is not GapReason.COMPACTED:
                self._notify_reason(part.reason, part.first, part.end, part.message)

    def add_segment(self, found: Slice) -> None:
        """A slice with fewer records than offsets has a reason, as a gap has."""
        first, end = found.base_offset, found.end_offset
        missing = end - first - found.records
        damages = [each for each in self.evidence.marks_within(first, end) if each.reason is GapReason.CORRUPT]
        reason = None if not missing else GapReason.CORRUPT if damages else self.default
        values = {name: getattr(found, name) for name in SLICE_FIELDS}
        self.rows.append(Segment(**self._shared(), **values, reason=reason))
        if reason is GapReason.CORRUPT:
            for damage in damages:
                self._notify_reason(reason, damage.offset, end, damage.message)
        elif reason is GapReason.UNEXPLAINED:
            self._notify_reason(reason, first, end, f"{missing} of these offsets have no record, and nothing says why")

    def notify(self, kind: str, first: int, end: int, message: str, hint: str | None, exit_code: int) -> None:
        where = TopicPartition(topic=self.topic, partition=self.partition.partition)
        self.notices.append(about(where, kind, message, (first, end), hint=hint, exit_code=exit_code))

    def _notify_reason(self, reason: GapReason, first: int, end: int, message: str) -> None:
        self.notify(str(reason), first, end, message, _HINTS.get(reason), _exit_code(reason))

    def _shared(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "topic_id": self.partition.topic_id,
            "partition": self.partition.partition,
            "run_id": self.run_id,
            "written_at": self.written_at,
        }
