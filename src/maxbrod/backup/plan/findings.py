"""What a run has to say about offsets besides that they are archived, and how a command ends because of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_INCOMPLETE

if TYPE_CHECKING:
    from collections.abc import Iterable


class FindingKind(StrEnum):
    """The first three explain, and are shown; the others leave something to be done."""

    RETENTION = "retention"
    DELETED = "deleted"
    TRUNCATED = "truncated"
    """The log was cut below what was archived of it, which is replaced by what the log has now."""
    FAILED = "failed"
    """Not read to its end; the next run goes on from there."""
    UNEXPLAINED = "unexplained"
    CORRUPT = "corrupt"


_EXIT_CODES: Final = {
    FindingKind.FAILED: EXIT_INCOMPLETE,
    FindingKind.UNEXPLAINED: EXIT_INCOMPLETE,
    FindingKind.CORRUPT: EXIT_CORRUPT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """About offsets [first, end) of one partition."""

    kind: FindingKind
    topic: str
    partition: int
    first: int
    end: int
    message: str
    hint: str | None = None

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES.get(self.kind, EXIT_DONE)


def worst_exit_code(findings: Iterable[Finding]) -> int:
    """Corrupt before incomplete before done."""
    return max((each.exit_code for each in findings), default=EXIT_DONE)
