"""One run of a backup while it is under way: what it has found, what waits to be committed, what it will report."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maxbrod.archive.recovery import Reach, behind, move_on, oldest
from maxbrod.backup.report import BackupReport, TopicReport, add_up
from maxbrod.catalog.rows import Gap, Row, Run, Segment
from maxbrod.catalog.run_ids import new_run_id
from maxbrod.model import PartitionId, now_ms
from maxbrod.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maxbrod.backup.plan.findings import Finding
    from maxbrod.backup.plan.states import PartitionBackup
    from maxbrod.kafka.state.open_transactions import OpenTransaction


@dataclass(slots=True)
class _TopicTotals:
    topic: str
    topic_id: str
    partitions: set[int] = field(default_factory=set)
    records: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    gaps: Counter[str] = field(default_factory=Counter)


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
    plans: dict[PartitionId, PartitionBackup] = field(default_factory=dict)
    stopped: set[PartitionId] = field(default_factory=set)
    """Partitions that could not be read on; later waves leave them out."""
    again: set[str] = field(default_factory=set)
    """Topics that are to be planned afresh."""
    present: frozenset[str] = frozenset()
    """The ids of all topics that the cluster has."""
    planned: bool = False
    """Whether the cluster was asked what it has."""
    unasked: dict[PartitionId, str] = field(default_factory=dict)
    """Chosen partitions whose offsets nobody would tell, and their topics' names."""
    ends: dict[PartitionId, int] = field(default_factory=dict)
    """How far the catalog has each planned partition: committed, nothing else."""
    put_off: set[PartitionId] = field(default_factory=set)
    """Partitions that wait for more."""
    suspect: set[PartitionId] = field(default_factory=set)
    """Partitions with damaged or unexplained offsets that the run was to read again."""
    held_since_ms: dict[PartitionId, int | None] = field(default_factory=dict)
    """Partitions that open transactions hold back: when the oldest began, None where nobody knows."""
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

    def plan(self, partition: PartitionId, plan: PartitionBackup) -> None:
        self.plans[partition] = plan
        self.unasked.pop(partition, None)
        self._of(plan.state.topic, plan.state.topic_id).partitions.add(partition.partition)

    def could_not_ask(self, partitions: Mapping[PartitionId, str]) -> None:
        self.unasked.update(partitions)
        for partition, topic in partitions.items():
            self._of(topic, partition.topic_id).partitions.add(partition.partition)

    def hold_back(self, partition: PartitionId, found: Sequence[OpenTransaction]) -> None:
        """By transactions that are open. What has none waits only because it was written since."""
        if found:
            began = [each.started_at_ms for each in found]
            self.held_since_ms[partition] = oldest(began)

    @contextmanager
    def as_committed(self, ends: Mapping[PartitionId, int]) -> Iterator[None]:
        """Within the block it tells what it will be true to tell once its rows are committed."""
        before, self.ends = self.ends, {partition: ends[partition] for partition in self.plans}
        before_committed, self.committed = self.committed, True
        try:
            yield
        finally:
            self.ends, self.committed = before, before_committed

    def has_committed(self, ends: Mapping[PartitionId, int]) -> None:
        """All rows so far, with which the catalog reaches to these ends."""
        self.rows, self.replaced, self.committed = [], [], True
        self.ends.update({partition: ends[partition] for partition in self.plans})

    def drop_uncommitted(self) -> None:
        """Report nothing of rows that the catalog may not have."""
        for row in self.rows:
            if isinstance(row, Run):
                continue
            totals = self._of(row.topic, row.topic_id)
            if isinstance(row, Gap):
                totals.gaps[row.reason] -= row.end_offset - row.base_offset
                continue
            totals.records -= row.records
            totals.bytes -= row.bytes
            totals.raw_bytes -= row.raw_bytes
            self.objects.discard(row.path)
        self.rows, self.replaced = [], []

    def reaches(self) -> dict[PartitionId, Reach]:
        """How far it has come with every partition that it chose."""
        grave = {(each.topic, each.partition) for each in self.notices if each.exit_code and each.topic is not None}
        asked = {
            partition: Reach(
                end=plan.end,
                archived=self.ends.get(partition, plan.first),
                sound=not grave & {(plan.state.topic, partition.partition), (plan.state.topic, None)}
                and partition not in self.suspect,
                put_off=partition in self.put_off,
                held_back=partition in self.held_since_ms,
                held_since_ms=self.held_since_ms.get(partition),
            )
            for partition, plan in self.plans.items()
        }
        return {**asked, **{each: Reach(end=None, archived=0) for each in self.unasked}}

    def recovery_points(self, before: Mapping[PartitionId, int | None]) -> dict[PartitionId, int | None]:
        """Of every partition that it chose, and of others that it did not, as they were, while the cluster has them."""
        kept = {partition: point for partition, point in before.items() if partition.topic_id in self.present}
        mine = {
            partition: move_on(before.get(partition), reach, began_at_ms=self.started_at_ms)
            for partition, reach in self.reaches().items()
        }
        return {**kept, **mine}

    def recovery_point(self, points: Mapping[PartitionId, int | None]) -> int | None:
        """Of the partitions that it chose; where there are none, nothing has been missed."""
        chosen = {*self.plans, *self.unasked}
        return oldest(points.get(each) for each in chosen) if chosen else self.started_at_ms

    def behind(self, before: Mapping[PartitionId, int | None]) -> dict[PartitionId, int | None]:
        """Partitions that are not archived as far as they were to be; those that it did not choose as they were."""
        reaches = self.reaches()
        kept = {each: end for each, end in before.items() if each not in reaches and each.topic_id in self.present}
        return {**kept, **behind(reaches)}

    def lags(self) -> dict[str, int | None] | None:
        """Of each topic, how many offsets the cluster has and the archive has not; None: unknown."""
        if not self.planned:
            return None
        found: dict[str, int | None] = {}
        for topic_id, lag in self._lags_by_id().items():
            topic = self.totals[topic_id].topic
            found[topic] = add_up((found.get(topic, 0), lag))
        return found

    def _lags_by_id(self) -> dict[str, int | None]:
        found: dict[str, int | None] = dict.fromkeys(self.totals, 0)
        for partition, plan in self.plans.items():
            lag = max(plan.state.high_watermark - self.ends.get(partition, plan.first), 0)
            found[partition.topic_id] = add_up((found[partition.topic_id], lag))
        unknown = {each.topic_id for each in self.unasked} if self.planned else self.totals
        return {**found, **dict.fromkeys(unknown)}

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

    def report(self, archive: str, version: int, recovery_point_ms: int | None) -> BackupReport:
        lags = self._lags_by_id()
        topics = tuple(
            TopicReport(
                topic=each.topic,
                topic_id=each.topic_id,
                partitions=len(each.partitions),
                records=each.records,
                bytes=each.bytes,
                raw_bytes=each.raw_bytes,
                gaps=dict(+each.gaps),
                waiting=lags[each.topic_id],
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
            recovery_point_ms=recovery_point_ms,
            planned=self.planned,
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
