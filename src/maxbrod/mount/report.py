"""The report of a mount, when it has ended."""

from __future__ import annotations

from dataclasses import dataclass

from maxbrod.errors import EXIT_DONE
from maxbrod.work.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class MountReport(Report):
    archives: tuple[str, ...]
    bootstrap: str
    """What clients connect to."""
    cluster_id: str
    topics: int
    partitions: int
    requests: int
    bytes: int
    """Bytes of batches that were sent."""
    started_at_ms: int
    finished_at_ms: int

    @property
    def exit_code(self) -> int:
        return EXIT_DONE
