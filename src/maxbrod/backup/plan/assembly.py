"""From what the tasks found of one partition to rows that tile its offsets: each is data, or a gap with a reason.

Rows follow the slices, not the borders of the ranges: a batch belongs to the range with its base offset, so the last
one of a range may reach into the next. A partition's rows end where the first range that was not read to its end does;
what later ranges hold is left for the next run, and their objects are garbage. Only of a topic that is gone nothing
can be read again: then everything is kept that was read, and what is missing is `deleted`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from maxbrod.backup.plan.evidence import collect, impossible
from maxbrod.backup.plan.findings import Finding, FindingKind
from maxbrod.backup.plan.holes import explain, marks_within
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Segment
from maxbrod.catalog.schema import Kind
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.model import GapReason, PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.backup.plan.evidence import Evidence
    from maxbrod.backup.plan.items import Outcome
    from maxbrod.catalog.tiling import Overlap, UncoveredRange
    from maxbrod.layouts.kafka.slices import Slice

_HINTS: Final = {
    FindingKind.CORRUPT: "a later run reads these offsets again, from a sound replica if one leads by then",
    FindingKind.UNEXPLAINED: "a later run reads these offsets again; compare with kafka-dump-log on the leader",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Rows that tile [first, reached), in order, and what there is to say about them."""

    partition: PartitionId
    first: int
    reached: int
    rows: list[Segment | Gap]
    findings: list[Finding]


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
    """The rows of one partition, of which the offsets [first, end) in `planned` were to be answered for.

    Those below `log_start`, as it was at planning, were given to nobody to read. The first time that a partition is
    met, its first batch may begin before the first offset that was asked for: then the rows begin there.
    CorruptDataError: what the tasks say cannot be, and nothing of it may be committed.
    """
    evidence = collect(partition, planned, outcomes, log_start=log_start, first_time=first_time)
    otherwise = GapReason.COMPACTED if compacted else GapReason.UNEXPLAINED
    author = _Author(topic, partition, run_id, written_at, evidence, otherwise)
    cursor = evidence.first
    for found in evidence.slices:
        author.explain(cursor, found.base_offset)
        author.describe(found)
        cursor = found.end_offset
    author.explain(cursor, evidence.reached)
    failure = evidence.failure
    if failure is not None:
        author.find(FindingKind.FAILED, evidence.reached, planned[1], failure.message, failure.hint)
    return Assembly(
        partition=partition,
        first=evidence.first,
        reached=evidence.reached,
        rows=author.rows,
        findings=author.findings,
    )


def check_tiling(rows: Sequence[Segment | Gap], expected: Mapping[PartitionId, tuple[int, int]]) -> None:
    """Prove that rows, of any number of partitions, cover exactly the expected offsets [first, end), each once.

    The last look before a commit: CorruptDataError names the first offset where it does not hold.
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
            what = f"a row reaches from {row.base_offset} to {row.end_offset}, out of {first} to {end}"
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


@dataclass(slots=True)
class _Author:
    """Writes the rows of one partition, and what there is to say about them."""

    topic: str
    partition: PartitionId
    run_id: str
    written_at: int
    evidence: Evidence
    otherwise: GapReason
    rows: list[Segment | Gap] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def explain(self, first: int, end: int) -> None:
        if first >= end:
            return
        for part in explain(first, end, self.evidence.accounts, self.evidence.marks, otherwise=self.otherwise):
            self.rows.append(
                Gap(**self._shared(), base_offset=part.first, end_offset=part.end, reason=part.reason),
            )
            if part.reason is not GapReason.COMPACTED:
                self.find(FindingKind(part.reason), part.first, part.end, part.message)

    def describe(self, found: Slice) -> None:
        """A slice with fewer records than offsets says why, as a gap does."""
        first, end = found.base_offset, found.end_offset
        missing = end - first - found.records
        damages = [each for each in marks_within(first, end, self.evidence.marks) if each.reason is GapReason.CORRUPT]
        reason = None if not missing else GapReason.CORRUPT if damages else self.otherwise
        values = {name: getattr(found, name) for name in SLICE_FIELDS}
        self.rows.append(Segment(**self._shared(), **values, reason=reason))
        if reason is GapReason.CORRUPT:
            for each in damages:
                self.find(FindingKind.CORRUPT, each.offset, end, each.message)
        elif reason is GapReason.UNEXPLAINED:
            self.find(
                FindingKind.UNEXPLAINED, first, end, f"{missing} of these offsets have no record, and nothing says why"
            )

    def find(self, kind: FindingKind, first: int, end: int, message: str, hint: str | None = None) -> None:
        self.findings.append(
            Finding(
                kind=kind,
                topic=self.topic,
                partition=self.partition.partition,
                first=first,
                end=end,
                message=message,
                hint=hint or _HINTS.get(kind),
            )
        )

    def _shared(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "topic_id": self.partition.topic_id,
            "partition": self.partition.partition,
            "run_id": self.run_id,
            "written_at": self.written_at,
        }
