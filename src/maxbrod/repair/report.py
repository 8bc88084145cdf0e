"""The report of a repair, as values that print as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from maxbrod.catalog.rows import Gap, Run, Segment
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE
from maxbrod.model import now_ms
from maxbrod.notices import Notice, worst_exit_code
from maxbrod.storage.interface import HeldObject
from maxbrod.work.report import Report

_FINDINGS_MAX: Final = 1000


class Action(StrEnum):
    NONE = "none"
    """The catalog can be read, and every object that it names is there."""
    BROUGHT_BACK = "brought back"
    """Objects were deleted or overwritten: they come back from older versions."""
    REBUILT = "rebuilt"
    """The catalog is lost or damaged: it is made again from the objects."""
    TAKEN_OUT = "taken out"
    """Objects are lost or damaged: their offsets become gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderVersions:
    """The objects that come back from the older versions of a bucket."""

    before_ms: int
    applied: bool
    objects: int
    """Objects that were deleted or overwritten since, and come back."""
    bytes: int
    copied: int
    """The ones among them that are copied. The others are hidden by nothing but a marker, which is removed."""
    hidden: int
    """Files of the catalog that did not exist then: they are hidden, and stay as older versions."""
    unchanged: int
    later: int
    """Other objects that did not exist then: they stay."""

    @property
    def is_needed(self) -> bool:
        return bool(self.objects or self.hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport(Report):
    archive: str
    run_id: str
    action: Action
    applied: bool
    """False: nothing was changed."""
    problem: str | None
    """The fault of the catalog."""
    version: int | None
    """The version of the catalog after the repair."""
    topics: int = 0
    partitions: int = 0
    rows: int = 0
    generations: int = 0
    """Generations under construction that lack objects: they are dropped."""
    replaced_rows: int = 0
    runs: int = 0
    objects: int = 0
    """Objects that were read."""
    bytes: int = 0
    unnamed_slices: int = 0
    """Slices that no row names: copies, or of a history that the log has lost. 'maxbrod gc' deletes them."""
    unnamed_bytes: int = 0
    salvaged_records: int = 0
    """Records of damaged slices that were copied into new objects."""
    gaps: Mapping[str, int] = field(default_factory=dict)
    """Offsets without data, by reason."""
    kept_aside: str | None = None
    """The place of the old catalog."""
    unknown: tuple[str, ...] = ()
    """The facts that a rebuild cannot know."""
    notices: tuple[Notice, ...] = ()
    lost_snapshots: int = 0
    """Snapshots that runs of a readable catalog name and that are not there. A repair cannot make them again."""
    held_objects: tuple[HeldObject, ...] = ()
    """Objects that were to be deleted, and that a lock or a missing right keeps."""
    older_versions: OlderVersions | None = None
    """With `--versions-before`: what came back, or would. What follows was only looked at."""
    mended: bool = False
    """True if the source was read again, and had everything."""

    @property
    def exit_code(self) -> int:
        if self.action is not Action.NONE and not self.applied:
            return EXIT_CORRUPT
        return EXIT_DONE if self.mended and not self.lost_snapshots else worst_exit_code(self.notices)

    def run_row(self, *, started_at: int, commit: int) -> Run:
        """The row of the repair's own run."""
        findings = [str(notice) for notice in self.notices if notice.exit_code][:_FINDINGS_MAX]
        at = now_ms()
        return Run(
            run_id=self.run_id,
            started_at=started_at,
            finished_at=at,
            snapshot=None,
            statistics={
                "command": "repair",
                "action": str(self.action),
                "topics": self.topics,
                "partitions": self.partitions,
                "objects": self.objects,
                "exit_code": self.exit_code,
                "findings": findings,
            },
            written_at=at,
            commit=commit,
        )


def gaps_by_reason(rows: Sequence[Segment | Gap]) -> dict[str, int]:
    """The number of offsets in gaps, by reason."""
    offsets: Counter[str] = Counter()
    for row in rows:
        if isinstance(row, Gap):
            offsets[str(row.reason)] += row.end_offset - row.base_offset
    return dict(offsets)
