"""`maxbrod bench`: measurements that anyone can repeat, as ratios within one run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from maxbrod.cli.output import JsonFlag, out, print_json

if TYPE_CHECKING:
    from maxbrod.bench.codec import Measurement

app = typer.Typer(help="Measure maxbrod against something anyone can run beside it.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure maxbrod against something anyone can run beside it.

    Every figure is the best of several rounds in which the contenders take turns. Compare figures of one run only.
    """


@app.command()
def codec(
    records: Annotated[int, typer.Option(min=1000, help="How many records to measure with.")] = 400_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count; the best of them is shown.")] = 5,
    json: JsonFlag = False,
) -> None:
    """The record-batch engine on one core: decode, encode, patch, walk, memory."""
    from maxbrod.bench.codec import measure  # noqa: PLC0415 - loads numba, which other commands must not

    measurements = measure(records=records, rounds=rounds)
    if json:
        print_json([asdict(measurement) for measurement in measurements])
        return
    table = Table(title="record-batch engine, one core")
    for heading, side in (("what", "left"), ("measured", "right"), ("wanted", "right"), ("", "left")):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]  # rich's own literal type
    for measurement in measurements:
        table.add_row(
            measurement.name,
            _figure(measurement, measurement.rate),
            _figure(measurement, measurement.wanted),
            measurement.note,
        )
    out.print(table)


def _figure(measurement: Measurement, value: float | None) -> str:
    if value is None:
        return ""
    match measurement.unit:
        case "records/s":
            return f"{value / 1e6:.2f} M records/s"
        case "bytes/s":
            return f"{value / 1e9:.1f} GB/s"
        case _:
            return f"{value:.1f} x"
