"""Summaries of runs, for `maxbrod ls --runs` and `maxbrod show --run`."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod import strict_json
from maxbrod.archive.archive import Archive
from maxbrod.archive.selection import select_names
from maxbrod.archive.snapshot_document import Snapshot
from maxbrod.archive.snapshots import UNREADABLE, find_moment, find_run, read_snapshot
from maxbrod.catalog.rows import Run
from maxbrod.catalog.schema import Kind
from maxbrod.model import MENDABLE, GapReason, PartitionId

PARTIAL: Final = "partial"
"""The statistic of a backup that topics may have been hidden from."""
_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "end_offset"),
    *("kind", "reason", "path", "bytes", "raw_bytes", "records", "run_id"),
)
STOPPED: Final = "stopped"
"""The kind of a notice, or the statistic, of a run that a signal has ended before it was done."""
_SNAPSHOTS_KEPT: Final = 32
"""Those of two searches among ten thousand runs."""
_LAPSE_COLUMNS: Final = ("topic_id", "partition", "base_offset", "kind", "run_id", "details")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The facts that a run recorded about itself. None: not recorded."""

    run_id: str
    command: str | None
    started_at: int
    finished_at: int
    records: int | None
    bytes: int | None
    topics: int | None
    exit_code: int | None
    snapshot: str | None
    statistics: Mapping[str, Any]
    stopped: bool = False
    """True if a signal ended it before it was done."""
    restorable: bool | None = None
    """True if everything that it left can still be restored, as far as the catalog tells: nothing of it was pruned, or
    taken out as lost or damaged, since. None: it left no snapshot, or this was not looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTopic:
    """The rows that a run added to one topic, except those that a later run has replaced."""

    topic: str
    topic_id: str
    partitions: int
    records: int
    bytes: int
    raw_bytes: int
    objects: int
    gaps: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    archive: str
    run: RunSummary
    topics: tuple[RunTopic, ...]


def show_run(archive: Archive, run_id: str, lacking: Collection[str] | None = None) -> RunReport:
    """UsageError: no run has this id. `lacking`: what `lacking_runs` returns, if it was asked before."""
    run = find_run(archive.catalog.runs(), run_id)
    rows = archive.catalog.rows(columns=_COLUMNS, run_id=run.run_id)
    lacking = lacking_runs(archive) if lacking is None else lacking
    return RunReport(archive=archive.url, run=summarise_run(run, lacking), topics=_topics(rows))


def list_runs(
    archive: Archive,
    patterns: Sequence[str] = (),
    *,
    as_of: str | None = None,
    lacking: Collection[str] | None = None,
) -> list[RunSummary]:
    """Oldest first. With `as_of`, only runs up to this one. `lacking`: as in `show_run`; not with patterns.

    With patterns, only those since the archive has one of these topics, and whether these can be restored.
    UsageError: there is no such run, or a pattern matches nothing.
    """
    runs = archive.catalog.runs()
    until = len(runs) if as_of is None else runs.index(find_run(runs, as_of)) + 1
    if not patterns:
        lacking = lacking_runs(archive) if lacking is None else lacking
        return [summarise_run(run, lacking) for run in runs[:until]]
    newest = find_moment(archive.storage, runs, None).snapshot
    names = {} if newest is None else dict(newest.topics)
    names |= {row["topic_id"]: row["topic"] for row in archive.catalog.topics().to_pylist()}
    chosen = select_names(set(names.values()), patterns)
    topic_ids = {topic_id for topic_id, name in names.items() if name in chosen}
    snapshots, points = _Snapshots(archive), [run for run in runs if run.snapshot is not None]

    def knows(point: Run) -> bool:
        snapshot = snapshots.of(point)
        return snapshot is not None and not topic_ids.isdisjoint(snapshot.topics)

    # A topic stays in the snapshots as long as the archive has records of it.
    first = bisect_left(points, True, key=knows)
    lacking = lacking_runs(archive, topic_ids)
    return [summarise_run(run, lacking) for run in runs[runs.index(points[first]) if points[first:] else until : until]]


def lacking_runs(archive: Archive, topic_ids: Collection[str] | None = None) -> set[str]:
    """Runs that left records, of these topics or of any, which the archive has lost or given up since.

    A snapshot may be large, and there may be thousands. Ends and revisions only rise, so that the first run that had
    offsets of a gap is found by bisection; every run from there on to the one that made the gap had them.
    """
    runs = archive.catalog.runs()
    places = {run.run_id: place for place, run in enumerate(runs)}
    points = [run for run in runs if run.snapshot is not None]
    at = [places[run.run_id] for run in points]
    snapshots = _Snapshots(archive)
    found: set[str] = set()

    def lacks(point: Run, gaps: Sequence[_Lapse]) -> bool:
        snapshot = snapshots.of(point)
        return snapshot is None or any(snapshot.ends.get(gap.partition, 0) > gap.base for gap in gaps)

    def knows(point: Run, gap: _Lapse) -> bool:
        snapshot = snapshots.of(point)
        return snapshot is not None and snapshot.revisions.get(gap.partition, 0) >= gap.revision

    def count_before(run_id: str) -> int:
        """Ids of runs that were thinned out since still sort by time."""
        if run_id in places:
            return bisect_left(at, places[run_id])
        return next((count for count in range(len(points), 0, -1) if points[count - 1].run_id < run_id), 0)

    rows = archive.catalog.gap_rows({*MENDABLE, GapReason.PRUNED}, _LAPSE_COLUMNS)
    # Gaps that a backup met in the log are behind everything that runs before it left.
    recorders = {run.run_id for run in points}
    lapses = _lapses(rows, topic_ids).items()
    counted = ((count_before(run_id), gaps) for run_id, gaps in lapses if run_id not in recorders)
    waiting = sorted(counted, key=lambda pair: pair[0])
    end = len(points)
    while waiting and end:
        # All that reach this run at once: what they find nothing of here, no run before has.
        end, gaps = min(end, waiting[-1][0]), list[_Lapse]()
        while waiting and waiting[-1][0] >= end:
            gaps += waiting.pop()[1]
        first = bisect_left(points, True, 0, end, key=partial(lacks, gaps=gaps))
        found.update(run.run_id for run in points[first:end])
        end = first
    replaced = archive.catalog.gap_rows({GapReason.PRUNED}, _LAPSE_COLUMNS, kind=Kind.REPLACED)
    for run_id, gaps in _lapses(replaced, topic_ids).items():
        for gap in gaps:
            end = bisect_left(points, True, 0, count_before(run_id), key=partial(knows, gap=gap))
            first = bisect_left(points, True, 0, end, key=partial(lacks, gaps=[gap]))
            found.update(run.run_id for run in points[first:end])
    return found


class _Lapse(NamedTuple):
    """A gap, where records were; of one that was replaced since, by which revision."""

    partition: PartitionId
    base: int
    revision: int


def _lapses(rows: pa.Table, topic_ids: Collection[str] | None) -> dict[str, list[_Lapse]]:
    """By the run that made them. Of a partition the lowest is enough."""
    if topic_ids is not None:
        rows = rows.filter(pc.is_in(rows["topic_id"], value_set=pa.array(sorted(topic_ids), pa.string())))
    lowest = rows.group_by(["run_id", "topic_id", "partition", "details"]).aggregate([("base_offset", "min")])
    found: dict[str, list[_Lapse]] = {}
    for row in lowest.to_pylist():
        place = PartitionId(topic_id=row["topic_id"], partition=row["partition"])
        revision = 0 if row["details"] is None else strict_json.parse(row["details"])["revision"]
        found.setdefault(row["run_id"], []).append(_Lapse(place, row["base_offset_min"], revision))
    return found


class _Snapshots:
    """Snapshots of runs; None: it cannot be read. The last ones are kept: searches have most steps in common."""

    def __init__(self, archive: Archive) -> None:
        self._storage = archive.storage
        self._found: dict[str, Snapshot | None] = {}

    def of(self, run: Run) -> Snapshot | None:
        if run.run_id in self._found:
            self._found[run.run_id] = self._found.pop(run.run_id)
            return self._found[run.run_id]
        if len(self._found) == _SNAPSHOTS_KEPT:
            del self._found[next(iter(self._found))]
        self._found[run.run_id] = None
        with suppress(*UNREADABLE):
            self._found[run.run_id] = read_snapshot(self._storage, run)
        return self._found[run.run_id]


def summarise_run(run: Run, lacking: Collection[str] | None = None) -> RunSummary:
    """`lacking` are the runs of which the archive has lost something; None: unknown."""
    statistics = run.statistics
    return RunSummary(
        run_id=run.run_id,
        command=command if isinstance(command := statistics.get("command"), str) else None,
        started_at=run.started_at,
        finished_at=run.finished_at,
        records=_count(statistics.get("records")),
        bytes=_count(statistics.get("bytes")),
        topics=_count(statistics.get("topics")),
        exit_code=ending_of(run),
        snapshot=run.snapshot,
        statistics=statistics,
        stopped=_was_stopped(statistics),
        restorable=None if run.snapshot is None or lacking is None else run.run_id not in lacking,
    )


def _was_stopped(statistics: Mapping[str, Any]) -> bool:
    notices = statistics.get("notices")
    return statistics.get(STOPPED) is True or (isinstance(notices, Mapping) and STOPPED in notices)


def ending_of(run: Run) -> int | None:
    """The exit code of the run; None if it recorded none."""
    return _count(run.statistics.get("exit_code"))


def is_partial(runs: Sequence[Run]) -> bool:
    """True if topics may have been hidden from the last backup: then the archive has no recovery point."""
    last = next((run for run in reversed(runs) if run.statistics.get("command") == "backup"), None)
    return last is not None and last.statistics.get(PARTIAL) is True


def gaps_by_topic(rows: pa.Table) -> dict[str, dict[str, int]]:
    """For each topic id the number of offsets without data, by reason."""
    rows = rows.filter(pc.equal(rows["kind"], Kind.GAP))
    rows = rows.append_column("span", pc.subtract(rows["end_offset"], rows["base_offset"]))
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows.group_by(["topic_id", "reason"]).aggregate([("span", "sum")]).to_pylist():
        found[row["topic_id"]][row["reason"]] = row["span_sum"]
    return {topic_id: dict(sorted(reasons.items())) for topic_id, reasons in found.items()}


def _topics(rows: pa.Table) -> tuple[RunTopic, ...]:
    totals = rows.group_by(["topic", "topic_id"]).aggregate(
        [
            *((name, "sum") for name in ("records", "bytes", "raw_bytes")),
            *((name, "count_distinct") for name in ("partition", "path")),
        ]
    )
    gaps = gaps_by_topic(rows)
    return tuple(
        RunTopic(
            topic=row["topic"],
            topic_id=row["topic_id"],
            partitions=row["partition_count_distinct"],
            records=row["records_sum"] or 0,
            bytes=row["bytes_sum"] or 0,
            raw_bytes=row["raw_bytes_sum"] or 0,
            objects=row["path_count_distinct"],
            gaps=gaps.get(row["topic_id"], {}),
        )
        for row in totals.sort_by([("topic", "ascending"), ("topic_id", "ascending")]).to_pylist()
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
