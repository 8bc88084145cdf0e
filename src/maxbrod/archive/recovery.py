"""The recovery point: the newest moment up to which everything is archived. Pure. Only this module defines it.

Each partition has its own recovery point: the start of the last run that read the end of its log and has committed
everything below. The recovery point of several partitions is the oldest of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maxbrod.model import PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The state in which a run has left one of its partitions."""

    end: int | None
    """The last stable offset at planning; None if no leader answered."""
    archived: int
    """The first offset that the catalog does not account for. Only committed rows count."""
    sound: bool = True
    """False if the run reports offsets as damaged, unexplained or not read."""
    put_off: bool = False
    """Left in the log on purpose, until there is more."""
    held_back: bool = False
    """An open transaction keeps the rest of the log from being read."""
    held_since_ms: int | None = None
    """When the oldest such transaction began; None if unknown."""

    @property
    def complete(self) -> bool:
        """True if everything up to the end of the log is archived or explained."""
        return self.end is not None and self.sound and self.archived >= self.end

    @property
    def behind(self) -> bool:
        """True if the run should have archived more than it has."""
        return not self.complete and not self.put_off


def oldest(points: Iterable[int | None]) -> int | None:
    """The recovery point of several partitions: None if there are none, or if one of them has none."""
    found = list(points)
    known = [point for point in found if point is not None]
    return min(known) if known and len(known) == len(found) else None


def move_on(before: int | None, reach: Reach, *, began_at_ms: int) -> int | None:
    """The recovery point of a partition after a run that began at `began_at_ms`, given the one `before`."""
    if not reach.complete:
        return before
    if not reach.held_back:
        return began_at_ms
    # Everything before the first record of the transaction is archived. Later records of others wait with it.
    if reach.held_since_ms is None:
        return before
    held_since_ms = min(reach.held_since_ms, began_at_ms)
    return held_since_ms if before is None else max(before, held_since_ms)


def behind(reaches: Mapping[PartitionId, Reach]) -> dict[PartitionId, int | None]:
    """Partitions that the run should have archived further, with the end of each log, None if unknown."""
    return {partition: reach.end for partition, reach in reaches.items() if reach.behind}
