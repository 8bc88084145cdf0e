"""The recovery point: the newest moment up to which everything is archived. Pure, and the only place that defines it.

Each partition has a recovery point of its own: when the last run began that asked for the end of its log and has
committed everything below. The recovery point of several partitions is their oldest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maxbrod.model import PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far a run has come with one partition that it chose."""

    end: int | None
    """The end of its log at planning, the last stable offset; None where no leader could be asked."""
    archived: int
    """The first offset that the catalog does not answer for: what is committed, nothing else."""
    sound: bool = True
    """False if the run reports offsets of it as damaged, unexplained or not read."""
    put_off: bool = False
    """Left in the log on purpose, until more has come."""
    held_back: bool = False
    """An open transaction keeps the rest of the log from being read."""
    held_since_ms: int | None = None
    """When the oldest such transaction began; None where nobody knows."""

    @property
    def complete(self) -> bool:
        """Whether everything up to the end of the log is archived or explained."""
        return self.end is not None and self.sound and self.archived >= self.end

    @property
    def behind(self) -> bool:
        """Whether the run was to archive more than it has."""
        return not self.complete and not self.put_off


def oldest(points: Iterable[int | None]) -> int | None:
    """The recovery point of partitions with these: None where there are none, or where one has none."""
    found = list(points)
    known = [each for each in found if each is not None]
    return min(known) if known and len(known) == len(found) else None


def move_on(before: int | None, reach: Reach, *, began_at_ms: int) -> int | None:
    """The recovery point of a partition after a run that began at `began_at_ms`, from the one it had `before`."""
    if not reach.complete:
        return before
    if not reach.held_back:
        return began_at_ms
    # Everything below the transaction's first record is archived; what others wrote behind it waits as well.
    if reach.held_since_ms is None:
        return before
    held_since_ms = min(reach.held_since_ms, began_at_ms)
    return held_since_ms if before is None else max(before, held_since_ms)


def behind(reaches: Mapping[PartitionId, Reach]) -> dict[PartitionId, int | None]:
    """Partitions that are not archived as far as the run was to, each with the end of its log, None if unknown."""
    return {partition: reach.end for partition, reach in reaches.items() if reach.behind}
