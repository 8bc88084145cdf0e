"""The quick check of an archive, which reads no segment: `maxbrod check`.

The rows of every partition must tile its offsets, every object that a row names must exist and be long enough, the
rows must cover what the snapshot of the last backup says, all snapshots must exist and the newest must be readable. The
deep check reads the bytes and adds to the same list of problems. No cluster is asked: the check knows of records beyond
the archive only what the last runs recorded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import ClassVar, Final, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.archive import Archive
from maxbrod.archive.knowledge import knowledge_of
from maxbrod.archive.runs import ending_of, is_partial
from maxbrod.archive.selection import select_names
from maxbrod.archive.snapshot_document import Snapshot, is_intact
from maxbrod.archive.snapshots import oldest, read_snapshot
from maxbrod.archive.unlisted import HINT as UNLISTED_HINT
from maxbrod.archive.unlisted import UNCOMMITTED_MS, find_lost_commit, find_lost_end, find_unlisted, not_young
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Run
from maxbrod.catalog.schema import SCHEMA, Kind
from maxbrod.catalog.tiling import TILING_COLUMNS, Overlap, Tiling, UncoveredRange, find_tiling_faults
from maxbrod.check.objects import NeededObjects
from maxbrod.check.problems import Problem, ProblemKind, Verdict, verdict_of
from maxbrod.check.signatures import SignatureReport
from maxbrod.errors import EXIT_DONE, CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.model import GapReason, PartitionId, now_ms
from maxbrod.registry.stored import read_registry
from maxbrod.storage.interface import ObjectInfo
from maxbrod.work.report import Report

_COLUMNS: Final = (
    *("topic", *TILING_COLUMNS, "reason", "path", "position", "bytes", "records"),
    *("run_id", "written_at"),
)
_FINDINGS_SHOWN: Final = 3
_SNAPSHOT_HINT: Final = (
    "restore it from a copy or an older object version; if it is lost for good, run 'maxbrod backup', "
    "then 'maxbrod check --repair', which takes such runs off the list"
)
_COMMIT_S: Final = 10.0
"""The time after which the entry of a commit that has put its objects counts as lost."""
_LOOK_AGAIN_S: Final = 0.5
SNAPSHOTS_READ: Final = 20
"""The newest snapshots that are read; others only have to exist. A backup every minute makes half a million a year."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport(Report):
    """The scope of a check, and the problems that it found."""

    archive: str
    version: int
    topics: int
    """The topics in rows or in the last snapshot."""
    partitions: int
    partitions_without_rows: int
    """Partitions of which no offset is archived: they were empty, or could not be read."""
    rows: int
    objects: int
    bytes: int
    """The size of the slices that the rows name."""
    snapshots: int
    snapshots_read: int
    recovery_point: int | None
    """Everything written before this to the checked topics can be restored, as of the last backup.

    None: there is no such time, because something is not archived or is damaged.
    """
    unfinished_runs: tuple[UnfinishedRun, ...]
    """Those since the last successful run."""
    problems: tuple[Problem, ...]
    """All of them, or the first."""
    problem_counts: Mapping[ProblemKind, int]
    """The number of problems of each kind."""
    signature: SignatureReport | None = None
    published: ClassVar = ("verdict", "exit_code")

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.problem_counts, deep=False)

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedRun:
    """A run that failed, was stopped, was incomplete, or has not ended."""

    run_id: str
    exit_code: int | None
    """None: it was killed, or is still running."""
    findings: tuple[str, ...] = ()
    """The first of its findings."""


@dataclass(slots=True, kw_only=True)
class SnapshotFindings:
    recorded: int
    read: int = 0
    last: Snapshot | None = None
    """The newest snapshot, if it could be read."""
    others: list[Run] = field(default_factory=list)
    """The runs before it whose snapshots are as they were written."""
    problems: list[Problem] = field(default_factory=list)


def check_archive(
    archive: Archive,
    patterns: Sequence[str] = (),
    *,
    runs: Sequence[Run] | None = None,
    kept_max: int | None = None,
    on_problem: Callable[[Problem], None] | None = None,
    on_rows: Callable[[pa.Table], None] | None = None,
) -> CheckReport:
    """Check all topics, or those that match. What is wrong with the archive is in the report, never raised.

    The report has the first `kept_max` problems, or all: an archive that lost its objects has as many as rows.
    `on_problem` is called for every one. `runs` are those of the catalog, if the caller has read them; `on_rows` is
    called with all rows, which are read once, in portions that have all rows of their partitions.
    """
    catalog, storage = archive.catalog, archive.storage
    # The catalog is read before objects are listed: everything that its rows name existed at their commit.
    runs = catalog.runs() if runs is None else runs
    snapshots = _check_snapshots(archive, runs)
    names = _snapshot_names(snapshots.last)
    if patterns:
        names |= _topic_names(catalog.topics())
        chosen = select_names(set(names.values()), patterns)
        names = {topic_id: topic for topic_id, topic in names.items() if topic in chosen}
    ids = names.keys() if patterns else None
    rows = _RowFindings(runs, snapshots, ids, NeededObjects(narrow=bool(patterns)))
    names |= _read_rows(archive, rows, ids, on_rows)
    # Rows of older runs, and of generations that are not active yet.
    building = catalog.building()
    others = pa.concat_tables([building.select(_COLUMNS), catalog.replaced().select(_COLUMNS)])
    if ids is not None:
        others = others.filter(pc.is_in(others["topic_id"], value_set=pa.array(sorted(ids), pa.string())))
    rows.objects.add(others)
    lacking = rows.objects.lacking(storage)
    found = _Problems(kept_max, on_problem)
    if not runs and not rows.count:
        hint = "run 'maxbrod backup' and look at its output"
        found.add([Problem(kind=ProblemKind.EMPTY, message="no run has stored anything here", hint=hint)])
    found.add(snapshots.problems)
    if not patterns and isinstance(catalog, Catalog):
        found.add(_unlisted(archive, catalog, runs, lacking.unnamed))
    found.add([*_not_archived(snapshots.last, rows.ends, names)])
    found.add([*_tiling_problems(rows.tiling(archive), names, snapshots.last)])
    # A generation under construction has rows without holes, from its first to its last.
    # The names are typed, because without any Arrow would compare text with nulls, which it refuses.
    new = building.filter(pc.is_in(building["topic_id"], value_set=pa.array(list(names), pa.string())))
    found.add([*_tiling_problems(find_tiling_faults(new), names, why="in a generation under construction")])
    found.add(rows.suspect)
    if lacking:
        for portion in chain(catalog.portions(_COLUMNS, topic_ids=ids), [others]):
            found.add_counted(lacking.count(portion), lacking.problems(storage, portion))
    points = {} if snapshots.last is None else snapshots.last.recovery_points
    known = rows.ends.keys() | _recorded(snapshots.last, names)
    lost = verdict_of(found.counts, deep=False) is Verdict.DAMAGED or (not patterns and is_partial(runs))
    return CheckReport(
        archive=archive.url,
        version=catalog.version,
        topics=len({partition.topic_id for partition in known}),
        partitions=len(known),
        partitions_without_rows=len(known - rows.ends.keys()),
        rows=rows.count,
        objects=lacking.objects,
        bytes=rows.bytes,
        snapshots=snapshots.recorded,
        snapshots_read=snapshots.read,
        recovery_point=None if lost else oldest(point for where, point in points.items() if where.topic_id in names),
        unfinished_runs=_unfinished(runs, rows.newer_runs),
        problems=tuple(found.kept),
        problem_counts=dict(found.counts),
    )


def _recorded(last: Snapshot | None, names: Collection[str]) -> set[PartitionId]:
    """Return the partitions of these topics of which the last snapshot has recorded anything."""
    recorded = () if last is None else (*last.ends, *last.recovery_points, *last.behind)
    return {partition for partition in recorded if partition.topic_id in names}


def _read_rows(
    archive: Archive, rows: _RowFindings, ids: Collection[str] | None, on_rows: Callable[[pa.Table], None] | None
) -> dict[str, str]:
    """Read the rows of these topics, and return the names of topics by id."""
    names: dict[str, str] = {}
    # All columns are read though few are compared, because reading refuses invalid rows.
    for portion in archive.catalog.portions(topic_ids=ids):
        rows.add(portion.select(_COLUMNS))
        names |= _topic_names(portion.group_by("topic_id").aggregate([("topic", "max")]), "topic_max")
        if on_rows is not None:
            on_rows(portion)
    return names


def _unlisted(archive: Archive, catalog: Catalog, runs: Sequence[Run], unnamed: Sequence[ObjectInfo]) -> list[Problem]:
    """Return what the catalog does not list: commits that the log has lost, and what objects hold."""
    if (lost := _find_lost_end(archive, catalog, runs)) is not None:
        hint = "'maxbrod repair' rebuilds the catalog; if a run was killed, the next 'maxbrod backup' will do"
        return [Problem(kind=ProblemKind.UNLISTED, message=f"the catalog has lost its end: {lost}", hint=hint)]
    return [
        Problem(
            kind=ProblemKind.UNLISTED,
            message="an object holds them, and no row names it",
            topic=unlisted.topic,
            topic_id=unlisted.topic_id,
            partition=unlisted.partition,
            first_offset=unlisted.first_offset,
            end_offset=unlisted.end_offset,
            object_name=archive.storage.name_of(unlisted.path),
            hint=UNLISTED_HINT,
        )
        for unlisted in find_unlisted(archive.storage, catalog, not_young(unnamed))
    ]


def _find_lost_end(archive: Archive, catalog: Catalog, runs: Sequence[Run]) -> str | None:
    """As `find_lost_end`. A commit that is under way looks like one that was lost: it gets some time to end."""
    named, until_ms = {run.snapshot for run in runs}, now_ms() - UNCOMMITTED_MS
    found = find_lost_end(archive.storage, catalog, named, until_ms=until_ms)
    deadline = time.monotonic() + _COMMIT_S
    while found is None and (young := find_lost_commit(archive.storage, catalog)) is not None and catalog.is_newest():
        if time.monotonic() >= deadline:
            return young
        time.sleep(_LOOK_AGAIN_S)
    return found


class _Problems:
    """The problems found so far: how many of each kind, and the first of them or all."""

    def __init__(self, kept_max: int | None, on_problem: Callable[[Problem], None] | None) -> None:
        self._kept_max, self._on_problem = kept_max, on_problem
        self.kept: list[Problem] = []
        self.counts: Counter[ProblemKind] = Counter()

    def add(self, problems: Sequence[Problem]) -> None:
        self.add_counted(Counter(problem.kind for problem in problems), problems)

    def add_counted(self, counts: Mapping[ProblemKind, int], problems: Iterable[Problem]) -> None:
        """`problems` may be made while they are read, which takes longer than counting: no more are than needed."""
        self.counts.update(counts)
        room = None if self._kept_max is None else self._kept_max - len(self.kept)
        for number, problem in enumerate(problems if self._on_problem is not None else islice(problems, room)):
            if self._on_problem is not None:
                self._on_problem(problem)
            if room is None or number < room:
                self.kept.append(problem)


class _RowFindings:
    """The sums and faults of the rows, added up portion by portion. A portion has all rows of its partitions."""

    def __init__(
        self, runs: Sequence[Run], snapshots: SnapshotFindings, ids: Collection[str] | None, objects: NeededObjects
    ) -> None:
        """`ids` are the topics to check; None: all."""
        self.objects = objects
        self.count = 0
        self.bytes = 0
        self.ends: dict[PartitionId, int] = {}
        """The end of every partition that has rows."""
        self.suspect: list[Problem] = []
        self.newer_runs: set[str] = set()
        """The runs of rows that are newer than the row of every run."""
        self._last_ms = max((run.written_at for run in runs), default=-1)
        self._snapshots = snapshots
        self._expected_ends = {
            partition: end
            for partition, end in ({} if snapshots.last is None else snapshots.last.ends).items()
            if ids is None or partition.topic_id in ids
        }
        self._holes: list[UncoveredRange] = []
        self._overlaps: list[Overlap] = []

    def add(self, rows: pa.Table) -> None:
        self.count += rows.num_rows
        self.bytes += pc.sum(rows["bytes"]).as_py() or 0
        self.objects.add(rows)
        self.suspect += _suspect_rows(rows)
        self.newer_runs.update(
            rows.filter(pc.greater(rows["written_at"], self._last_ms))["run_id"].unique().to_pylist()
        )
        extents = rows.group_by(["topic_id", "partition"]).aggregate([("base_offset", "min"), ("end_offset", "max")])
        firsts = {}
        for extent in extents.to_pylist():
            place = PartitionId(topic_id=extent["topic_id"], partition=extent["partition"])
            self.ends[place], firsts[place] = extent["end_offset_max"], extent["base_offset_min"]
        self._prove(rows, firsts)

    def tiling(self, archive: Archive) -> Tiling:
        """The faults of all rows, and the expected partitions that have none."""
        nothing = SCHEMA.empty_table().select(_COLUMNS)
        absent = {
            partition: end for partition, end in self._expected_ends.items() if end and partition not in self.ends
        }
        # Seldom any: partitions that were empty at every backup, though not at their first offset.
        for run in self._snapshots.others if absent else ():
            with suppress(CorruptDataError, ObjectNotFoundError, UnsupportedFormatError):
                ends = read_snapshot(archive.storage, run).ends
                absent = {partition: min(lowest, ends.get(partition, lowest)) for partition, lowest in absent.items()}
        self._prove(nothing, absent)
        holes = sorted(self._holes, key=lambda hole: (hole.partition, hole.first_offset))
        return Tiling(holes=tuple(holes), overlaps=tuple(self._overlaps))

    def _prove(self, rows: pa.Table, firsts: Mapping[PartitionId, int]) -> None:
        """Rows must cover from the first row of each partition to its end in the last snapshot.

        A backup may begin at any offset, so a partition without rows may have any end, but always the same one.
        """
        ends = self._expected_ends
        expected = {
            partition: (min(first, ends[partition]), ends[partition])
            for partition, first in firsts.items()
            if partition in ends
        }
        faults = find_tiling_faults(rows, expected)
        self._holes += faults.holes
        self._overlaps += faults.overlaps


def _topic_names(topics: pa.Table, name: str = "topic") -> dict[str, str]:
    """The names of topics by id."""
    return dict(zip(topics["topic_id"].to_pylist(), topics[name].to_pylist(), strict=True))


def _snapshot_names(snapshot: Snapshot | None) -> dict[str, str]:
    """The names in a snapshot. For a topic that could never be read, only the cluster's state has the name."""
    if snapshot is None:
        return {}
    chosen = {partition.topic_id for partition in (*snapshot.recovery_points, *snapshot.behind)}
    topics = snapshot.cluster.get("topics", ())
    return {
        **{topic["topic_id"]: topic["name"] for topic in topics if topic["topic_id"] in chosen},
        **snapshot.topics,
    }


def _not_archived(
    snapshot: Snapshot | None, ends: Mapping[PartitionId, int], names: Mapping[str, str]
) -> Iterator[Problem]:
    """Offsets that the cluster had at the last backup and that no run has archived since."""
    if snapshot is None:
        return
    for partition, log_end in sorted(snapshot.behind.items()):
        end = ends.get(partition, snapshot.ends.get(partition, 0))
        if partition.topic_id in names and (log_end is None or end < log_end):
            yield Problem(
                kind=ProblemKind.NOT_ARCHIVED,
                message=f"run {snapshot.run_id} could not fetch the end of the log"
                if log_end is None
                else f"the cluster had them at run {snapshot.run_id}",
                topic=names[partition.topic_id],
                topic_id=partition.topic_id,
                partition=partition.partition,
                first_offset=end,
                end_offset=log_end,
                hint="run 'maxbrod backup' again, before retention deletes them",
            )


def _unfinished(runs: Sequence[Run], newer: Iterable[str]) -> tuple[UnfinishedRun, ...]:
    """Backups since the last successful one, and runs whose rows are newer than the row of every ended run."""
    found: list[UnfinishedRun] = []
    for run in reversed(runs):
        # Runs of the Spark writer and conversions say nothing about a cluster.
        code = ending_of(run) if run.statistics.get("command") == "backup" else None
        if code == EXIT_DONE:
            break
        if code is not None:
            listed = run.statistics.get("findings")
            findings = tuple(map(str, listed[:_FINDINGS_SHOWN])) if isinstance(listed, list) else ()
            found.insert(0, UnfinishedRun(run_id=run.run_id, exit_code=code, findings=findings))
    ended = {run.run_id for run in runs}
    found += [UnfinishedRun(run_id=run_id, exit_code=None) for run_id in sorted(newer) if run_id not in ended]
    return tuple(found)


def _tiling_problems(
    faults: Tiling, names: Mapping[str, str], snapshot: Snapshot | None = None, *, why: str | None = None
) -> Iterator[Problem]:
    for hole in faults.holes:
        if hole.after is None and snapshot is not None:
            message = f"run {snapshot.run_id} recorded them as archived, and no row covers them"
            yield _range_problem(ProblemKind.BEHIND, hole, names, message)
        else:
            yield _range_problem(ProblemKind.HOLE, hole, names, why or "no row covers them")
    for overlap in faults.overlaps:
        yield _range_problem(ProblemKind.OVERLAP, overlap, names, why or "two rows cover them")


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
        hint="'maxbrod repair' rebuilds the catalog; or restore its folder from a copy or an older object version",
    )


def _problem_of(reason: GapReason) -> ProblemKind | None:
    """The problem that offsets without data are; None if the reason explains them."""
    match reason:
        case GapReason.UNEXPLAINED:
            return ProblemKind.UNEXPLAINED
        case GapReason.CORRUPT:
            return ProblemKind.DAMAGED_AT_SOURCE
        case (
            GapReason.COMPACTED
            | GapReason.RETENTION
            | GapReason.TRUNCATED
            | GapReason.PRUNED
            | GapReason.DELETED
            | GapReason.ERASED
            | GapReason.UNRECORDED
        ):
            return None
        case _:
            assert_never(reason)


def _suspect_rows(rows: pa.Table) -> Iterator[Problem]:
    """Yield gaps that are problems, and slices that have fewer records than offsets for no known reason."""
    kinds = {str(reason): kind for reason in GapReason if (kind := _problem_of(reason)) is not None}
    for row in rows.filter(pc.is_in(rows["reason"], value_set=pa.array(list(kinds)))).to_pylist():
        message = f"only {row['records']} records for these offsets"
        if row["kind"] == Kind.GAP:
            # A repair takes out lost objects with the same reason.
            corrupt = row["reason"] == GapReason.CORRUPT
            message = f"not archived{': damaged in the log, or its object was lost' if corrupt else ''}"
        yield Problem(
            kind=kinds[row["reason"]],
            message=message,
            topic=row["topic"],
            topic_id=row["topic_id"],
            partition=row["partition"],
            first_offset=row["base_offset"],
            end_offset=row["end_offset"],
            hint="run 'maxbrod backup' again: it reads such offsets once more, while the source has them",
        )


# Snapshots


def _check_snapshots(archive: Archive, runs: Sequence[Run]) -> SnapshotFindings:
    """Check the snapshots of all runs, oldest first.

    UnavailableError and the like are raised: they say nothing about the archive.
    """
    recorded = [run for run in runs if run.snapshot is not None]
    found = SnapshotFindings(recorded=len(recorded))
    present = {info.path for info in archive.storage.list("snapshots")}
    for run in recorded:
        if run.snapshot not in present:
            message = f"the snapshot of run {run.run_id} is missing"
            name = archive.storage.name_of(run.snapshot or "")
            missing = Problem(kind=ProblemKind.MISSING, message=message, object_name=name, hint=_SNAPSHOT_HINT)
            found.problems.append(missing)
    for run in recorded[-SNAPSHOTS_READ:]:
        if run.snapshot not in present:
            continue
        try:
            # Of older ones the checksum is enough: parsing one of 100,000 partitions takes half a second.
            if run is not recorded[-1] and is_intact(bytes(archive.storage.get(run.snapshot or ""))):
                found.others.append(run)
            else:
                snapshot = read_snapshot(archive.storage, run)
                knowledge_of(snapshot)
                found.last = snapshot if run is recorded[-1] else None
                read_registry(archive.storage, snapshot)
            found.read += 1
        except (CorruptDataError, ObjectNotFoundError, UnsupportedFormatError) as error:
            message = f"the snapshot of run {run.run_id} cannot be read: {error.message}"
            where, kind = error.object_name, ProblemKind.UNREADABLE
            found.problems.append(Problem(kind=kind, message=message, object_name=where, hint=error.hint))
    return found
