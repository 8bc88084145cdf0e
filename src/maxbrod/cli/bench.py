"""`maxbrod bench`: measurements that anyone can repeat, as ratios within one run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from maxbrod.cli.output import JsonFlag, out, print_json, table

app = typer.Typer(help="Measure maxbrod against something anyone can run beside it.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure maxbrod against something anyone can run beside it.

    Every figure is the best of several rounds in which the contenders take turns. Compare figures of one run only.
    """


@app.command()
def codec(
    records: Annotated[int, typer.Option(min=1000, help="How many records to measure with.")] = 400_000,
    batch_bytes: Annotated[
        int, typer.Option(min=1000, help="How large a batch is before compression; Java producers fill up to 16384.")
    ] = 65_536,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count; the best of them is shown.")] = 5,
    json: JsonFlag = False,
) -> None:
    """The record-batch engine on one core: decode, encode, patch, walk, memory."""
    from maxbrod.bench.codec import measure  # noqa: PLC0415 - loads numba, which other commands must not

    measurements = measure(records=records, batch_bytes=batch_bytes, rounds=rounds)
    if json:
        print_json([asdict(measurement) for measurement in measurements])
        return
    shown = table("The record-batch engine on one core", "what", ">measured", ">wanted", "")
    for each in measurements:
        shown.add_row(each.name, _figure(each.unit, each.rate), _figure(each.unit, each.wanted), each.note)
    out.print(shown)


@app.command()
def start(
    rounds: Annotated[int, typer.Option(min=1, help="How often each way is tried.")] = 5,
    json: JsonFlag = False,
) -> None:
    """How long Spark takes to its first work in a fresh process, beside PySpark's own way."""
    from maxbrod.bench.start import measure  # noqa: PLC0415 - as above

    starts = measure(rounds=rounds)
    if json:
        print_json([asdict(each) for each in starts])
        return
    shown = table("From nothing to the first mapInArrow", "way", ">median", ">best", ">worst", ">over PySpark")
    for each in starts:
        times = (each.median_seconds, each.best_seconds, each.worst_seconds)
        ratio = starts[0].median_seconds / each.median_seconds
        shown.add_row(each.name, *(f"{seconds:.1f} s" for seconds in times), f"{ratio:.1f} x")
    out.print(shown)


def _figure(unit: str, value: float | None) -> str:
    if value is None:
        return ""
    match unit:
        case "records/s":
            return f"{value / 1e6:.2f} M rec/s"
        case "bytes/s":
            return f"{value / 1e9:.1f} GB/s"
        case "seconds":
            return f"{value:.2f} s"
        case _:
            return f"{value:.1f} x"
