"""The quick check of an archive, which reads no segment: the answer of `maxbrod check`.

Every partition's rows must tile its offsets, every object that a row names must be there and long enough, and what the
last backup vouched for must be covered. Bytes are not looked at: that is a check of its own, which adds to the same
list of problems.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.api.check_objects import check_objects
from maxbrod.api.check_snapshots import check_snapshots
from maxbrod.api.problems import Problem, ProblemKind, exit_code_of
from maxbrod.catalog.rows import PartitionId
from maxbrod.catalog.schema import GapReason, Kind
from maxbrod.catalog.tiling import TILING_COLUMNS, find_tiling_faults
from maxbrod.planning.incarnations import select_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.api.archives import Archive
    from maxbrod.api.check_snapshots import SnapshotFindings
    from maxbrod.catalog.tiling import Hole, Overlap
    from maxbrod.planning.snapshot import Snapshot

_COLUMNS: Final = ("topic", *TILING_COLUMNS, "reason", "path", "position", "bytes", "records")
_SUSPECT: Final = {
    GapReason.UNEXPLAINED: ProblemKind.UNEXPLAINED,
    GapReason.CORRUPT: ProblemKind.DAMAGED_AT_SOURCE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What was looked at, and what is wrong with it."""

    archive: str
    version: int
    topics: int
    partitions: int
    rows: int
    objects: int
    bytes: int
    """Of the slices that the rows name."""
    snapshots: int
    snapshots_read: int
    problems: tuple[Problem, ...]

    @property
    def exit_code(self) -> int:
        return exit_code_of(self.problems)


def check_archive(archive: Archive, patterns: Sequence[str] = ()) -> CheckReport:
    """All topics, or those that match. What is wrong with the archive is in the report, and never raised."""
    # The catalog before the listing: what its rows name was whole when it was committed.
    # All columns, though few are compared: a row that makes no sense is refused as it is read.
    rows, runs = archive.catalog.rows().select(_COLUMNS), archive.catalog.runs()
    snapshots = check_snapshots(archive, runs)
    names = _names(rows, snapshots.last)
    if patterns:
        chosen = select_names(set(names.values()), patterns)
        rows = rows.filter(pc.is_in(rows["topic"], value_set=pa.array(sorted(chosen), pa.string())))
        names = {topic_id: topic for topic_id, topic in names.items() if topic in chosen}
    objects, object_problems = check_objects(archive, rows, narrow=bool(patterns))
    return CheckReport(
        archive=archive.url,
        version=archive.catalog.version,
        topics=len(rows["topic_id"].unique()),
        partitions=rows.group_by(["topic_id", "partition"]).aggregate([]).num_rows,
        rows=rows.num_rows,
        objects=objects,
        bytes=pc.sum(rows["bytes"]).as_py() or 0,
        snapshots=snapshots.recorded,
        snapshots_read=snapshots.read,
        problems=(
            *snapshots.problems,
            *_tiling_problems(rows, snapshots, names),
            *_suspect_rows(rows),
            *object_problems,
        ),
    )


def _names(rows: pa.Table, snapshot: Snapshot | None) -> dict[str, str]:
    """Of every topic that has rows or that the last snapshot speaks of, by id."""
    named = rows.group_by("topic_id").aggregate([("topic", "max")]).to_pylist()
    return {**(snapshot.topics if snapshot else {}), **{each["topic_id"]: each["topic_max"] for each in named}}


def _tiling_problems(rows: pa.Table, snapshots: SnapshotFindings, names: Mapping[str, str]) -> Iterator[Problem]:
    faults = find_tiling_faults(rows, _expected(rows, snapshots, names))
    for hole in faults.holes:
        if hole.after is None and snapshots.last is not None:
            message = f"run {snapshots.last.run_id} vouched for them, and no row covers them"
            yield _range_problem(ProblemKind.BEHIND, hole, names, message)
        else:
            yield _range_problem(ProblemKind.HOLE, hole, names, "no row covers them")
    for overlap in faults.overlaps:
        yield _range_problem(ProblemKind.OVERLAP, overlap, names, "two rows cover them")


def _expected(
    rows: pa.Table, snapshots: SnapshotFindings, names: Mapping[str, str]
) -> dict[PartitionId, tuple[int, int]]:
    """Each partition from its first row to its end in the last snapshot.

    Where a backup begins is its own choice: a partition without rows may stand at any end, but must not have moved.
    """
    firsts = dict(snapshots.lowest_ends)
    for each in rows.group_by(["topic_id", "partition"]).aggregate([("base_offset", "min")]).to_pylist():
        firsts[PartitionId(topic_id=each["topic_id"], partition=each["partition"])] = each["base_offset_min"]
    ends = {} if snapshots.last is None else snapshots.last.ends
    return {each: (min(firsts[each], end), end) for each, end in ends.items() if each.topic_id in names}


def _range_problem(kind: ProblemKind, fault: Hole | Overlap, names: Mapping[str, str], message: str) -> Problem:
    return Problem(
        kind=kind,
        message=message,
        topic=names.get(fault.partition.topic_id),
        topic_id=fault.partition.topic_id,
        partition=fault.partition.partition,
        first_offset=fault.first_offset,
        end_offset=fault.end_offset,
        hint="bring back the catalog folder from a copy or an older object version",
    )


def _suspect_rows(rows: pa.Table) -> list[Problem]:
    """Gaps that want looking at, and slices that have fewer records than offsets for no known reason."""
    suspect = pa.array([str(reason) for reason in _SUSPECT], pa.string())
    return [
        Problem(
            kind=_SUSPECT[GapReason(row["reason"])],
            message="not archived" if row["kind"] == Kind.GAP else f"only {row['records']} records for these offsets",
            topic=row["topic"],
            topic_id=row["topic_id"],
            partition=row["partition"],
            first_offset=row["base_offset"],
            end_offset=row["end_offset"],
            hint="run 'maxbrod backup' again: it reads such offsets once more, while the source has them",
        )
        for row in rows.filter(pc.is_in(rows["reason"], value_set=suspect)).to_pylist()
    ]
