"""The reports of `maxbrod lock`."""

from __future__ import annotations

from dataclasses import dataclass

from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE
from maxbrod.work.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTotals:
    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLock:
    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockReport(Report):
    """The locks of what an archive needs."""

    archive: str
    version: int | None
    """The version of the catalog whose objects are locked. None: the archive is another tool's, and all is needed."""
    dry_run: bool
    until_ms: int | None
    """The time until which objects are to be locked. None: they were only looked at."""
    object_lock: bool
    """True if the bucket has Object Lock."""
    default_mode: str | None
    default_days: int | None
    """The lock that the bucket sets by itself."""
    versions: bool | None
    """True if the bucket keeps versions, so that deletions and overwriting lose nothing. None: not known."""
    needed: LockTotals
    extended: LockTotals
    """What was extended; in a dry run, what would be."""
    lasting: LockTotals
    """Locked for long enough before."""
    unlocked: LockTotals
    """Without a lock of its own before."""
    first_end_ms: int | None
    """When the first of the locks ends, as they are now; None: something that is needed has none, or all is unknown."""
    not_needed: LockTotals
    """Garbage, old files of the catalog, leases: not extended."""
    gone: int = 0
    refused: tuple[RefusedLock, ...] = ()
    left: int = 0
    """Objects that were not reached before the command was stopped."""

    @property
    def exit_code(self) -> int:
        return EXIT_INCOMPLETE if self.refused or self.left else EXIT_DONE
