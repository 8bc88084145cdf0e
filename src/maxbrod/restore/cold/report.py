"""The report of a restore into log directories: that of every restore, and what was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maxbrod.model import TopicPartition, now_ms
from maxbrod.restore.plan.request import OffsetsMode
from maxbrod.restore.report import PartitionReport, RestoreReport, known_by_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.layouts.logdir.log_writing import WrittenLog
    from maxbrod.restore.plan.plan import PartitionRestore, RestorePlan

_NOWHERE: dict[str, Any] = {"base": 0, "ranges": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReport:
    restore: RestoreReport
    directories: tuple[str, ...]
    bytes: int
    """The size of the logs, over all replicas."""
    segments: int
    batches_lowered: int
    """Batches whose leader epoch was lowered to the target's."""
    remembered: bool
    """Whether the archive holds plan and report, so that 'maxbrod groups' and 'maxbrod compare' find them."""

    @property
    def exit_code(self) -> int:
        return self.restore.exit_code

    @property
    def complete(self) -> bool:
        return self.restore.complete

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.restore.as_dict(),
            "directories": list(self.directories),
            "bytes": self.bytes,
            "segments": self.segments,
            "batches_lowered": self.batches_lowered,
            "remembered": self.remembered,
        }


def cold_report_of(
    plan: RestorePlan,
    logs: Mapping[TopicPartition, WrittenLog],
    failures: Mapping[TopicPartition, Mapping[str, Any]],
    *,
    started_at_ms: int,
    resumed: bool,
) -> RestoreReport:
    """If any partition failed, none is in place."""
    placed = {} if failures else logs
    partitions = [
        _partition(topic.target.source_topic, topic.target.name, each, placed, failures)
        for topic in plan.topics
        for each in topic.partitions
    ]
    return RestoreReport(
        restore_id=plan.restore_id,
        archive=plan.archive.url,
        cluster_id=plan.cluster_id,
        started_at_ms=started_at_ms,
        finished_at_ms=now_ms(),
        resumed=resumed,
        partitions=tuple(partitions),
        warnings=tuple(map(str, plan.obstacles)),
        **known_by_plan(plan),
    )


def _partition(
    source: str,
    target: str,
    planned: PartitionRestore,
    logs: Mapping[TopicPartition, WrittenLog],
    failures: Mapping[TopicPartition, Mapping[str, Any]],
) -> PartitionReport:
    where = TopicPartition(topic=target, partition=planned.source.partition)
    log = logs.get(where)
    return PartitionReport(
        source=source,
        target=target,
        partition=where.partition,
        offsets=str(OffsetsMode.EXACT),
        records=0 if log is None else log.records,
        end=0 if log is None else log.end,
        map=_NOWHERE,
        failure=failures.get(where),
    )
