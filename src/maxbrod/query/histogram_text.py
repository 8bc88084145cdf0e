"""A histogram on a terminal: one line of blocks for each topic, along the same time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from maxbrod.cli.output import human_count, out, print_line, table

if TYPE_CHECKING:
    from collections.abc import Sequence


_COLUMNS: Final = ["topic", "time", "records"]
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_WIDTH_MAX: Final = 60
_STEPS_MAX: Final = 100_000


def print_histogram(rows: pa.Table, step_ms: int) -> None:
    counts = _by_topic(rows)
    times = _steps(sorted(set(rows["time"].to_pylist())), timedelta(milliseconds=step_ms))
    shown = table("", "*topic", "records over time", ">records")
    for topic, found in counts.items():
        shown.add_row(topic, sparkline([found.get(time, 0) for time in times]), human_count(sum(found.values())))
    out.print(shown)
    if times:
        print_line(f"{times[0]:%Y-%m-%d %H:%M:%S} to {times[-1]:%Y-%m-%d %H:%M:%S} UTC, each line to its own height")
    else:
        print_line("no records")


def sparkline(counts: Sequence[int], width: int = _WIDTH_MAX) -> str:
    """A block for each count, or for several where there are too many; nothing for zero, something for one."""
    each = -(-len(counts) // width) or 1
    sums = [sum(counts[at : at + each]) for at in range(0, len(counts), each)]
    top = max(sums, default=0)
    return "".join(" " if not count else _BLOCKS[(count * len(_BLOCKS) - 1) // top] for count in sums)


def spread(rows: pa.Table) -> pa.Table:
    """A column for each topic, for a picture."""
    counts = _by_topic(rows)
    times = sorted(set(rows["time"].to_pylist()))
    columns: dict[str, Any] = {"time": pa.array(times, rows["time"].type)}
    columns |= {topic: pa.array([found.get(time, 0) for time in times], pa.int64()) for topic, found in counts.items()}
    return pa.table(columns)


def _by_topic(rows: pa.Table) -> dict[str, dict[datetime, int]]:
    found: dict[str, dict[datetime, int]] = {}
    for topic, time, count in zip(*(rows[name].to_pylist() for name in _COLUMNS), strict=True):
        found.setdefault(topic, {})[time] = count
    return found


def _steps(times: list[datetime], step: timedelta) -> list[datetime]:
    """Every step from the first to the last, those without a record too."""
    if not times:
        return times
    count = (times[-1] - times[0]) // step + 1
    # Records whose times are ages apart leave more empty steps than anyone could draw.
    return [times[0] + step * number for number in range(count)] if count <= _STEPS_MAX else times
