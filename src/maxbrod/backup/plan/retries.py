"""Gaps that a later run may still read, corrupt or unexplained: which to read again now, and what that changes.

A damaged batch may be intact on the replica that leads today. Offsets that have left the log since are final.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maxbrod.backup.plan.tasks import PartitionRange
from maxbrod.catalog.rows import Gap, Segment
from maxbrod.model import MENDABLE, PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.backup.plan.assembly import Assembly
    from maxbrod.backup.plan.items import Outcome
    from maxbrod.backup.plan.states import PartitionBackup


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Read `range` again: the part of the row's offsets that the log still has."""

    row: Gap
    range: PartitionRange

    @property
    def partition(self) -> PartitionId:
        return PartitionId(topic_id=self.row.topic_id, partition=self.row.partition)

    @property
    def planned(self) -> tuple[int, int]:
        """The offsets to assemble."""
        return self.range.start, self.range.end


def plan_mending(rows: Iterable[Gap], plans: Mapping[PartitionId, PartitionBackup]) -> tuple[Retry, ...]:
    """Gaps of other reasons are ignored, as are gaps that the log no longer has.

    A partition without a plan is deleted, or not among this run's topics. Gaps that the run replaces anyway because the
    log was truncated, and gaps that the last stable offset has not reached again, are left to a later run.
    """
    retries = []
    for row in rows:
        plan = plans.get(PartitionId(topic_id=row.topic_id, partition=row.partition))
        if row.reason not in MENDABLE or plan is None:
            continue
        start = max(row.base_offset, plan.state.log_start)
        if start < row.end_offset <= min(plan.first, plan.state.end):
            retries.append(Retry(row=row, range=_range(row, start, plan.state.bytes_per_offset)))
    return tuple(retries)


def outcomes_by_retry(outcomes: Iterable[Outcome], retries: Sequence[Retry]) -> list[tuple[Retry, list[Outcome]]]:
    """Each retry with its outcomes. Retries of one partition do not overlap."""
    matched: list[tuple[Retry, list[Outcome]]] = [(each, []) for each in retries]
    places: dict[PartitionId, list[tuple[Retry, list[Outcome]]]] = {}
    for entry in matched:
        places.setdefault(entry[0].partition, []).append(entry)
    for outcome in outcomes:
        for retry, found in places.get(outcome.item.id, ()):
            if retry.range.start <= outcome.item.start < retry.range.end:
                found.append(outcome)
    return matched


def settle(retry: Retry, assembly: Assembly) -> list[Segment | Gap] | None:
    """The rows that replace the retry's row; None if the second reading found nothing new, or did not end."""
    if (assembly.first, assembly.reached) != retry.planned:
        return None
    if all(isinstance(row, Gap) and row.reason is retry.row.reason for row in assembly.rows):
        return None
    # Offsets that have left the log meanwhile keep their reason.
    head = [replace(retry.row, end_offset=retry.range.start)] if retry.row.base_offset < retry.range.start else []
    return [*head, *assembly.rows]


def _range(row: Gap, start: int, bytes_per_offset: float | None) -> PartitionRange:
    return PartitionRange(
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        start=start,
        end=row.end_offset,
        bytes_per_offset=bytes_per_offset,
    )
