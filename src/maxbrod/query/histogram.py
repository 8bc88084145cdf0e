"""A histogram of records over time: the query that counts them by topic, and its output on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.words import parse_time_ms
from maxbrod.cli.output import out, print_line, table
from maxbrod.text import human_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.query.run import Query

STEPS_MAX: Final = 60
_SECOND: Final = 1000
_DAY: Final = 86_400 * _SECOND
_STEPS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(
        each * _SECOND
        for each in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
    ),
    *(each * _DAY for each in (1, 2, 7, 14, 30, 90, 180, 365)),
)
_HISTOGRAM_COLUMNS: Final = ["topic", "time", "records"]
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_WIDTH_MAX: Final = 60
_DRAWN_STEPS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """`sql` gives columns topic, time (where the step begins) and records."""

    sql: str
    step_ms: int


def plan_histogram(query: Query) -> Histogram:
    """The query that counts records by topic and step. It reads times and topics only."""
    first, end = _bounds(query)
    step = step_of(first, end)
    sql = (
        f"SELECT topic, timestamp_millis(CAST(floor(unix_millis(timestamp) / {step}) AS BIGINT) * {step}) AS time, "  # noqa: S608 - a number
        "count(*) AS records FROM records WHERE timestamp IS NOT NULL GROUP BY ALL ORDER BY ALL"
    )
    return Histogram(sql=sql, step_ms=step)


def step_of(first_ms: int, end_ms: int) -> int:
    """The shortest round step that divides the span into at most STEPS_MAX."""
    span = max(end_ms - first_ms, 1)
    found = next((step for step in _STEPS_MS if span <= step * (STEPS_MAX - 1)), None)
    # Beyond any calendar: a multiple of whole years.
    return found or -(-span // (365 * _DAY * (STEPS_MAX - 1))) * 365 * _DAY


def _bounds(query: Query) -> tuple[int, int]:
    """First and last time of the selected topics, by the catalog. The first may be inexact, which adds a step."""
    rows = query.archive.catalog.rows(
        columns=("topic", "min_timestamp", "max_timestamp"),
        as_of=query.selected.moment.ends,
        revisions=query.selected.moment.revisions,
    )
    rows = rows.filter(pc.is_in(rows["topic"], pa.array(sorted(query.selected.topics), pa.string())))
    first, last = pc.min(rows["min_timestamp"]).as_py(), pc.max(rows["max_timestamp"]).as_py()
    since, until = query.scope.since, query.scope.until
    if since is not None:
        first = max(first or 0, parse_time_ms(since))
    if until is not None:
        last = min(last or 0, parse_time_ms(until))
    return first or 0, last or 0


def print_histogram(rows: pa.Table, step_ms: int) -> None:
    counts = _by_topic(rows)
    times = _all_steps(sorted(set(rows["time"].to_pylist())), timedelta(milliseconds=step_ms))
    shown = table("", "*topic", "records over time", ">records")
    for topic, found in counts.items():
        shown.add_row(topic, sparkline([found.get(time, 0) for time in times]), human_count(sum(found.values())))
    out.print(shown)
    if times:
        print_line(f"{times[0]:%Y-%m-%d %H:%M:%S} to {times[-1]:%Y-%m-%d %H:%M:%S} UTC, each line to its own height")
    else:
        print_line("no records")


def sparkline(counts: Sequence[int], width: int = _WIDTH_MAX) -> str:
    """A block for each count, or for several if there are too many. Zero is blank, and one is visible."""
    each = -(-len(counts) // width) or 1
    sums = [sum(counts[at : at + each]) for at in range(0, len(counts), each)]
    top = max(sums, default=0)
    return "".join(" " if not count else _BLOCKS[(count * len(_BLOCKS) - 1) // top] for count in sums)


def spread(rows: pa.Table) -> pa.Table:
    """A column for each topic, for a plot."""
    counts = _by_topic(rows)
    times = sorted(set(rows["time"].to_pylist()))
    columns: dict[str, Any] = {"time": pa.array(times, rows["time"].type)}
    columns |= {topic: pa.array([found.get(time, 0) for time in times], pa.int64()) for topic, found in counts.items()}
    return pa.table(columns)


def _by_topic(rows: pa.Table) -> dict[str, dict[datetime, int]]:
    found: dict[str, dict[datetime, int]] = {}
    for topic, time, count in zip(*(rows[name].to_pylist() for name in _HISTOGRAM_COLUMNS), strict=True):
        found.setdefault(topic, {})[time] = count
    return found


def _all_steps(times: list[datetime], step: timedelta) -> list[datetime]:
    """Every step from the first to the last, also those without records."""
    if not times:
        return times
    count = (times[-1] - times[0]) // step + 1
    # Records with times far apart would leave too many empty steps to draw.
    return [times[0] + step * number for number in range(count)] if count <= _DRAWN_STEPS_MAX else times
