"""When a backup that follows reads a partition: larger segments instead of a few records at every interval.

Records that wait in the log are not archived yet, so these limits bound how fresh a backup can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.backup.plan.states import PartitionBackup
    from maxbrod.model import PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class RollLimits:
    """A partition is read when it reaches any of these. With an age of 0, the default, every interval reads all."""

    bytes: int | None = None
    records: int | None = None
    age_ms: int = 0


class RollSchedule:
    """Remembers from run to run since when partitions wait.

    A crash loses this, and the next run then counts from its own start: safety does not depend on it.
    """

    def __init__(self, limits: RollLimits, by_topic: Mapping[str, RollLimits] | None = None) -> None:
        """`by_topic`: limits of topics that have their own."""
        self._limits, self._by_topic = limits, by_topic or {}
        self._since_ms: dict[PartitionId, int] = {}

    @property
    def any(self) -> bool:
        """True if the last run has deferred any partition."""
        return bool(self._since_ms)

    def choose(
        self, plans: Sequence[PartitionBackup], *, now_ms: int
    ) -> tuple[list[PartitionBackup], list[PartitionBackup]]:
        """The plans to carry out now, and those to defer."""
        since_ms = track_waiting(self._since_ms, plans, now_ms=now_ms)
        deferred = {
            plan.state.id: plan
            for plan in plans
            if not plan.idle
            and not due(
                plan,
                waiting_since_ms=since_ms.get(plan.state.id),
                now_ms=now_ms,
                limits=self._by_topic.get(plan.state.topic, self._limits),
            )
        }
        self._since_ms = {partition: since for partition, since in since_ms.items() if partition in deferred}
        return [plan for plan in plans if plan.state.id not in deferred], list(deferred.values())


def due(plan: PartitionBackup, *, waiting_since_ms: int | None, now_ms: int, limits: RollLimits) -> bool:
    """True if this interval reads the partition; `waiting_since_ms` is when `track_waiting` first saw it wait.

    Offsets that retention deleted, and truncations, are recorded at once.
    """
    if plan.idle:
        return False
    if plan.gap is not None or plan.truncated_at is not None:
        return True
    if limits.bytes is not None and plan.bytes_estimate >= limits.bytes:
        return True
    # Offsets count as records: only reading the records would tell the difference.
    if limits.records is not None and plan.end - plan.start >= limits.records:
        return True
    since_ms = now_ms if waiting_since_ms is None else waiting_since_ms
    return now_ms - since_ms >= limits.age_ms


def track_waiting(
    waiting_since_ms: Mapping[PartitionId, int], plans: Iterable[PartitionBackup], *, now_ms: int
) -> dict[PartitionId, int]:
    """Since when each partition has had something to read; partitions without anything are dropped.

    Drop a partition that was read, so that what arrives later counts from the next interval on.
    """
    partitions = (plan.state.id for plan in plans if not plan.idle)
    return {partition: waiting_since_ms.get(partition, now_ms) for partition in partitions}
