"""Records over time: the query that counts them by topic, in steps that suit the archive's times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.words import parse_time_ms

if TYPE_CHECKING:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """`sql` gives columns topic, time (where the step begins) and records."""

    sql: str
    step_ms: int


def plan_histogram(query: Query) -> Histogram:
    """Only times and topics are read by it."""
    first, end = _bounds(query)
    step = step_of(first, end)
    sql = (
        f"SELECT topic, timestamp_millis(CAST(floor(unix_millis(timestamp) / {step}) AS BIGINT) * {step}) AS time, "  # noqa: S608 - a number
        "count(*) AS records FROM records WHERE timestamp IS NOT NULL GROUP BY ALL ORDER BY ALL"
    )
    return Histogram(sql=sql, step_ms=step)


def step_of(first_ms: int, end_ms: int) -> int:
    """The shortest round step of which few enough reach from the first to the end."""
    span = max(end_ms - first_ms, 1)
    found = next((step for step in _STEPS_MS if span <= step * (STEPS_MAX - 1)), None)
    # Times that no calendar has: whole years, as many as it takes.
    return found or -(-span // (365 * _DAY * (STEPS_MAX - 1))) * 365 * _DAY


def _bounds(query: Query) -> tuple[int, int]:
    """What the catalog says of the chosen topics. Lowest times may be a little late, which adds a step."""
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
