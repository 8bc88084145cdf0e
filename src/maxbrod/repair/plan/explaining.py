"""Why offsets of one partition have no data, as far as snapshots and the old catalog say. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from maxbrod.model import GapReason

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What one run recorded of a partition."""

    end: int
    log_start: int | None


@dataclass(slots=True, kw_only=True)
class Evidence:
    """All that is known of a partition's offsets without data."""

    stated: list[tuple[int, int, GapReason]] = field(default_factory=list)
    """Gaps that runs recorded, oldest first."""
    lost: list[tuple[int, int, str]] = field(default_factory=list)
    """Offsets whose objects are damaged, and what is wrong."""
    pruned: list[tuple[int, int]] = field(default_factory=list)
    runs: list[RunView] = field(default_factory=list)
    """In the order of runs."""

    def explain(
        self, first: int, end: int, *, written_so: GapReason | None = None
    ) -> Iterator[tuple[int, int, GapReason]]:
        """Parts of [first, end) in order, each with its reason. `written_so`: the writer itself left the hole."""
        edges = {first, end}
        for base, stop, _ in (*self.stated, *self.lost):
            edges.update(edge for edge in (base, stop) if first < edge < end)
        edges.update(edge for each in self.pruned for edge in each if first < edge < end)
        start = self._log_start(end)
        if first < start < end:
            edges.add(start)
        parts = [(base, stop, self._reason(base, stop, start, written_so)) for base, stop in pairwise(sorted(edges))]
        joined: list[tuple[int, int, GapReason]] = []
        for base, stop, reason in parts:
            if joined and joined[-1][2] is reason:
                joined[-1] = (joined[-1][0], stop, reason)
            else:
                joined.append((base, stop, reason))
        yield from joined

    def _reason(self, first: int, end: int, log_start: int, written_so: GapReason | None) -> GapReason:
        if any(base <= first and end <= stop for base, stop in self.pruned):
            return GapReason.PRUNED
        if any(base <= first and end <= stop for base, stop, _ in self.lost):
            return GapReason.CORRUPT
        for base, stop, reason in reversed(self.stated):
            if base <= first and end <= stop:
                return reason
        if written_so is not None:
            return written_so
        return GapReason.RETENTION if end <= log_start else GapReason.UNEXPLAINED

    def _log_start(self, end: int) -> int:
        """Where the log began at the run that first accounted for these offsets; 0 if no run says so."""
        found = next((run.log_start for run in self.runs if run.end >= end), None)
        return found or 0
