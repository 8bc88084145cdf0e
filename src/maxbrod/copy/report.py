"""The report of a copy."""

from __future__ import annotations

from dataclasses import dataclass

from maxbrod.notices import Notice, verdict_of, worst_exit_code
from maxbrod.work.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport(Report):
    published = ("verdict", "exit_code")
    source: str
    target: str
    dry_run: bool
    topics: tuple[str, ...] | None
    """The chosen topics; None if the whole archive was copied."""
    started_at_ms: int
    finished_at_ms: int
    source_version: int
    """The version of the source's catalog that was copied."""
    version_before: int | None
    """The version at which the copy stood before, as the source counts; None if there was none."""
    version: int | None
    """The version at which the copy stands now, as the source counts; None if it has no catalog yet."""
    objects: int
    """Segments and packs that were written; in a dry run, that would be."""
    bytes: int
    """Their bytes; in a dry run, those that the catalog knows of."""
    documents: int
    """Snapshots, documents and files of the catalog that were written."""
    objects_there: int
    """Segments and packs that were there whole, and were not read."""
    slices_verified: int
    """Slices that were compared with the catalog's digests on their way."""
    read_back: bool
    """True if everything that was written was read back and compared. Otherwise the store's word counts."""
    notices: tuple[Notice, ...] = ()
    not_recorded: str | None = None
    """Why the source does not know of this copy; None if it does, or nothing was published."""

    @property
    def exit_code(self) -> int:
        return worst_exit_code(self.notices)

    @property
    def verdict(self) -> str:
        return verdict_of(self.exit_code)

    @property
    def has_written(self) -> bool:
        return bool(self.objects or self.documents or self.version != self.version_before)
