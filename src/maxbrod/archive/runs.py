"""Summaries of runs, for `maxbrod ls --runs` and `maxbrod show --run`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.snapshots import find_run
from maxbrod.catalog.schema import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.archive.opening import Archive
    from maxbrod.catalog.rows import Run

_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "end_offset"),
    *("kind", "reason", "path", "bytes", "raw_bytes", "records", "run_id"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a run recorded about itself. None: not recorded."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTopic:
    """What a run added to one topic, except rows that a later run has replaced."""

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


def show_run(archive: Archive, run_id: str) -> RunReport:
    """UsageError: no run has this id."""
    run = find_run(archive.catalog.runs(), run_id)
    rows = archive.catalog.rows(columns=_COLUMNS, run_id=run.run_id)
    return RunReport(archive=archive.url, run=summarise_run(run), topics=_topics(rows))


def list_runs(archive: Archive) -> list[RunSummary]:
    """Oldest first."""
    return [summarise_run(run) for run in archive.catalog.runs()]


def summarise_run(run: Run) -> RunSummary:
    statistics = run.statistics
    return RunSummary(
        run_id=run.run_id,
        command=_text(statistics.get("command")),
        started_at=run.started_at,
        finished_at=run.finished_at,
        records=_count(statistics.get("records")),
        bytes=_count(statistics.get("bytes")),
        topics=_count(statistics.get("topics")),
        exit_code=ending_of(run),
        snapshot=run.snapshot,
        statistics=statistics,
    )


def ending_of(run: Run) -> int | None:
    """The exit code of the run; None if it recorded none."""
    return _count(run.statistics.get("exit_code"))


def gaps_by_topic(rows: pa.Table) -> dict[str, dict[str, int]]:
    """For each topic id the number of offsets without data, by reason."""
    rows = rows.filter(pc.equal(rows["kind"], Kind.GAP))
    rows = rows.append_column("span", pc.subtract(rows["end_offset"], rows["base_offset"]))
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for each in rows.group_by(["topic_id", "reason"]).aggregate([("span", "sum")]).to_pylist():
        found[each["topic_id"]][each["reason"]] = each["span_sum"]
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
            topic=each["topic"],
            topic_id=each["topic_id"],
            partitions=each["partition_count_distinct"],
            records=each["records_sum"] or 0,
            bytes=each["bytes_sum"] or 0,
            raw_bytes=each["raw_bytes_sum"] or 0,
            objects=each["path_count_distinct"],
            gaps=gaps.get(each["topic_id"], {}),
        )
        for each in totals.sort_by([("topic", "ascending"), ("topic_id", "ascending")]).to_pylist()
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
