"""What can be wrong with an archive, however deep one looked, and the exit code that it means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_INCOMPLETE

if TYPE_CHECKING:
    from collections.abc import Iterable


class ProblemKind(StrEnum):
    HOLE = "hole"
    """Offsets between two rows that no row covers."""
    BEHIND = "behind"
    """Offsets that a run's snapshot vouches for and no row covers."""
    NOT_ARCHIVED = "not archived"
    """Offsets that the cluster had at a run, which could not archive them."""
    EMPTY = "empty"
    """No run has stored anything."""
    UNEXPLAINED = "unexplained"
    """Offsets that the source did not deliver, and nobody knows why."""
    DAMAGED_AT_SOURCE = "damaged at source"
    """Offsets that the source could only deliver damaged, so that they are not archived."""
    OVERLAP = "overlap"
    """Offsets that two rows cover."""
    MISSING = "missing"
    TRUNCATED = "truncated"
    """An object that ends before the slice that it should hold."""
    DAMAGED = "damaged"
    """A slice whose bytes are not what was written."""
    UNREADABLE = "unreadable"
    """A snapshot that cannot be read."""


class Verdict(StrEnum):
    """What a check has found, in a word. Text, JSON and exit code all come from it."""

    WHOLE = "whole"
    """Nothing is missing, as far as can be told without reading objects."""
    SOUND = "sound"
    """Nothing is missing, and what was read is what was written."""
    STOPPED = "stopped"
    """It ended before everything was read, and had found nothing until then."""
    INCOMPLETE = "incomplete"
    DAMAGED = "damaged"

    @property
    def exit_code(self) -> int:
        return _VERDICT_CODES.get(self, EXIT_DONE)


_VERDICT_CODES: Final = {
    Verdict.STOPPED: EXIT_INCOMPLETE,
    Verdict.INCOMPLETE: EXIT_INCOMPLETE,
    Verdict.DAMAGED: EXIT_CORRUPT,
}
_INCOMPLETE: Final = {
    ProblemKind.HOLE,
    ProblemKind.BEHIND,
    ProblemKind.NOT_ARCHIVED,
    ProblemKind.EMPTY,
    ProblemKind.UNEXPLAINED,
    ProblemKind.DAMAGED_AT_SOURCE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong: in which offsets of which partition, or in which object, or both."""

    kind: ProblemKind
    message: str
    topic: str | None = None
    topic_id: str | None = None
    partition: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    """None behind a first offset: nobody knows how far it goes."""
    object_name: str | None = None
    hint: str | None = None

    @property
    def exit_code(self) -> int:
        return EXIT_INCOMPLETE if self.kind in _INCOMPLETE else EXIT_CORRUPT


def verdict_of(problems: Iterable[Problem], *, deep: bool, interrupted: bool = False) -> Verdict:
    """The gravest counts. `deep`: objects were read; `interrupted`: not all that were to be."""
    match exit_code_of(problems):
        case 0 if interrupted:
            return Verdict.STOPPED
        case 0:
            return Verdict.SOUND if deep else Verdict.WHOLE
        case code:
            return Verdict.DAMAGED if code == EXIT_CORRUPT else Verdict.INCOMPLETE


def exit_code_of(problems: Iterable[Problem]) -> int:
    """Damage weighs more than what is known to be missing."""
    return max((problem.exit_code for problem in problems), default=EXIT_DONE)
