"""The geometry of pictures: bars of coverage, histograms and lines, as rectangles and points of a unit of 1000. Pure.

A picture never says what no text says: every rectangle has a title, and a table beside it has the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.rows import newest_times
from maxbrod.catalog.schema import Kind
from maxbrod.inspect.topic import DATA, Span, cells_of
from maxbrod.query.output import step_of
from maxbrod.text import human_bytes, human_count, human_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTH: Final = 1000
_CALENDAR_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""
CELLS: Final = 250
"""Cells of a bar of coverage: what is smaller than one is at least as wide as one."""
_ROWS_SPREAD: Final = 20_000
"""Segments that are spread at once."""
TIME_COLUMNS: Final = (
    *("partition", "base_offset", "end_offset", "kind", "reason", "records", "min_timestamp", "max_timestamp"),
)
"""The columns of rows that `over_time` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rect:
    """A rectangle, `cover` is what it stands for, and by what it is coloured."""

    x: float
    width: float
    cover: str
    title: str
    y: float = 0.0
    height: float = 12.0
    href: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    x: float
    label: str


def offset_rects(spans: Sequence[Span]) -> tuple[Rect, ...]:
    """What is archived of a partition's offsets, from the first to the last."""
    if not spans:
        return ()
    first, end = spans[0].first_offset, spans[-1].end_offset
    cells = cells_of(spans, CELLS)
    count, found, place = len(cells), [], 0
    for cover, group in groupby(cells):
        size = len(list(group))
        low, high = (first + (end - first) * edge // count for edge in (place, place + size))
        title = f"offsets {low:,} to {high - 1:,}: {cover}"
        found.append(Rect(x=_unit(place, count), width=_unit(size, count), cover=cover, title=title))
        place += size
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeStep:
    """A step of a histogram: an estimate, since a segment says only how many records it has, from when to when."""

    first_ms: int
    records: int
    busiest: int | None
    """The partition that has most of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    """The segments and gaps of a topic on one axis of time."""

    first_ms: int
    end_ms: int
    step_ms: int
    steps: tuple[TimeStep, ...]
    partitions: Mapping[int, tuple[Rect, ...]]
    unplaced: int
    """Records in segments that do not say of which time they are, or name one outside of the calendar."""


def over_time(rows: pa.Table) -> OverTime | None:
    """Place the rows of one topic on an axis of time. None: no segment says of which time it is.

    `rows` have `TIME_COLUMNS` and are in the order of offsets. A gap has no time of its own: it is drawn between the
    records before and after it.
    """
    data = pc.equal(rows["kind"], str(Kind.DATA))
    last = _numbers(pc.fill_null(newest_times(rows), -1))
    low = _numbers(pc.fill_null(rows["min_timestamp"], -1))
    low = np.where((low < 0) | (low > last), last, low)
    is_data = data.to_numpy(zero_copy_only=False) if isinstance(data, pa.Array) else data.to_numpy()
    # A timestamp can be any 64-bit number: what is beyond the calendar would leave no room for the rest.
    placed = is_data & (last >= 0) & (last <= _CALENDAR_MS)
    records = _numbers(pc.fill_null(rows["records"], 0))
    if not placed.any():
        return None
    first_ms, last_ms = int(low[placed].min()), int(last[placed].max())
    step_ms = step_of(first_ms, last_ms + 1)
    start = first_ms // step_ms * step_ms
    count = max(-(-(last_ms + 1 - start) // step_ms), 1)
    edges = start + step_ms * np.arange(count + 1, dtype=np.int64)
    partition = _numbers(rows["partition"])
    reasons = rows["reason"].to_pylist()
    kinds = [DATA if is_one else str(reason) for is_one, reason in zip(is_data.tolist(), reasons, strict=True)]
    strips: dict[int, tuple[Rect, ...]] = {}
    sums: dict[int, NDArray[np.float64]] = {}
    for number in np.unique(partition).tolist():
        mine = np.flatnonzero(partition == number)
        held = mine[placed[mine]]
        sums[number] = _spread(low[held], last[held], records[held], edges)
        strips[number] = (
            *_data_rects(low[held], last[held], first_ms, last_ms),
            *_gap_rects(mine, kinds, placed, low, last, first_ms, last_ms),
        )
    table = np.array(list(sums.values()))
    totals, numbers = table.sum(axis=0), list(sums)
    steps = tuple(
        TimeStep(
            first_ms=start + place * step_ms,
            records=round(total),
            busiest=numbers[int(table[:, place].argmax())] if total > 0 else None,
        )
        for place, total in enumerate(totals.tolist())
    )
    unplaced = int(records[is_data & ~placed].sum())
    return OverTime(
        first_ms=first_ms, end_ms=last_ms + 1, step_ms=step_ms, steps=steps, partitions=strips, unplaced=unplaced
    )


def _spread(
    low: NDArray[np.int64], high: NDArray[np.int64], records: NDArray[np.int64], edges: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Records between each two edges, if those of each segment are spread evenly from its first time to its last."""
    until = np.zeros(len(edges))
    for first in range(0, len(low), _ROWS_SPREAD):
        rows = slice(first, first + _ROWS_SPREAD)
        length = (high[rows] - low[rows] + 1)[:, None]
        part = ((edges[None, :] - low[rows][:, None]) / length).clip(0, 1)
        until += (part * records[rows][:, None]).sum(axis=0)
    # Differences of sums may be a little below zero.
    found: NDArray[np.float64] = np.diff(until).clip(min=0)
    return found


def _data_rects(low: NDArray[np.int64], high: NDArray[np.int64], first_ms: int, last_ms: int) -> list[Rect]:
    """Where there are segments: neighbours in one rectangle, unless a cell or more without any is between them."""
    span = max(last_ms - first_ms, 1)
    change = np.zeros(CELLS + 1, np.int64)
    np.add.at(change, ((low - first_ms) * (CELLS - 1) // span), 1)
    np.add.at(change, ((high - first_ms) * (CELLS - 1) // span) + 1, -1)
    covered = np.cumsum(change)[:CELLS] > 0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], covered, [False]])))
    return [
        Rect(
            x=_unit(begin, CELLS),
            width=_unit(end - begin, CELLS),
            cover=DATA,
            title=f"about {human_time(first_ms + span * begin // CELLS)} to "
            f"{human_time(first_ms + span * end // CELLS)}: archived",
        )
        for begin, end in edges.reshape(-1, 2).tolist()
    ]


def _gap_rects(
    mine: NDArray[np.int64],
    kinds: Sequence[str],
    placed: NDArray[np.bool_],
    low: NDArray[np.int64],
    last: NDArray[np.int64],
    first_ms: int,
    last_ms: int,
) -> list[Rect]:
    span = max(last_ms - first_ms, 1)
    found: list[Rect] = []
    held = mine[placed[mine]]
    for row in mine[[kinds[place] != DATA for place in mine.tolist()]].tolist():
        after = int(np.searchsorted(held, row))
        # The first and the last gap of a log have records on one side only.
        begin = int(last[held[:after]].max()) if after else first_ms
        end = int(low[held[after]]) if after < len(held) else last_ms
        begin, end = min(begin, end), max(begin, end)
        x = _unit(begin - first_ms, span)
        width = max(_unit(end - begin, span), WIDTH / CELLS)
        title = f"between {human_time(begin)} and {human_time(end)}: {kinds[row]}"
        found.append(Rect(x=min(x, WIDTH - width), width=width, cover=kinds[row], title=title, y=6.0, height=6.0))
    return found


def time_ticks(first_ms: int, end_ms: int, count: int = 4) -> tuple[Tick, ...]:
    """Labels of an axis of time, both ends among them."""
    span = end_ms - first_ms
    to: Literal["day", "minute", "second"] = "second" if span < count * 60_000 else "minute"
    if span > count * 2 * 86_400_000:
        to = "day"
    return tuple(
        Tick(x=_unit(place, count), label=human_time(first_ms + span * place // count, to=to))
        for place in range(count + 1)
    )


def histogram_rects(steps: Sequence[TimeStep], hrefs: Sequence[str | None], *, height: float = 100.0) -> list[Rect]:
    """A bar for each step that has records; the smallest is visible."""
    top = max((step.records for step in steps), default=0)
    found = []
    for place, (step, href) in enumerate(zip(steps, hrefs, strict=True)):
        if not step.records:
            continue
        size = max(height * step.records / top, 1.5)
        found.append(
            Rect(
                x=_unit(place, len(steps)),
                width=_unit(1, len(steps)) * 0.88,
                y=height - size,
                height=size,
                cover=DATA,
                title=f"from {human_time(step.first_ms)}: about {human_count(step.records)} records",
                href=href,
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartMark:
    """A point of a line. `good`: what it stands for ended well."""

    x: float
    y: float
    title: str
    good: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    points: str
    """For a polyline."""
    area: str
    """The same down to the axis, for a polygon."""
    marks: tuple[ChartMark, ...]
    top_label: str
    ticks: tuple[Tick, ...]


def line_chart(
    values: Sequence[tuple[int, float, str, bool]], top_label: str, *, height: float = 160.0
) -> LineChart | None:
    """Values over time: time in milliseconds, value, title, and whether it is good. None: there are fewer than two."""
    if len(values) < 2:
        return None
    ordered = sorted(values, key=lambda value: value[0])
    first, last = ordered[0][0], ordered[-1][0]
    top = max(value for _, value, _, _ in ordered) or 1.0
    marks = tuple(
        ChartMark(
            x=_unit(at - first, max(last - first, 1)),
            y=round(height - (height - 8) * value / top, 1),
            title=title,
            good=good,
        )
        for at, value, title, good in ordered
    )
    points = " ".join(f"{mark.x},{mark.y}" for mark in marks)
    area = f"0,{height} {points} {WIDTH},{height}"
    return LineChart(
        points=points, area=area, marks=marks, top_label=top_label, ticks=time_ticks(first, max(last, first + 1))
    )


def growth_values(runs: Sequence[tuple[int, int]], most: int = 300) -> list[tuple[int, float, str, bool]]:
    """The bytes that runs have added until each, of at most so many of them."""
    total, found = 0, []
    for at, size in sorted(runs):
        total += size
        found.append((at, float(total), f"{human_time(at)}: {human_bytes(total)} added until then", True))
    step = -(-len(found) // most) or 1
    return found[::step] if not found or found[-1] in found[::step] else [*found[::step], found[-1]]


def _unit(part: float, whole: float) -> float:
    return round(WIDTH * part / whole, 2)


def _numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    found: NDArray[np.int64] = column.to_numpy().astype(np.int64)
    return found
