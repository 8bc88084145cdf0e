"""The report of a restore into log directories: that of every restore, and what was written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from maxbrod.model import TopicPartition
from maxbrod.restore.report import RestoreReport, report_of
from maxbrod.restore.task import Restored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.layouts.logdir.writer import WrittenLog
    from maxbrod.restore.plan.plan import RestorePlan

_NO_MAP: dict[str, Any] = {"base": 0, "ranges": []}
"""Offsets stay the same."""


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
    restored = []
    for topic in plan.topics:
        for partition in topic.partitions:
            where = TopicPartition(topic=topic.target.name, partition=partition.source.partition)
            log = None if failures else logs.get(where)
            end, records = (0, 0) if log is None else (log.end, log.records)
            failure = dict(failures[where]) if where in failures else None
            restored.append(Restored(where=where, end=end, records=records, map=_NO_MAP, failure=failure))
    # A restore into log directories has no ACLs and quotas to report.
    return replace(report_of(plan, restored, started_at_ms=started_at_ms, resumed=resumed), access=None)
