"""The quick check of an archive, which reads no segment: the answer of `maxbrod check`.

Every partition's rows must tile its offsets, every object that a row names must be there and long enough, and what the
last backup vouched for must be covered. Bytes are not looked at: that is a check of its own, which adds to the same
list of problems. No cluster is asked: what one has beyond the archive is known only as far as the last runs have told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.incarnations import select_names
from maxbrod.archive.recovery import oldest
from maxbrod.archive.runs import ending_of
from maxbrod.catalog.schema import Kind
from maxbrod.catalog.tiling import TILING_COLUMNS, find_tiling_faults
from maxbrod.check.objects import check_objects
from maxbrod.check.problems import Problem, ProblemKind, Verdict, verdict_of
from maxbrod.check.snapshots import check_snapshots
from maxbrod.errors import EXIT_DONE
from maxbrod.model import GapReason, PartitionId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from maxbrod.archive.opening import Archive
    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.catalog.rows import Run
    from maxbrod.catalog.tiling import Overlap, UncoveredRange
    from maxbrod.check.snapshots import SnapshotFindings

_COLUMNS: Final = (
    *("topic", *TILING_COLUMNS, "reason", "path", "position", "bytes", "records"),
    *("run_id", "written_at"),
)
_FINDINGS_TOLD: Final = 3
_EMPTY: Final = Problem(
    kind=ProblemKind.EMPTY,
    message="no run has stored anything here",
    hint="run 'maxbrod backup', and read what it says",
)
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
    """That the archive knows, by rows or by its last snapshot."""
    partitions: int
    partitions_without_rows: int
    """Those of them of which no offset is archived: they were empty, or could not be read."""
    rows: int
    objects: int
    bytes: int
    """Of the slices that the rows name."""
    snapshots: int
    snapshots_read: int
    recovery_point: int | None
    """What was written before this to the topics looked at can be brought back, as the last backup left it."""
    unfinished_runs: tuple[UnfinishedRun, ...]
    """Since the last run that ended well."""
    problems: tuple[Problem, ...]

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.problems, deep=False)

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedRun:
    """A run that failed, was stopped, or left something out; or one that has not ended at all."""

    run_id: str
    exit_code: int | None
    """None: it was killed, or is still under way."""
    findings: tuple[str, ...] = ()
    """What it said, the first of it."""


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
    replaced = archive.catalog.replaced().select(rows.column_names)
    if patterns:
        replaced = replaced.filter(pc.is_in(replaced["topic"], value_set=rows["topic"].unique()))
    objects, object_problems = check_objects(archive, pa.concat_tables([rows, replaced]), narrow=bool(patterns))
    ends = _ends(rows)
    known = {*ends, *_known_partitions(snapshots.last, names)}
    points = {} if snapshots.last is None else snapshots.last.recovery_points
    return CheckReport(
        archive=archive.url,
        version=archive.catalog.version,
        topics=len({each.topic_id for each in known}),
        partitions=len(known),
        partitions_without_rows=len(known - ends.keys()),
        rows=rows.num_rows,
        objects=objects,
        bytes=pc.sum(rows["bytes"]).as_py() or 0,
        snapshots=snapshots.recorded,
        snapshots_read=snapshots.read,
        recovery_point=oldest(point for each, point in points.items() if each.topic_id in names),
        unfinished_runs=_unfinished(runs, rows),
        problems=(
            *([] if runs or rows.num_rows else [_EMPTY]),
            *snapshots.problems,
            *_not_archived(snapshots.last, ends, names),
            *_tiling_problems(rows, snapshots, names),
            *_suspect_rows(rows),
            *object_problems,
        ),
    )


def _names(rows: pa.Table, snapshot: Snapshot | None) -> dict[str, str]:
    """Of every topic that has rows or that the last snapshot speaks of, by id."""
    named = rows.group_by("topic_id").aggregate([("topic", "max")]).to_pylist()
    return {**_names_told(snapshot), **{each["topic_id"]: each["topic_max"] for each in named}}


def _names_told(snapshot: Snapshot | None) -> dict[str, str]:
    """By a snapshot; of a topic that was chosen and could never be read, only the cluster's state has the name."""
    if snapshot is None:
        return {}
    chosen = {each.topic_id for each in (*snapshot.recovery_points, *snapshot.behind)}
    topics = snapshot.cluster.get("topics", ())
    return {
        **{each["topic_id"]: each["name"] for each in topics if each["topic_id"] in chosen},
        **snapshot.topics,
    }


def _known_partitions(snapshot: Snapshot | None, names: Collection[str]) -> set[PartitionId]:
    told = () if snapshot is None else (*snapshot.ends, *snapshot.recovery_points, *snapshot.behind)
    return {each for each in told if each.topic_id in names}


def _ends(rows: pa.Table) -> dict[PartitionId, int]:
    """Of every partition that has rows."""
    found = rows.group_by(["topic_id", "partition"]).aggregate([("end_offset", "max")]).to_pylist()
    return {
        PartitionId(topic_id=each["topic_id"], partition=each["partition"]): each["end_offset_max"] for each in found
    }


def _not_archived(
    snapshot: Snapshot | None, ends: Mapping[PartitionId, int], names: Mapping[str, str]
) -> Iterator[Problem]:
    """What the last backup knew the cluster to have, and nobody has archived since."""
    if snapshot is None:
        return
    for partition, log_end in sorted(snapshot.behind.items()):
        end = ends.get(partition, snapshot.ends.get(partition, 0))
        if partition.topic_id in names and (log_end is None or end < log_end):
            yield Problem(
                kind=ProblemKind.NOT_ARCHIVED,
                message=f"run {snapshot.run_id} could not ask for the end of the log"
                if log_end is None
                else f"the cluster had them at run {snapshot.run_id}",
                topic=names[partition.topic_id],
                topic_id=partition.topic_id,
                partition=partition.partition,
                first_offset=end,
                end_offset=log_end,
                hint="run 'maxbrod backup' again, before retention deletes them",
            )


def _unfinished(runs: Sequence[Run], rows: pa.Table) -> tuple[UnfinishedRun, ...]:
    """Backups since the last one that ended well, and runs whose rows are newer than every run's own."""
    found: list[UnfinishedRun] = []
    for run in reversed(runs):
        # A DataFrame that was written, or a conversion, says nothing about a cluster.
        code = ending_of(run) if run.statistics.get("command") == "backup" else None
        if code == EXIT_DONE:
            break
        if code is not None:
            found.insert(0, UnfinishedRun(run_id=run.run_id, exit_code=code, findings=_findings(run)))
    ended = {run.run_id for run in runs}
    last = max((run.written_at for run in runs), default=-1)
    newer = rows.filter(pc.greater(rows["written_at"], last))["run_id"].unique().to_pylist()
    found += [UnfinishedRun(run_id=each, exit_code=None) for each in sorted(newer) if each not in ended]
    return tuple(found)


def _findings(run: Run) -> tuple[str, ...]:
    told = run.statistics.get("findings")
    return tuple(map(str, told[:_FINDINGS_TOLD])) if isinstance(told, list) else ()


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


def _range_problem(
    kind: ProblemKind, fault: UncoveredRange | Overlap, names: Mapping[str, str], message: str
) -> Problem:
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
