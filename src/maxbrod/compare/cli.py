"""`maxbrod compare`: compares a cluster with an archive or with another cluster."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from maxbrod.cli.commands import Call, command, kafka_of
from maxbrod.cli.output import err, out, print_first, print_line, print_marked, table
from maxbrod.cli.verbs import at_work, end, load
from maxbrod.compare.options import CompareOptions
from maxbrod.compare.report import CompareReport, Difference, PartitionComparison, name_of
from maxbrod.errors import UsageError, error_of
from maxbrod.options import PLACE, ClusterOptions, JsonOption, QuietOption, SparkOptions
from maxbrod.text import counted, human_count


@command("compare", CompareOptions, before=(ClusterOptions, *PLACE), after=(SparkOptions, QuietOption, JsonOption))
def compare(call: Call[CompareOptions]) -> None:
    """Compare an archive with live topics, or live topics with others: every record, every field.

    Only committed records count. The topics of --bootstrap are the target. The exit code is 0 if everything is equal, 3
    if anything differs, and another code if something could not be read.

    For example:

      maxbrod compare -a /backups/kafka --bootstrap broker1:9092 --topic orders

      maxbrod compare -a /backups/kafka --bootstrap broker1:9092 --restore 1f0c

      maxbrod compare --source broker1:9092 --bootstrap dr1:9092 --topic 'orders-*' --ignore timestamp
    """
    options, source = call.options, None
    if options.source is not None or options.source_command_config is not None:
        if "archive" in call.given:
            raise UsageError("compare either with an archive or with a cluster", hint="give --archive or --source")
        source = kafka_of(None, options.source, options.source_command_config)
    with at_work(call, meanwhile="a comparison changes nothing") as work:
        report = load("compare.run:compare_all")(work, source=source)
    end(call, report, print_comparison)


LINES_SHOWN_MAX: Final = 60
NOTES_SHOWN_MAX: Final = 20
_DIGEST_LETTERS: Final = 12


def print_comparison(report: CompareReport, *, quiet: bool) -> None:
    """Print the report, differing partitions first; if `quiet`, only differences."""
    if quiet:
        print_differences(report, err)
        return
    lines = sorted(report.partitions, key=lambda comparison: comparison.equal)
    renamed = any(line.source_topic != line.target_topic for line in lines)
    names = ("*source", "*target") if renamed else ("*partition",)
    shown = table("", *names, "how", ">records", ">at target", "digest", "verdict")
    shown.title = None
    for line in lines[:LINES_SHOWN_MAX]:
        topics = (line.source_topic, line.target_topic)[: len(names)]
        shown.add_row(*(name_of(topic, line.partition) for topic in topics), *_cells(line))
    out.print(shown)
    if len(lines) > LINES_SHOWN_MAX:
        print_line(f"and {len(lines) - LINES_SHOWN_MAX:,} more lines; --json shows all")
    notes = [f"{name_of(line.target_topic, line.partition)}: {note}" for line in lines for note in line.notes]
    print_first(notes, NOTES_SHOWN_MAX, "more notes; --json shows all")
    if report.schemas is not None:
        schemas = report.schemas
        how = "by their ids" if schemas.mapped_by is None else f"as restore {schemas.mapped_by} has mapped them"
        state = f"{schemas.different:,} differ" if schemas.different else "equal"
        print_line(f"schemas: {counted(schemas.versions, 'version')} in {schemas.url}, {how}: {state}")
    print_differences(report, out)
    took_s = max((report.finished_at_ms - report.started_at_ms) / 1000, 0.001)
    ignored = f", without {', '.join(report.ignored)}" if report.ignored else ""
    print_line(f"{human_count(report.source_records)} records of {report.source}{ignored}, {took_s:,.1f} s")
    out.print(verdict(report), soft_wrap=True)


def print_differences(report: CompareReport, console: Console) -> None:
    """Print the first differences, and what could not be compared."""
    for difference in report.differences:
        print_difference(difference, console)
    for schema in () if report.schemas is None else report.schemas.differences:
        console.print(Text.assemble(("schema ", "bold red"), schema), soft_wrap=True)
    for failed in (partition for partition in report.partitions if partition.failure is not None):
        words = failed.failure or {}
        where = name_of(failed.target_topic, failed.partition)
        print_marked(where, error_of(words).told_of(where), words.get("hint"), to=console)


def verdict(report: CompareReport) -> Text:
    count = f"{human_count(report.source_records)} records"
    if report.equal:
        fields = f"every field of each but {', '.join(report.ignored)}" if report.ignored else "every field of each"
        noted = any(partition.notes for partition in report.partitions)
        more = "as far as they were compared: see above" if noted else "and nothing more"
        return Text.assemble(("equal", "bold green"), f": {count}, {fields}, {more}")
    if not report.partitions:
        return Text.assemble(("not compared", "bold red"), ": there was nothing to compare")
    if any(partition.failure is not None for partition in report.partitions):
        return Text.assemble(("not compared", "bold red"), ": something could not be read")
    if report.schemas is not None and not report.schemas.equal and all(line.equal for line in report.partitions):
        return Text.assemble(("not equal", "bold red"), f": {counted(report.schemas.different, 'schema')} differ")
    differing = sum(not partition.equal for partition in report.partitions)
    return Text.assemble(("not equal", "bold red"), f": {differing:,} of {len(report.partitions):,} differ")


def _cells(comparison: PartitionComparison) -> list[str]:
    digests = [comparison.source_digest[:_DIGEST_LETTERS], comparison.target_digest[:_DIGEST_LETTERS]]
    return [
        comparison.match,
        human_count(comparison.source_records),
        human_count(comparison.target_records),
        digests[0] if digests[0] == digests[1] else "compacted" if comparison.equal else f"{digests[0]} ≠",
        "equal" if comparison.equal else "unknown" if comparison.failure is not None else "differs",
    ]


def print_difference(difference: Difference, console: Console) -> None:
    source, target = (
        "none" if offset is None else str(offset) for offset in (difference.source_offset, difference.target_offset)
    )
    where = f"{difference.source_topic}-{difference.partition} offset {source}"
    if (difference.source_topic, source) != (difference.target_topic, target):
        where += f" / {difference.target_topic}-{difference.partition} offset {target}"
    console.print(Text.assemble((f"{where}: {difference.field}", "bold red")), soft_wrap=True)
    console.print(Text(f"  source {difference.source}"), soft_wrap=True)
    console.print(Text(f"  target {difference.target}"), soft_wrap=True)
