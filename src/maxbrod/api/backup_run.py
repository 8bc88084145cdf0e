"""One run of a backup while it is under way: what it has found, what waits to be committed, what it will report."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maxbrod.api.reports import BackupReport, Notice, TopicReport
from maxbrod.catalog.rows import Gap, PartitionId, Row, Segment
from maxbrod.catalog.run_ids import new_run_id, now_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.planning.findings import Finding
    from maxbrod.planning.states import PartitionPlan

__all__ = ["BackupRun", "new_run_id", "now_ms"]


@dataclass(slots=True)
class _TopicTotals:
    topic: str
    topic_id: str
    partitions: set[int] = field(default_factory=set)
    records: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    gaps: Counter[str] = field(default_factory=Counter)
    waiting: int = 0


@dataclass(slots=True)
class BackupRun:
    """Not yet in the catalog, unless `committed` says so."""

    run_id: str = field(default_factory=new_run_id)
    started_at_ms: int = field(default_factory=now_ms)
    rows: list[Row] = field(default_factory=list)
    """To be committed next."""
    replaced: list[Row] = field(default_factory=list)
    taken_back: dict[PartitionId, list[Row]] = field(default_factory=dict)
    """Of partitions of which nothing stays: all their rows. They go with the commit that has something new of them."""
    notices: list[Notice] = field(default_factory=list)
    plans: dict[PartitionId, PartitionPlan] = field(default_factory=dict)
    stopped: set[PartitionId] = field(default_factory=set)
    """Partitions that could not be read on; later waves leave them out."""
    again: set[str] = field(default_factory=set)
    """Topics that are to be planned afresh."""
    recovery_point_ms: int | None = None
    """Where it lies before the run's own beginning."""
    interrupted: bool = False
    committed: bool = False
    objects: set[str] = field(default_factory=set)
    totals: dict[str, _TopicTotals] = field(default_factory=dict)

    def add(self, rows: Iterable[Segment | Gap]) -> None:
        for row in rows:
            self.rows.append(row)
            totals = self._of(row.topic, row.topic_id)
            totals.partitions.add(row.partition)
            if isinstance(row, Gap):
                totals.gaps[row.reason] += row.end_offset - row.base_offset
                continue
            totals.records += row.records
            totals.bytes += row.bytes
            totals.raw_bytes += row.raw_bytes
            self.objects.add(row.path)

    def take_back(self, *, everything: bool) -> list[Row]:
        """The rows that go with the next commit: of partitions that it has rows of, or of all."""
        new = {
            PartitionId(topic_id=row.topic_id, partition=row.partition)
            for row in (self.rows if self.taken_back else ())
            if isinstance(row, Segment | Gap)
        }
        going = [partition for partition in self.taken_back if everything or partition in new]
        return [row for partition in going for row in self.taken_back.pop(partition)]

    @property
    def going(self) -> list[Row]:
        """All rows that go with the run's last commit."""
        return [*self.replaced, *(row for rows in self.taken_back.values() for row in rows)]

    def plan(self, partition: PartitionId, plan: PartitionPlan) -> None:
        self.plans[partition] = plan
        self._of(plan.state.topic, plan.state.topic_id).partitions.add(partition.partition)

    def wait(self, partition: PartitionId, offsets: int) -> None:
        """So many offsets of a partition are in its log and not in the archive."""
        state = self.plans[partition].state
        self._of(state.topic, state.topic_id).waiting += offsets

    def note(self, finding: Finding) -> None:
        self.notices.append(
            Notice(
                kind=str(finding.kind),
                message=finding.message,
                topic=finding.topic,
                partition=finding.partition,
                first_offset=finding.first,
                end_offset=finding.end,
                hint=finding.hint,
                exit_code=finding.exit_code,
            )
        )

    def report(self, archive: str, version: int) -> BackupReport:
        topics = tuple(
            TopicReport(
                topic=each.topic,
                topic_id=each.topic_id,
                partitions=len(each.partitions),
                records=each.records,
                bytes=each.bytes,
                raw_bytes=each.raw_bytes,
                gaps=dict(each.gaps),
                waiting=each.waiting,
            )
            for each in sorted(self.totals.values(), key=lambda each: (each.topic, each.topic_id))
        )
        return BackupReport(
            run_id=self.run_id,
            archive=archive,
            started_at_ms=self.started_at_ms,
            finished_at_ms=now_ms(),
            topics=topics,
            notices=tuple(self.notices),
            objects=len(self.objects),
            version=version,
            committed=self.committed,
            recovery_point_ms=self.started_at_ms if self.recovery_point_ms is None else self.recovery_point_ms,
        )

    def statistics(self, report: BackupReport) -> dict[str, Any]:
        """What the catalog remembers of the run."""
        notices: dict[str, int] = defaultdict(int)
        for notice in self.notices:
            notices[notice.kind] += 1
        return {
            "command": "backup",
            "topics": len(report.topics),
            "partitions": sum(topic.partitions for topic in report.topics),
            "records": report.records,
            "bytes": report.bytes,
            "raw_bytes": report.raw_bytes,
            "objects": report.objects,
            "recovery_point_ms": report.recovery_point_ms,
            "complete": report.complete,
            "exit_code": report.exit_code,
            "notices": dict(notices),
            # Few, and worth keeping: each names offsets that want looking at.
            "findings": [str(notice) for notice in self.notices if notice.exit_code or notice.kind == "truncated"][
                :1000
            ],
        }

    def _of(self, topic: str, topic_id: str) -> _TopicTotals:
        return self.totals.setdefault(topic_id, _TopicTotals(topic, topic_id))
