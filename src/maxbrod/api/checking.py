"""The quick check of an archive, which reads no segment: the answer of `maxbrod check`.

Every partition's rows must tile its offsets, every object that a row names must be there and long enough, and what the
last backup vouched for must be covered. Bytes are not looked at: that is a check of its own, which adds to the same
list of problems.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.api.incarnations import select_names
from maxbrod.api.problems import Problem, ProblemKind, exit_code_of
from maxbrod.api.snapshots import last_snapshot_run, read_snapshot
from maxbrod.catalog.rows import PartitionId
from maxbrod.catalog.schema import GapReason, Kind
from maxbrod.catalog.tiling import TILING_COLUMNS, find_tiling_faults
from maxbrod.errors import MaxbrodError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.api.archives import Archive
    from maxbrod.api.snapshots import Snapshot
    from maxbrod.catalog.rows import Run
    from maxbrod.catalog.tiling import Hole, Overlap

SNAPSHOTS_READ: Final = 100
"""So many of the newest are read; of the others it is enough that they are there. A backup every minute makes half a
million a year."""

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
    """All topics, or those that match; every problem is in the report, none is raised."""
    # The catalog before the listing: what its rows name was whole when it was committed.
    rows, runs = archive.catalog.rows(columns=_COLUMNS), archive.catalog.runs()
    recorded = [run for run in runs if run.snapshot is not None]
    sizes = {found.path: found.size for found in archive.storage.list("snapshots")}
    snapshots, problems = _read_snapshots(archive, recorded, sizes)
    last = last_snapshot_run(runs)
    snapshot = None if last is None else snapshots.get(last.run_id)
    names = _names(rows, snapshot)
    if patterns:
        chosen = select_names(set(names.values()), patterns)
        rows = rows.filter(pc.is_in(rows["topic"], value_set=pa.array(sorted(chosen), pa.string())))
        names = {topic_id: topic for topic_id, topic in names.items() if topic in chosen}
    ends = {} if snapshot is None else {each: end for each, end in snapshot.ends.items() if each.topic_id in names}
    problems += _tiling_problems(rows, ends, names, last)
    problems += _suspect_rows(rows)
    objects, object_problems = _object_problems(archive, rows, narrow=bool(patterns))
    return CheckReport(
        archive=archive.url,
        version=archive.catalog.version,
        topics=len(rows["topic_id"].unique()),
        partitions=rows.group_by(["topic_id", "partition"]).aggregate([]).num_rows,
        rows=rows.num_rows,
        objects=objects,
        bytes=pc.sum(rows["bytes"]).as_py() or 0,
        snapshots=len(recorded),
        snapshots_read=len(snapshots),
        problems=(*problems, *object_problems),
    )


def _read_snapshots(
    archive: Archive, runs: Sequence[Run], sizes: Mapping[str, int]
) -> tuple[dict[str, Snapshot], list[Problem]]:
    """Those that could be read, by run, and what is wrong with the others."""
    found: dict[str, Snapshot] = {}
    problems = []
    for run in runs:
        name = archive.storage.name_of(run.snapshot or "")
        if run.snapshot not in sizes:
            message = f"the snapshot of run {run.run_id} is not there"
            problems.append(Problem(kind=ProblemKind.MISSING, message=message, object_name=name))
    for run in [run for run in runs if run.snapshot in sizes][-SNAPSHOTS_READ:]:
        try:
            found[run.run_id] = read_snapshot(archive.storage, run)
        except MaxbrodError as error:
            problems.append(
                Problem(
                    kind=ProblemKind.UNREADABLE,
                    message=f"the snapshot of run {run.run_id}: {error.message}",
                    object_name=error.object_name,
                    hint=error.hint or "bring it back from a copy; the records do not depend on it",
                )
            )
    return found, problems


def _names(rows: pa.Table, snapshot: Snapshot | None) -> dict[str, str]:
    """Of every topic that has rows or that the last snapshot speaks of, by id."""
    told = {} if snapshot is None else {each.topic_id: each.topic_id for each in snapshot.ends} | dict(snapshot.topics)
    named = rows.group_by("topic_id").aggregate([("topic", "max")]).to_pylist()
    return told | {each["topic_id"]: each["topic_max"] for each in named}


def _tiling_problems(
    rows: pa.Table, ends: Mapping[PartitionId, int], names: Mapping[str, str], last: Run | None
) -> Iterator[Problem]:
    faults = find_tiling_faults(rows, _expected(rows, ends))
    for hole in faults.holes:
        if hole.after is None:
            run_id = "" if last is None else last.run_id
            yield _range_problem(ProblemKind.BEHIND, hole, names, f"run {run_id} vouched for them, no row covers them")
        else:
            yield _range_problem(ProblemKind.HOLE, hole, names, "no row covers them")
    for overlap in faults.overlaps:
        yield _range_problem(ProblemKind.OVERLAP, overlap, names, "two rows cover them")


def _expected(rows: pa.Table, ends: Mapping[PartitionId, int]) -> dict[PartitionId, tuple[int, int]]:
    """Each partition from its own first row to the end in the snapshot: where a backup began is its own choice."""
    firsts = rows.group_by(["topic_id", "partition"]).aggregate([("base_offset", "min")]).to_pylist()
    known = {
        PartitionId(topic_id=each["topic_id"], partition=each["partition"]): each["base_offset_min"] for each in firsts
    }
    return {each: (min(known.get(each, 0), end), end) for each, end in ends.items()}


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
            **_where(row),
            hint="run 'maxbrod backup' again: it reads such offsets once more, while the source has them",
        )
        for row in rows.filter(pc.is_in(rows["reason"], value_set=suspect)).to_pylist()
    ]


def _object_problems(archive: Archive, rows: pa.Table, *, narrow: bool) -> tuple[int, list[Problem]]:
    """How many objects the rows name, and the slices that are not there: by listing folders, not object by object."""
    rows = rows.filter(pc.equal(rows["kind"], Kind.DATA))
    rows = rows.append_column("slice_end", pc.add(rows["position"], rows["bytes"]))
    needed = {
        each["path"]: each["slice_end_max"]
        for each in rows.group_by("path").aggregate([("slice_end", "max")]).to_pylist()
    }
    folders = {_folder(path, narrow=narrow) for path in needed}
    sizes = {found.path: found.size for folder in sorted(folders) for found in archive.storage.list(folder)}
    bad = [path for path, end in needed.items() if sizes.get(path, -1) < end]
    slices = rows.filter(pc.is_in(rows["path"], value_set=pa.array(bad, pa.string()))).to_pylist()
    problems = [
        _slice_problem(archive, row, sizes.get(row["path"]))
        for row in slices
        if row["slice_end"] > sizes.get(row["path"], -1)
    ]
    return len(needed), problems


def _folder(path: str, *, narrow: bool) -> str:
    """What to list to see this object: for a few topics their own folders, else all segments at once."""
    parts = path.split("/")[:-1]
    return "/".join(parts[: 2 if narrow else 1])


def _slice_problem(archive: Archive, row: dict[str, Any], size: int | None) -> Problem:
    end = row["slice_end"]
    return Problem(
        kind=ProblemKind.MISSING if size is None else ProblemKind.TRUNCATED,
        message="the object is not there" if size is None else f"the object has {size} bytes, the slice ends at {end}",
        **_where(row),
        object_name=archive.storage.name_of(row["path"]),
        hint="bring it back from a copy or an older object version",
    )


def _where(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "topic": row["topic"],
        "topic_id": row["topic_id"],
        "partition": row["partition"],
        "first_offset": row["base_offset"],
        "end_offset": row["end_offset"],
    }
