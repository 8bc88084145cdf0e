"""Which partitions a backup that follows puts off until more has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.backup.plan.rolling import due, track_waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.backup.plan.rolling import RollLimits
    from maxbrod.backup.plan.states import PartitionBackup
    from maxbrod.model import PartitionId


class Waiting:
    """Remembers from run to run. What it forgets by a crash is read at once: nothing of it is needed for safety."""

    def __init__(self, limits: RollLimits) -> None:
        self._limits = limits
        self._since_ms: dict[PartitionId, int] = {}

    @property
    def any(self) -> bool:
        """Whether the last run has put anything off."""
        return bool(self._since_ms)

    def choose(
        self, plans: Sequence[PartitionBackup], *, now_ms: int
    ) -> tuple[list[PartitionBackup], list[PartitionBackup]]:
        """What is read now, and what waits."""
        since_ms = track_waiting(self._since_ms, plans, now_ms=now_ms)
        chosen: list[PartitionBackup] = []
        put_off: list[PartitionBackup] = []
        for plan in plans:
            partition = plan.state.id
            waiting_since_ms = since_ms.get(partition)
            if plan.idle or due(plan, waiting_since_ms=waiting_since_ms, now_ms=now_ms, limits=self._limits):
                chosen.append(plan)
                since_ms.pop(partition, None)
            else:
                put_off.append(plan)
        self._since_ms = since_ms
        return chosen, put_off
