"""One look at an archive, from which several answers follow: its runs, its newest snapshot and its topics.

A snapshot of many partitions takes a second to read, and so do the topics of a large catalog. A process that answers
many questions about one version looks once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.archive.selection import Incarnation, incarnations_in
from maxbrod.archive.snapshots import Moment, find_moment

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.catalog.rows import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLook:
    """What the catalog and one snapshot say about all topics."""

    runs: list[Run]
    moment: Moment
    incarnations: list[Incarnation]
    """The topics that have rows."""


def look_at(archive: Archive, as_of: str | None = None) -> ArchiveLook:
    """Look at an archive now, or as of a run. UsageError: there is no such run."""
    runs = archive.catalog.runs()
    moment = find_moment(archive.storage, runs, as_of)
    topics = archive.catalog.topics(as_of=moment.ends, revisions=moment.revisions)
    return ArchiveLook(runs=runs, moment=moment, incarnations=incarnations_in(topics))
