"""Gaps that want looking at, corrupt or unexplained: which can be read again now, and what a second look changes.

A damaged batch may be sound on the replica that leads today. What has left the log since is final, and stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maxbrod.backup.plan.tasks import PartitionRange
from maxbrod.catalog.rows import Gap
from maxbrod.model import MENDABLE, PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.backup.plan.assembly import Assembly
    from maxbrod.backup.plan.items import Outcome
    from maxbrod.backup.plan.states import PartitionBackup
    from maxbrod.catalog.rows import Segment


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
        """What to assemble."""
        return self.range.start, self.range.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Mending:
    retries: tuple[Retry, ...]
    final: tuple[Gap, ...]
    """Nothing of these can be read any more."""


def plan_mending(rows: Iterable[Gap], plans: Mapping[PartitionId, PartitionBackup]) -> Mending:
    """Rows of other reasons are passed over. A partition without a plan is gone, or not of this run's topics: final.

    So are, for now, rows that the run replaces anyway because the log was truncated, and those that the last stable
    offset has not reached again.
    """
    retries, final = [], []
    for row in rows:
        if row.reason not in MENDABLE:
            continue
        plan = plans.get(PartitionId(topic_id=row.topic_id, partition=row.partition))
        start = row.end_offset if plan is None else max(row.base_offset, plan.state.log_start)
        if plan is None or start >= row.end_offset:
            final.append(row)
        elif row.end_offset <= min(plan.first, plan.state.end):
            retries.append(Retry(row=row, range=_range(row, start, plan.state.bytes_per_offset)))
    return Mending(retries=tuple(retries), final=tuple(final))


def sort_out(
    outcomes: Iterable[Outcome], retries: Sequence[Retry]
) -> tuple[list[Outcome], list[tuple[Retry, list[Outcome]]]]:
    """Outcomes of the run's new ranges, and those of each retry."""
    mended: list[tuple[Retry, list[Outcome]]] = [(each, []) for each in retries]
    places: dict[PartitionId, list[tuple[Retry, list[Outcome]]]] = {}
    for entry in mended:
        places.setdefault(entry[0].partition, []).append(entry)
    fresh: list[Outcome] = []
    for outcome in outcomes:
        item = outcome.item
        candidates = places.get(item.id, ())
        mine = (found for retry, found in candidates if retry.range.start <= item.start < retry.range.end)
        next(mine, fresh).append(outcome)
    return fresh, mended


def settle(retry: Retry, assembly: Assembly) -> list[Segment | Gap] | None:
    """The rows that take the place of the retry's row; None where a second look found nothing new, or no answer."""
    if (assembly.first, assembly.reached) != retry.planned:
        return None
    if all(isinstance(row, Gap) and row.reason is retry.row.reason for row in assembly.rows):
        return None
    # What has left the log meanwhile was corrupt or unexplained before that, and remains so.
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
