"""The report of a dashboard, when it has ended."""

from __future__ import annotations

from dataclasses import dataclass

from maxbrod.errors import EXIT_DONE
from maxbrod.work.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeReport(Report):
    archives: tuple[str, ...]
    address: str
    """Where a browser found it, without the token."""
    requests: int
    refused: int
    """Requests that were turned away: no token, a wrong one, or from another site."""
    started_at_ms: int
    finished_at_ms: int

    @property
    def exit_code(self) -> int:
        return EXIT_DONE
