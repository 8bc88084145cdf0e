"""When a run that follows reads a partition: not at every interval a few records, where larger segments are wanted.

A backup is only as fresh as this lets it be: what waits in the log is not archived yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maxbrod.backup.plan.states import PartitionBackup
    from maxbrod.model import PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class RollLimits:
    """Whichever is reached first. With an age of 0, the default, everything is read at every interval."""

    bytes: int | None = None
    records: int | None = None
    age_ms: int = 0


def due(plan: PartitionBackup, *, waiting_since_ms: int | None, now_ms: int, limits: RollLimits) -> bool:
    """Whether this interval reads the partition; `waiting_since_ms` is when `track_waiting` first saw it wait.

    What is no longer in the log, or no longer true of it, is written down at once.
    """
    if plan.idle:
        return False
    if plan.gap is not None or plan.truncated_at is not None:
        return True
    if limits.bytes is not None and plan.bytes_estimate >= limits.bytes:
        return True
    # Offsets count as records: telling them apart would need the records.
    if limits.records is not None and plan.end - plan.start >= limits.records:
        return True
    since_ms = now_ms if waiting_since_ms is None else waiting_since_ms
    return now_ms - since_ms >= limits.age_ms


def track_waiting(
    waiting_since_ms: Mapping[PartitionId, int], plans: Iterable[PartitionBackup], *, now_ms: int
) -> dict[PartitionId, int]:
    """Since when each partition has had something to read; those that have nothing are forgotten.

    Drop a partition that was read, so that what has come since counts from the next interval on.
    """
    partitions = (plan.state.id for plan in plans if not plan.idle)
    return {partition: waiting_since_ms.get(partition, now_ms) for partition in partitions}
