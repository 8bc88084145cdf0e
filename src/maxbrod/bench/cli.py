"""`maxbrod bench`: measurements that anyone can repeat, as ratios within one run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from maxbrod.bench.groups import (
    Group,
    LifecycleGroup,
    ReplicateGroup,
    RestoreGroup,
    TableGroup,
)
from maxbrod.cli.output import JsonFlag, err, out, print_json, table
from maxbrod.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.bench.figures import Figure

_SHORT_S: Final = 0.5

app = typer.Typer(help="Measure maxbrod against something anyone can run beside it.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure maxbrod against something anyone can run beside it.

    Each figure is the best of several rounds, in which the contenders take turns. Compare only figures of one run.
    """


@app.command()
def codec(
    records: Annotated[int, typer.Option(min=1000, help="Number of records to measure with.")] = 400_000,
    batch_bytes: Annotated[
        int, typer.Option(min=1000, help="Size of a batch before compression; Java producers fill up to 16384.")
    ] = 65_536,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; the best one is shown.")] = 5,
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
def layouts(
    records: Annotated[int, typer.Option(min=1000, help="Number of records to measure with.")] = 400_000,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; the best one is shown.")] = 5,
    only: Annotated[list[str] | None, typer.Option(help="Measure only this layout. May be repeated.")] = None,
    codec: Annotated[str | None, typer.Option(help="Compress with this codec, not each layout's default.")] = None,
    json: JsonFlag = False,
) -> None:
    """Each layout of another tool: records of about 270 bytes written and read, per core."""
    from maxbrod.bench.layouts import measure  # noqa: PLC0415 - as above

    measurements = measure(records=records, rounds=rounds, only=only or (), codec=codec)
    if json:
        print_json([asdict(measurement) for measurement in measurements])
        return
    shown = table("Layouts of other tools, per core", "what", ">measured", ">wanted", "")
    for each in measurements:
        shown.add_row(each.name, _figure(each.unit, each.rate), _figure(each.unit, each.wanted), each.note)
    out.print(shown)


@app.command()
def start(
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds for each method.")] = 5,
    json: JsonFlag = False,
) -> None:
    """The time until Spark does its first work in a new process, compared with PySpark's own start."""
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


@app.command()
def backup(
    scale: Annotated[float, typer.Option(min=0.001, help="Multiplies the size of the data; 1 for a quick look.")] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 5,
    only: Annotated[list[Group] | None, typer.Option(help="Measure only this. May be repeated.")] = None,
    batch_bytes: Annotated[
        int, typer.Option(min=1000, help="Size of a batch before compression; 16384 is Java's default.")
    ] = 16_384,
    json: JsonFlag = False,
) -> None:
    """A backup beside kcat, Kafka's own tools, cat and a bare loop, on a sandbox of its own."""
    from maxbrod.bench.backup import measure  # noqa: PLC0415 - as above

    _print_figures(
        "A backup, measured",
        measure(scale=scale, rounds=rounds, only=only or (), batch_bytes=batch_bytes, on_stage=_print_stage),
        json=json,
    )


@app.command()
def restore(
    scale: Annotated[float, typer.Option(min=0.001, help="Multiplies the size of the data; 1 for a quick look.")] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 3,
    only: Annotated[list[RestoreGroup] | None, typer.Option(help="Measure only this. May be repeated.")] = None,
    json: JsonFlag = False,
) -> None:
    """A restore beside Kafka's own ProducerPerformance and a bare loop, on a sandbox of its own."""
    from maxbrod.bench.restore import measure  # noqa: PLC0415 - as above

    figures = measure(scale=scale, rounds=rounds, only=only or (), on_stage=_print_stage)
    _print_figures("A restore, measured", figures, json=json)


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
    from maxbrod.bench.follow import measure  # noqa: PLC0415 - as above

    figures = measure(partitions=partitions or (4, 1000), runs=runs, commits=commits, soak=soak, on_stage=_print_stage)
    _print_figures("Following, measured", figures, json=json)


@app.command()
def looking(
    rows: Annotated[int, typer.Option(min=1, help="Number of rows of the catalog.")] = 5_000_000,
    json: JsonFlag = False,
) -> None:
    """The peak memory of commands that look at an archive with a large catalog. Takes minutes, and no cluster."""
    from maxbrod.bench.looking import measure  # noqa: PLC0415 - as above

    _print_figures("Looking at an archive", measure(rows=rows, on_stage=_print_stage), json=json)


@app.command(name="table")
def spark_table(
    scale: Annotated[float, typer.Option(min=0.001, help="Multiplies the size of the data.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 3,
    only: Annotated[list[TableGroup] | None, typer.Option(help="Measure only this. May be repeated.")] = None,
    json: JsonFlag = False,
) -> None:
    """An archive as a Spark table beside the live topic and Parquet, and a log directory beside reading its files."""
    from maxbrod.bench.table import measure  # noqa: PLC0415 - as above

    figures = measure(scale=scale, rounds=rounds, only=only or (), on_stage=_print_stage)
    _print_figures("The table, measured", figures, json=json)


@app.command()
def replicate(
    scale: Annotated[float, typer.Option(min=0.001, help="Multiplies the size of the backlog.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 3,
    latency_seconds: Annotated[float, typer.Option(min=1, help="How long records travel.")] = 60.0,
    only: Annotated[list[ReplicateGroup] | None, typer.Option(help="Measure only this. May be repeated.")] = None,
    json: JsonFlag = False,
) -> None:
    """Replication: a backlog beside a backup and a restore of it, latency, quiet partitions, MirrorMaker 2, memory."""
    from maxbrod.bench import mirror_maker  # noqa: PLC0415 - as above
    from maxbrod.bench.replicate import measure  # noqa: PLC0415

    chosen = only or list(ReplicateGroup)
    figures: list[Figure] = []
    if ReplicateGroup.LINK in chosen:
        figures += measure(scale=scale, rounds=rounds, latency_s=latency_seconds, on_stage=_print_stage)
    if ReplicateGroup.MIRROR_MAKER in chosen:
        figures += mirror_maker.measure(scale=scale, rounds=rounds, on_stage=_print_stage)
    if ReplicateGroup.MEMORY in chosen:
        figures += mirror_maker.measure_memory(scale=scale, on_stage=_print_stage)
    _print_figures("Replication, measured", figures, json=json)


@app.command()
def lifecycle(
    scale: Annotated[float, typer.Option(min=0.0001, help="Multiplies the size of the data.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 3,
    only: Annotated[list[LifecycleGroup] | None, typer.Option(help="Measure only this. May be repeated.")] = None,
    json: JsonFlag = False,
) -> None:
    """Looking after an archive over years: compaction, repair, requests, a catalog of 5 million rows."""
    from maxbrod.bench import by_key, rebuild, requests  # noqa: PLC0415 - as above
    from maxbrod.bench.lifecycle import measure  # noqa: PLC0415
    from maxbrod.bench.scale import PARTITIONS, SEGMENTS, measure_scale  # noqa: PLC0415

    chosen = only or list(LifecycleGroup)
    compaction = [each for each in chosen if each in {LifecycleGroup.COMPACT, LifecycleGroup.DAY}]
    figures: list[Figure] = []
    if compaction:
        figures += measure(scale=scale, rounds=rounds, only=compaction, on_stage=_print_stage)
    if LifecycleGroup.BY_KEY in chosen:
        _print_stage("compaction by key")
        figures += by_key.measure(scale=scale, rounds=rounds)
    if LifecycleGroup.REPAIR in chosen:
        _print_stage("rebuilding a catalog")
        figures += rebuild.measure(scale=scale, rounds=rounds)
    if LifecycleGroup.REQUESTS in chosen:
        figures += requests.measure()
    if LifecycleGroup.SCALE in chosen:
        _print_stage("a catalog of 5 million rows")
        figures += measure_scale(partitions=round(PARTITIONS * scale), segments=round(SEGMENTS * scale))
    _print_figures("The life of an archive, measured", figures, json=json)


def _print_stage(stage: str) -> None:
    if err.is_terminal:
        err.print(f"{stage} ...")


def _print_figures(title: str, figures: Sequence[Figure], *, json: bool) -> None:
    if json:
        print_json([{**asdict(figure), "reached": figure.reached} for figure in figures])
        return
    shown = table(title, "what", ">best", ">median", ">cpu", ">wanted")
    for figure in figures:
        wanted = (
            "" if figure.wanted is None else f"{'≤' if figure.at_most else '≥'} {_amount(figure.unit, figure.wanted)}"
        )
        shown.add_row(
            figure.name,
            _amount(figure.unit, figure.value),
            _amount(figure.unit, figure.median),
            _amount("times", figure.cpu),
            wanted,
        )
    out.print(shown)
    for figure in figures:
        if figure.note:
            out.print(f"{figure.name}: {figure.note}", markup=False)


def _amount(unit: str, value: float | None) -> str:
    match unit, value:
        case _, None:
            return ""
        case "seconds", float() if value < _SHORT_S:
            return f"{1000 * value:.1f} ms"
        case "seconds", float():
            return f"{value:.2f} s"
        case "bytes", _:
            return human_bytes(value or 0)
        case "per second", _:
            return f"{value:,.0f} /s"
        case "per run", _:
            return f"{value:.2f}"
        case "objects", _:
            return f"{value:.0f}"
        case _:
            return f"{value:.2f} x"


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
