"""The report of an ingress from a tree: its work, and the state of each partition."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from maxbrod.errors import EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE

if TYPE_CHECKING:
    from maxbrod.replicate.seed.queue import QueueCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePartition:
    region: str
    topic: str
    partition: int
    destination: str
    state: str
    """`starting`, `first segment`, `catching up`, `in step`, `late segment`, `standby` or `faulted`."""
    fault: str | None
    checkpoint: int | None
    """The last source offset at the destination."""
    segments_waiting: int
    segments_read: int
    records: int
    """Produced by this process."""
    lost: tuple[tuple[int, int], ...]
    """Ranges of offsets, both inclusive, that were given up, or that the source had deleted."""
    deleted: tuple[tuple[int, int], ...]
    """Those of `lost` that the source had deleted before egress read them."""
    lag_ms: int | None
    """How old the oldest record of the last batch was when it was produced."""
    lag_offsets: int | None = None
    """How many offsets the source had, when its egress last said so, and the destination lacks; None: unknown."""
    checkpoints_saved: int = 0
    unreadable: int = 0
    """Attempts to read a segment that was gone or damaged."""
    faults: int = 0
    """Attempts that a broker or the store did not answer, or refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    archive: str
    delivery: str
    started_at_ms: int
    finished_at_ms: int
    partitions: tuple[TreePartition, ...]
    notifications: QueueCounts | None = None
    unmatched: tuple[str, ...] = ()
    """Sources of which the tree has no segment: nothing of them was produced."""

    @property
    def records(self) -> int:
        return sum(partition.records for partition in self.partitions)

    @property
    def exit_code(self) -> int:
        """Offsets that are lost or still waited for, and a source that the tree does not have, are incomplete."""
        if any(partition.fault is not None for partition in self.partitions):
            return EXIT_FAILED
        behind = {"first segment", "late segment", "standby"}
        if self.unmatched or any(partition.lost or partition.state in behind for partition in self.partitions):
            return EXIT_INCOMPLETE
        return EXIT_DONE

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "records": self.records, "exit_code": self.exit_code}
