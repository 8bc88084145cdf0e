"""The part of the quick check that is about snapshots: all are there, the newest can be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.archive.known import knowledge_of
from maxbrod.archive.snapshots import read_snapshot
from maxbrod.check.problems import Problem, ProblemKind
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.archive.opening import Archive
    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.catalog.rows import Run
    from maxbrod.model import PartitionId

SNAPSHOTS_READ: Final = 20
"""So many of the newest are read; of the others it is enough that they are there. A backup every minute makes half a
million a year."""


@dataclass(slots=True, kw_only=True)
class SnapshotFindings:
    recorded: int
    read: int = 0
    last: Snapshot | None = None
    """The newest, where it could be read."""
    lowest_ends: dict[PartitionId, int] = field(default_factory=dict)
    """The lowest end that any of those read gives a partition."""
    problems: list[Problem] = field(default_factory=list)


def check_snapshots(archive: Archive, runs: Sequence[Run]) -> SnapshotFindings:
    """Of all runs, oldest first. UnavailableError and the like are raised: they say nothing about the archive."""
    recorded = [run for run in runs if run.snapshot is not None]
    found = SnapshotFindings(recorded=len(recorded))
    present = {each.path for each in archive.storage.list("snapshots")}
    for run in recorded:
        if run.snapshot not in present:
            message = f"the snapshot of run {run.run_id} is not there"
            name = archive.storage.name_of(run.snapshot or "")
            found.problems.append(Problem(kind=ProblemKind.MISSING, message=message, object_name=name))
    for run in recorded[-SNAPSHOTS_READ:]:
        if run.snapshot in present:
            _read(archive, run, found, is_last=run is recorded[-1])
    return found


def _read(archive: Archive, run: Run, found: SnapshotFindings, *, is_last: bool) -> None:
    try:
        snapshot = read_snapshot(archive.storage, run)
        knowledge_of(snapshot)
    except (CorruptDataError, ObjectNotFoundError, UnsupportedFormatError) as error:
        found.problems.append(
            Problem(
                kind=ProblemKind.UNREADABLE,
                message=f"of run {run.run_id}: {error.message}",
                object_name=error.object_name,
                hint=error.hint,
            )
        )
        return
    found.read += 1
    for partition, end in snapshot.ends.items():
        found.lowest_ends[partition] = min(end, found.lowest_ends.get(partition, end))
    if is_last:
        found.last = snapshot
