"""What a fail-back finds out about each partition of the old source. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from maxbrod.compare.plan.differences import Difference  # noqa: TC001 - the fields' types are looked at
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, EXIT_REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """One partition of the old source."""

    topic: str
    partition: int
    end: int
    """Its log end."""
    promoted_at: int | None
    """The offset up to which the mirror had the same log, or the link had appended this one; None: the archive has no
    record of a promotion."""
    new: int
    """Offsets that were written to the promoted mirror since, and that the archive has."""
    diverged: tuple[int, int] | None
    """Offsets [first, end) that the mirror never got. With `--offsets append` others have none of these records."""
    why: str | None = None
    """Why it cannot be continued, if it cannot."""
    begin: int | None = None
    """With `--offsets append`: the offset of the promoted topic that the way back begins with."""
    diverged_records: int | None = None
    """With `--offsets append`: how many committed records there are at the offsets `diverged`, not counting those that
    have come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailBackReport:
    link: str
    partitions: tuple[WayBack, ...]
    equal: bool | None
    """False: records before the promotion differ. None: they were not compared,
    because a link that appends does not depend on it."""
    ready: bool
    """Whether ingress may continue the topics now."""
    differences: tuple[Difference, ...] = ()
    """The first records before the promotion that differ. Their source is the archive."""
    notes: tuple[str, ...] = ()
    """What did not count when records were compared."""

    @property
    def exit_code(self) -> int:
        if not self.ready:
            return EXIT_REFUSED
        return EXIT_DONE if all(partition.diverged is None for partition in self.partitions) else EXIT_INCOMPLETE

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "exit_code": self.exit_code}
