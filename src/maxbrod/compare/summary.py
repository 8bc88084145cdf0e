"""Prints the result of a comparison. The output is bounded; `--json` has all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from maxbrod.cli.output import out, print_line, table
from maxbrod.compare.report import CompareReport, PartitionComparison, name_of
from maxbrod.errors import error_of
from maxbrod.text import human_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from maxbrod.compare.plan.parts import Difference

LINES_SHOWN_MAX: Final = 60
NOTES_SHOWN_MAX: Final = 20
_DIGEST_LETTERS: Final = 12


def print_comparison(report: CompareReport) -> None:
    """Print the report, differing partitions first."""
    lines = sorted(report.partitions, key=lambda each: each.equal)
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
    _print_notes(lines)
    print_differences(report, out)
    took_s = max((report.finished_at_ms - report.started_at_ms) / 1000, 0.001)
    ignored = f", without {', '.join(report.ignored)}" if report.ignored else ""
    print_line(f"{human_count(report.source_records)} records of {report.source}{ignored}, {took_s:,.1f} s")
    out.print(verdict(report), soft_wrap=True)


def print_differences(report: CompareReport, console: Console) -> None:
    """Print the first differences, and what could not be compared."""
    for difference in report.differences:
        print_difference(difference, console)
    for failed in (partition for partition in report.partitions if partition.failure is not None):
        words = failed.failure or {}
        where = name_of(failed.target_topic, failed.partition)
        console.print(Text.assemble((f"{where}: ", "bold red"), error_of(words).told_of(where)), soft_wrap=True)
        if words.get("hint"):
            console.print(Text(f"  {words['hint']}", style="dim"), soft_wrap=True)


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
    differing = sum(not partition.equal for partition in report.partitions)
    return Text.assemble(("not equal", "bold red"), f": {differing:,} of {len(report.partitions):,} differ")


def _cells(each: PartitionComparison) -> list[str]:
    digests = [each.source_digest[:_DIGEST_LETTERS], each.target_digest[:_DIGEST_LETTERS]]
    return [
        each.match,
        human_count(each.source_records),
        human_count(each.target_records),
        digests[0] if digests[0] == digests[1] else "compacted" if each.equal else f"{digests[0]} ≠",
        "equal" if each.equal else "unknown" if each.failure is not None else "differs",
    ]


def _print_notes(lines: Iterable[PartitionComparison]) -> None:
    notes = [f"{name_of(line.target_topic, line.partition)}: {note}" for line in lines for note in line.notes]
    for note in notes[:NOTES_SHOWN_MAX]:
        print_line(note)
    if len(notes) > NOTES_SHOWN_MAX:
        print_line(f"and {len(notes) - NOTES_SHOWN_MAX:,} more notes; --json shows all")


def print_difference(each: Difference, console: Console) -> None:
    source, target = ("none" if offset is None else str(offset) for offset in (each.source_offset, each.target_offset))
    where = f"{each.source_topic}-{each.partition} offset {source}"
    if (each.source_topic, source) != (each.target_topic, target):
        where += f" / {each.target_topic}-{each.partition} offset {target}"
    console.print(Text.assemble((f"{where}: {each.field}", "bold red")), soft_wrap=True)
    console.print(Text(f"  source {each.source}"), soft_wrap=True)
    console.print(Text(f"  target {each.target}"), soft_wrap=True)
