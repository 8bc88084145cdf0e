"""Problems of an archive that quick and deep checks find, and the exit codes that follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_INCOMPLETE


class ProblemKind(StrEnum):
    HOLE = "hole"
    """Offsets between two rows that no row covers."""
    BEHIND = "behind"
    """Offsets that a snapshot records as archived and no row covers."""
    NOT_ARCHIVED = "not archived"
    """Offsets that the cluster had at a run that could not archive them."""
    UNLISTED = "unlisted"
    """Records that the catalog lacks, in an object that no row names; or a commit whose entry the log has lost."""
    EMPTY = "empty"
    """No run has stored anything."""
    UNEXPLAINED = "unexplained"
    """Offsets that the source did not return, for an unknown reason."""
    DAMAGED_AT_SOURCE = "damaged at source"
    """Offsets that were damaged at the source, so that they are not archived."""
    OVERLAP = "overlap"
    """Offsets that two rows cover."""
    MISSING = "missing"
    TRUNCATED = "truncated"
    """An object that ends before the end of its slice."""
    DAMAGED = "damaged"
    """A slice whose bytes are not what was written."""
    UNREADABLE = "unreadable"
    """A snapshot that cannot be read."""
    UNSIGNED = "unsigned"
    """What no accepted key has signed: versions of the catalog, or what they name without a digest."""
    EXCHANGED = "exchanged"
    """An object that is not the one that was signed."""
    ROLLED_BACK = "rolled back"
    """The archive does not continue a version that was seen before."""
    LIMIT = "limit"
    """A batch that unpacks to more than was looked into. Its bytes are those that were written: nothing is wrong."""


class Verdict(StrEnum):
    """The result of a check in one word. Text, JSON and exit code all follow from it."""

    WHOLE = "whole"
    """Nothing is missing, as far as is known without reading objects."""
    SOUND = "sound"
    """Nothing is missing, and all bytes read are those that were written."""
    STOPPED = "stopped"
    """It ended before everything was read, without a finding until then."""
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
    ProblemKind.UNLISTED,
    ProblemKind.EMPTY,
    ProblemKind.UNEXPLAINED,
    ProblemKind.DAMAGED_AT_SOURCE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem, with the offsets of a partition or the object that it concerns, or both."""

    kind: ProblemKind
    message: str
    topic: str | None = None
    topic_id: str | None = None
    partition: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    """None after a first offset: the end is unknown."""
    object_name: str | None = None
    hint: str | None = None

    @property
    def exit_code(self) -> int:
        return exit_code_of(self.kind)

    def __str__(self) -> str:
        where = [] if self.partition is None else [f"{self.topic or self.topic_id}-{self.partition}"]
        if self.first_offset is not None and self.end_offset is not None:
            where.append(f"offsets [{self.first_offset:,}, {self.end_offset:,})")
        elif self.first_offset is not None:
            where.append(f"from offset {self.first_offset:,} on")
        where += [] if self.object_name is None else [f"in {self.object_name}"]
        return ": ".join(part for part in (str(self.kind), " ".join(where), self.message) if part)


def verdict_of(kinds: Iterable[ProblemKind], *, deep: bool, interrupted: bool = False) -> Verdict:
    """The gravest problem decides. `deep`: objects were read; `interrupted`: not all of them."""
    # Damage is graver than offsets known to be missing.
    match max(map(exit_code_of, kinds), default=EXIT_DONE):
        case 0 if interrupted:
            return Verdict.STOPPED
        case 0:
            return Verdict.SOUND if deep else Verdict.WHOLE
        case code:
            return Verdict.DAMAGED if code == EXIT_CORRUPT else Verdict.INCOMPLETE


def exit_code_of(kind: ProblemKind) -> int:
    if kind is ProblemKind.LIMIT:
        return EXIT_DONE
    return EXIT_INCOMPLETE if kind in _INCOMPLETE else EXIT_CORRUPT
