"""Writes the answer of a query: as a table, CSV, JSON, Parquet or a plot; to the terminal or to a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from maxbrod.archive.selection import parse_time_ms
from maxbrod.cli.output import out, print_document, print_line, safe_json, safe_text, table
from maxbrod.errors import EnvironmentMissingError, UsageError
from maxbrod.text import counted, human_count

if TYPE_CHECKING:
    from maxbrod.query.run import Query
    from maxbrod.table.results import Collected


ROWS_SHOWN: Final = 100
_LETTERS_SHOWN: Final = 60
_FORMS: Final = ("table", "csv", "json", "parquet")
_SUFFIXES: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
_PICTURES: Final = (".png", ".svg", ".pdf")
DOCUMENT: Final = "document"
"""`--json`: one document, with the types of the columns."""

STEPS_MAX: Final = 60
_SECOND: Final = 1000
_DAY: Final = 86_400 * _SECOND
_STEPS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(
        count * _SECOND
        for count in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
    ),
    *(count * _DAY for count in (1, 2, 7, 14, 30, 90, 180, 365)),
)
_HISTOGRAM_COLUMNS: Final = ["topic", "time", "records"]
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_WIDTH_MAX: Final = 60
_DRAWN_STEPS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    form: str
    to: str | None = None
    limit: int | None = None
    plot: Path | None = None

    @property
    def in_folder(self) -> bool:
        return self.to is not None and self.to.endswith("/")

    def answer(self, query: Query, sql: str | Histogram) -> Collected | None:
        """Run the query. None: its tasks have written the answer."""
        text = sql if isinstance(sql, str) else sql.sql
        if self.in_folder:
            query.write(query.ask(text), self.form, str(self.to), limit=self.limit)
            return None
        if self.plot is not None or (self.form == "table" and not isinstance(sql, str)):
            return query.answer(text, limit=self.limit)
        limit = ROWS_SHOWN if self.form == "table" and self.limit is None else self.limit
        form = {"table": "text", "parquet": "arrow", DOCUMENT: "json"}.get(self.form, self.form)
        return query.answer(text, limit=limit, form=form)

    def print(self, answer: Collected | None, histogram: Histogram | None = None, *, sql: str = "") -> None:
        if answer is None:
            print_line(f"written to {self.to}")
        elif self.plot is not None:
            if histogram is None:
                draw(answer.table, self.plot, title=sql)
            else:
                label = f"records in {timedelta(milliseconds=histogram.step_ms)}"
                draw(spread(answer.table), self.plot, title="Records by topic and time", upwards_label=label)
            print_line(f"{answer.table.num_rows:,} rows drawn into {self.plot}")
        elif self.form == "table" and histogram is not None:
            print_histogram(answer.table, histogram.step_ms)
        elif self.form == "table":
            _print_table(answer, self.limit)
        elif self.form == DOCUMENT:
            _print_document(answer)
        elif self.to is None:
            _write_out(answer.table, self.form)
        else:
            with Path(self.to).open("xb") as file:
                _write(answer.table, self.form, file)
            print_line(f"{answer.table.num_rows:,} rows written to {self.to}")


def parse_output(form: str | None, *, to: str | None, limit: int | None, plot: Path | None, as_json: bool) -> Output:
    """UsageError: options that exclude each other, or a file that exists."""
    if sum((form is not None or to is not None, plot is not None, as_json)) > 1:
        raise UsageError("--json, --plot, and --output with --to exclude each other", hint="give one of them")
    if form is not None and form not in _FORMS:
        raise UsageError(f"there is no form {form!r}", hint=f"choose one of {', '.join(_FORMS)}")
    form = form or (None if to is None else _form_of(to))
    if form == "table" and to is not None:
        raise UsageError("a table can only be printed", hint="write csv, json or parquet")
    if form == "parquet" and to is None and sys.stdout.isatty():
        raise UsageError("Parquet is not text", hint="give --to FILE, or redirect it")
    if plot is not None and plot.suffix not in _PICTURES:
        raise UsageError(
            f"{plot} is not the name of a picture", hint=f"use one of the extensions {', '.join(_PICTURES)}"
        )
    if to is not None and Path(to).exists():
        raise UsageError("there is one already", object_name=to, hint="remove it, or name another")
    return Output(form=DOCUMENT if as_json else form or "table", to=to, limit=limit, plot=plot)


def _form_of(to: str) -> str:
    if to.endswith("/"):
        return "parquet"
    found = _SUFFIXES.get(Path(to).suffix)
    if found is None:
        raise UsageError(f"the extension of {to} is no known format", hint="give --output csv, json or parquet")
    return found


def _write(rows: pa.Table, form: str, file: IO[bytes]) -> None:
    if form == "parquet":
        pq.write_table(rows, file, compression="zstd")
        return
    if form == "csv":
        pa_csv.write_csv(rows, file)
        return
    # One line each, joined by Arrow in whole chunks.
    for chunk in rows.column(0).chunks:
        lines = pc.binary_join_element_wise(chunk, "", "\n")
        _, ends, data = lines.buffers()
        if len(lines):
            file.write(data[: memoryview(ends).cast("i")[len(lines)]])


def _write_out(rows: pa.Table, form: str) -> None:
    """Unchanged into a pipe, and without control characters to a terminal."""
    if not sys.stdout.isatty() or form == "parquet":
        _write(rows, form, sys.stdout.buffer)
        return
    made = BytesIO()
    _write(rows, form, made)
    sys.stdout.write((safe_json if form == "json" else safe_text)(made.getvalue().decode("utf-8")))


def _print_document(answer: Collected) -> None:
    columns = [{"name": name, "type": kind} for name, kind in answer.types.items()]
    # Spark escapes fewer characters than Python does.
    rows = safe_json(",\n".join(answer.table.column(0).to_pylist()))
    print_document(f'{{"columns": {json.dumps(columns)},\n"more": {json.dumps(answer.more)},\n"rows": [\n{rows}\n]}}')


def _print_table(answer: Collected, limit: int | None) -> None:
    numbers = [kind in _NUMBERS or kind.startswith("decimal") for kind in answer.types.values()]
    headings = [f"{'>' if number else '*'}{name}" for name, number in zip(answer.types, numbers, strict=True)]
    shown = table("", *headings)
    cut = False
    for row in zip(*(column.to_pylist() for column in answer.table.columns), strict=True):
        cut = cut or any(text is not None and len(text) > _LETTERS_SHOWN for text in row)
        cells = ("null" if text is None else text for text in row)
        shown.add_row(*(text if len(text) <= _LETTERS_SHOWN else f"{text[:_LETTERS_SHOWN]}…" for text in cells))
    out.print(shown)
    count = answer.table.num_rows
    if not answer.more:
        print_line(counted(count, "row"))
    else:
        print_line(f"the first {count:,} rows of more" + ("; --limit N shows others" if limit is None else ""))
    if cut:
        print_line(f"what is longer than {_LETTERS_SHOWN} letters is cut off; --output json has it whole")


_TITLE_MAX: Final = 100
_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double"})


def draw(rows: pa.Table, file: Path, *, title: str, upwards_label: str | None = None) -> None:
    """Plot the numeric columns over the first one. UsageError: there are none. EnvironmentMissingError: matplotlib."""
    along = rows.schema.field(0) if rows.num_columns else None
    upwards = [number for number in range(1, rows.num_columns) if _is_number(rows.schema.field(number).type)]
    if along is None or not upwards:
        raise UsageError(
            "there is nothing to draw",
            operation="plot",
            hint="select a time or a name first, and then a number",
        )
    figure = _figure()
    axes = figure.add_subplot()
    places = rows.column(0).to_pylist()
    sorts = pa.types.is_temporal(along.type) or _is_number(along.type)
    known = [at for at in range(len(places)) if places[at] is not None]
    if sorts:
        known.sort(key=lambda at: places[at])
    draw_one = axes.plot if sorts else axes.bar
    names = [rows.schema.field(number).name for number in upwards]
    for number, name in zip(upwards, names, strict=True):
        heights = rows.column(number).to_pylist()
        draw_one(
            [place.decode(errors="replace") if isinstance(place := places[at], bytes) else place for at in known],
            [float("nan") if heights[at] is None else float(heights[at]) for at in known],
            label=name,
        )
    axes.set_title(shorten(" ".join(title.split()), _TITLE_MAX, placeholder=" …"), fontsize="medium", parse_math=False)
    # Queries and plots are in UTC.
    axes.set_xlabel(f"{along.name} (UTC)" if pa.types.is_timestamp(along.type) else str(along.name), parse_math=False)
    axes.set_ylabel(upwards_label or ", ".join(names), parse_math=False)
    axes.legend()
    figure.autofmt_xdate()
    figure.savefig(file, dpi=120, bbox_inches="tight")


def _figure() -> Any:  # noqa: ANN401 - matplotlib's own
    try:
        # The object-oriented interface, which opens no window and keeps no global state.
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentMissingError(
            f"plots need matplotlib: {error}", operation="plot", hint="pip install 'maxbrod[plot]'"
        ) from error
    figure = Figure(figsize=(10, 5))
    FigureCanvasAgg(figure)
    return figure


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


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


def sparkline(counts: Sequence[int]) -> str:
    """A block for each count, or for several if there are too many. Zero is blank, and one is visible."""
    step = -(-len(counts) // _WIDTH_MAX) or 1
    sums = [sum(counts[at : at + step]) for at in range(0, len(counts), step)]
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
