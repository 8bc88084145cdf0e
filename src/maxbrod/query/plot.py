"""Draws rows with matplotlib: the first column along, every column of numbers upwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from maxbrod.errors import EnvironmentMissingError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def draw(rows: pa.Table, file: Path) -> None:
    """UsageError: nothing can be drawn of them. EnvironmentMissingError: there is no matplotlib."""
    along, upwards = rows.schema.field(0) if rows.num_columns else None, []
    upwards = [number for number in range(1, rows.num_columns) if _is_number(rows.schema.field(number).type)]
    if along is None or not upwards:
        raise UsageError(
            "there is nothing to draw",
            operation="plot",
            hint="let the first column be a time or a name, and a number follow",
        )
    figure = _figure()
    axes = figure.add_subplot()
    places = rows.column(0).to_pylist()
    order = sorted(range(len(places)), key=lambda at: (places[at] is None, places[at]) if _sorts(along.type) else at)
    draw_one = axes.plot if _sorts(along.type) else axes.bar
    known = [at for at in order if places[at] is not None]
    for number in upwards:
        heights = rows.column(number).to_pylist()
        draw_one(
            [_place(places[at]) for at in known],
            [_height(heights[at]) for at in known],
            label=rows.schema.field(number).name,
        )
    axes.set_xlabel(along.name)
    axes.legend()
    figure.autofmt_xdate()
    figure.savefig(file, dpi=120, bbox_inches="tight")


def _figure() -> Any:  # noqa: ANN401 - matplotlib's own
    try:
        # The object-oriented way: no window, no state of the process.
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentMissingError(
            f"pictures need matplotlib: {error}", operation="plot", hint="pip install 'maxbrod[plot]'"
        ) from error
    figure = Figure(figsize=(10, 5))
    FigureCanvasAgg(figure)
    return figure


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _sorts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) or _is_number(kind))


def _place(value: Any) -> Any:  # noqa: ANN401 - of any type
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _height(value: Any) -> float:  # noqa: ANN401 - a number or null
    return float("nan") if value is None else float(value)
