"""`maxbrod bench`: measurements that anyone can repeat, as ratios within one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from maxbrod.cli.output import JsonFlag, err, out, print_json, table
from maxbrod.text import human_bytes
from maxbrod_bench.race import (
    BackupGroup,
    Figure,
    LifecycleGroup,
    Measurement,
    MountGroup,
    ProtectGroup,
    ReplicateGroup,
    RestoreGroup,
    TableGroup,
)

_SHORT_S: Final = 0.5
_AMOUNTS: Final = {
    "seconds": "{:.2f} s",
    "per second": "{:,.0f} /s",
    "per run": "{:.2f}",
    "objects": "{:.0f}",
    "times": "{:.2f} x",
}
_RATES: Final = {"records/s": ("{:.2f} M rec/s", 1e6), "bytes/s": ("{:.1f} GB/s", 1e9), "seconds": ("{:.2f} s", 1)}
_ONLY: Final = typer.Option(help="Measure only this. May be repeated.")

Rounds = Annotated[int, typer.Option(min=1, help="Number of rounds.")]
BestOfRounds = Annotated[int, typer.Option(min=1, help="Number of rounds; the best one is shown.")]
Records = Annotated[int, typer.Option(min=1000, help="Number of records to measure with.")]
Scale = Annotated[float, typer.Option(min=0.001, help="Multiplies the size of the data; 1 for a quick look.")]

app = typer.Typer(help="Measure maxbrod against something anyone can run beside it.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure maxbrod against something anyone can run beside it.

    Each figure is the best of several rounds, in which the contenders take turns. Compare only figures of one run.
    """


@app.command()
def codec(
    records: Records = 400_000,
    batch_bytes: Annotated[
        int, typer.Option(min=1000, help="Size of a batch before compression; Java producers fill up to 16384.")
    ] = 65_536,
    rounds: BestOfRounds = 5,
    json: JsonFlag = False,
) -> None:
    """The record-batch engine on one core: decode, encode, patch, walk, memory."""
    measurements = _page("engine").measure_codec(records=records, batch_bytes=batch_bytes, rounds=rounds)
    _print_measurements("The record-batch engine on one core", measurements, json=json)


@app.command()
def layouts(
    records: Records = 400_000,
    rounds: BestOfRounds = 5,
    only: Annotated[list[str] | None, typer.Option(help="Measure only this layout. May be repeated.")] = None,
    codec: Annotated[str | None, typer.Option(help="Compress with this codec, not each layout's default.")] = None,
    json: JsonFlag = False,
) -> None:
    """Each layout of another tool: records of about 270 bytes written and read, per core."""
    measurements = _page("engine").measure_layouts(records=records, rounds=rounds, only=only or (), codec=codec)
    _print_measurements("Layouts of other tools, per core", measurements, json=json)


@app.command()
def start(
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds for each method.")] = 5,
    json: JsonFlag = False,
) -> None:
    """The time until Spark does its first work in a new process, compared with PySpark's own start."""
    starts = _page("backup").measure_start(rounds=rounds)
    if json:
        print_json([asdict(way) for way in starts])
        return
    shown = table("From nothing to the first mapInArrow", "way", ">median", ">best", ">worst", ">over PySpark")
    for way in starts:
        times = (way.median_seconds, way.best_seconds, way.worst_seconds)
        ratio = starts[0].median_seconds / way.median_seconds
        shown.add_row(way.name, *(f"{seconds:.1f} s" for seconds in times), f"{ratio:.1f} x")
    out.print(shown)


@app.command()
def backup(
    scale: Scale = 3.0,
    rounds: Rounds = 5,
    only: Annotated[list[BackupGroup] | None, _ONLY] = None,
    batch_bytes: Annotated[
        int, typer.Option(min=1000, help="Size of a batch before compression; 16384 is Java's default.")
    ] = 16_384,
    json: JsonFlag = False,
) -> None:
    """A backup beside kcat, Kafka's own tools, cat and a bare loop, on a sandbox of its own."""
    options = {"scale": scale, "rounds": rounds, "only": only or (), "batch_bytes": batch_bytes}
    _measure("backup", "A backup, measured", options, json=json)


@app.command()
def restore(
    scale: Scale = 3.0,
    rounds: Rounds = 3,
    only: Annotated[list[RestoreGroup] | None, _ONLY] = None,
    json: JsonFlag = False,
) -> None:
    """A restore beside Kafka's own ProducerPerformance and a bare loop, on a sandbox of its own."""
    _measure("restore", "A restore, measured", {"scale": scale, "rounds": rounds, "only": only or ()}, json=json)


@app.command()
def follow(
    partitions: Annotated[
        list[int] | None, typer.Option(min=1, help="Partitions of a topic to follow. May be repeated.")
    ] = None,
    runs: Annotated[int, typer.Option(min=0, help="Number of intervals of each kind; 0 for none.")] = 100,
    commits: Annotated[
        int, typer.Option(min=0, help="Number of commits to simulate, a second apart; 0 for none.")
    ] = 10_000,
    soak: Annotated[int, typer.Option(min=0, help="Number of runs after which memory is compared; 0 for none.")] = 0,
    json: JsonFlag = False,
) -> None:
    """What `backup --follow` costs: intervals without and with news, and commits after very many others."""
    options = {"partitions": partitions or (4, 1000), "runs": runs, "commits": commits, "soak": soak}
    _measure("follow", "Following, measured", options, json=json)


@app.command()
def looking(
    rows: Annotated[int, typer.Option(min=1, help="Number of rows of the catalog.")] = 5_000_000,
    json: JsonFlag = False,
) -> None:
    """The peak memory of commands that look at an archive with a large catalog. Takes minutes, and no cluster."""
    _measure("large_archive", "Looking at an archive", {"rows": rows}, json=json)


@app.command(name="table")
def spark_table(
    scale: Annotated[float, typer.Option(min=0.001, help="Multiplies the size of the data.")] = 1.0,
    rounds: Rounds = 3,
    only: Annotated[list[TableGroup] | None, _ONLY] = None,
    json: JsonFlag = False,
) -> None:
    """An archive as a Spark table beside the live topic and Parquet, and a log directory beside reading its files."""
    _measure("table", "The table, measured", {"scale": scale, "rounds": rounds, "only": only or ()}, json=json)


@app.command()
def replicate(
    scale: Annotated[float, typer.Option(min=0.001, help="Multiplies the size of the backlog.")] = 1.0,
    rounds: Rounds = 3,
    latency_seconds: Annotated[float, typer.Option(min=1, help="How long records travel.")] = 60.0,
    only: Annotated[list[ReplicateGroup] | None, _ONLY] = None,
    json: JsonFlag = False,
) -> None:
    """Replication: a backlog beside a backup and a restore of it, latency, quiet partitions, MirrorMaker 2, memory."""
    options = {"scale": scale, "rounds": rounds, "latency_s": latency_seconds, "only": only or ()}
    _measure("replicate", "Replication, measured", options, json=json)


@app.command()
def lifecycle(
    scale: Annotated[float, typer.Option(min=0.0001, help="Multiplies the size of the data.")] = 1.0,
    rounds: Rounds = 3,
    only: Annotated[list[LifecycleGroup] | None, _ONLY] = None,
    json: JsonFlag = False,
) -> None:
    """Looking after an archive over years: compaction, repair, requests, a catalog of 5 million rows."""
    options = {"scale": scale, "rounds": rounds, "only": only or ()}
    _measure("lifecycle", "The life of an archive, measured", options, json=json)


@app.command()
def mount(
    scale: Scale = 1.0,
    rounds: Rounds = 3,
    only: Annotated[list[MountGroup] | None, _ONLY] = None,
    json: JsonFlag = False,
) -> None:
    """A mount beside a broker: Kafka's own consumer reads the same records from both."""
    options = {"scale": scale, "rounds": rounds, "only": only or ()}
    _measure("mount", "A mount, measured", options, json=json)


@app.command()
def protect(
    scale: Scale = 1.0,
    rounds: Rounds = 3,
    only: Annotated[list[ProtectGroup] | None, _ONLY] = None,
    json: JsonFlag = False,
) -> None:
    """Protecting an archive: a second copy beside cat."""
    _measure("protect", "Protection, measured", {"scale": scale, "rounds": rounds, "only": only or ()}, json=json)


def _page(name: str) -> Any:  # noqa: ANN401 - a module
    """Load a benchmark when it runs: it loads numba, Spark or Kafka, which other commands must not."""
    return import_module(f"maxbrod_bench.{name}")


def _measure(name: str, title: str, options: dict[str, Any], *, json: bool) -> None:
    _print_figures(title, _page(name).measure(**options, on_stage=_print_stage), json=json)


def _print_stage(stage: str) -> None:
    if err.is_terminal:
        err.print(f"{stage} ...")


def _print_measurements(title: str, measurements: Sequence[Measurement], *, json: bool) -> None:
    if json:
        print_json([asdict(measurement) for measurement in measurements])
        return
    shown = table(title, "what", ">measured", ">wanted", "")
    for found in measurements:
        shown.add_row(found.name, _rate(found.unit, found.rate), _rate(found.unit, found.wanted), found.note)
    out.print(shown)


def _print_figures(title: str, figures: Sequence[Figure], *, json: bool) -> None:
    if json:
        print_json([{**asdict(figure), "reached": figure.reached} for figure in figures])
        return
    shown = table(title, "what", ">best", ">median", ">cpu", ">wanted")
    for figure in figures:
        bound = "≤" if figure.at_most else "≥"
        wanted = "" if figure.wanted is None else f"{bound} {_amount(figure.unit, figure.wanted)}"
        amounts = (_amount(figure.unit, value) for value in (figure.value, figure.median))
        shown.add_row(figure.name, *amounts, _amount("times", figure.cpu), wanted)
    out.print(shown)
    for figure in figures:
        if figure.note:
            out.print(f"{figure.name}: {figure.note}", markup=False)


def _amount(unit: str, value: float | None) -> str:
    if value is None:
        return ""
    if unit == "bytes":
        return human_bytes(value)
    if unit == "seconds" and value < _SHORT_S:
        return f"{1000 * value:.1f} ms"
    return _AMOUNTS[unit].format(value)


def _rate(unit: str, value: float | None) -> str:
    form, size = _RATES.get(unit, ("{:.1f} x", 1))
    return "" if value is None else form.format(value / size)
