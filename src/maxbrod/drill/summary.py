"""Prints the result of a drill. Its report files have all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from maxbrod.cli.output import out, print_line
from maxbrod.text import counted, human_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from maxbrod.drill.report import DrillReport

_SHOWN_MAX: Final = 10
_WORDS: Final = {
    "proven": "every sampled record was restored and equals the archive's",
    "differs": "the restored records differ from the archive",
    "failed": "the drill could not be carried out",
    "stopped": "the drill was stopped and proves nothing",
}


def print_drill(report: DrillReport, files: Sequence[Path], *, signed: bool) -> None:
    seed = "" if report.seed is None else f", drawn by --seed {report.seed}"
    print_line(
        f"{report.sample}: {len(report.covered):,} of {counted(report.partitions_known, 'partition')}{seed}, "
        f"{human_count(report.records)} records of {report.archive}"
    )
    print_line(", ".join(f"{name} {took_s:,.1f} s" for name, took_s in report.durations_s.items()))
    if report.leftovers:
        print_line(f"removed topics of an earlier drill: {', '.join(report.leftovers[:_SHOWN_MAX])}")
    print_trouble(report, out)
    print_line(f"{'signed' if signed else 'unsigned'} report: {', '.join(map(str, files))}")
    good = report.exit_code == 0
    style = "bold green" if good else "bold red"
    lacking = (
        f", but for {counted(report.lacking, 'range')} of offsets that the archive lacks" if report.lacking else ""
    )
    words = f"{_WORDS[report.verdict]}{lacking if report.verdict == 'proven' else ''}"
    out.print(Text.assemble((str(report.verdict), style), f": {words}"), soft_wrap=True)


def print_trouble(report: DrillReport, console: Console) -> None:
    if report.error is not None:
        console.print(Text.assemble(("error: ", "bold red"), _said(report.error)), soft_wrap=True)
        if report.error.get("hint"):
            console.print(Text(f"  {report.error['hint']}", style="dim"), soft_wrap=True)
    others = [failure for failure in report.failures if failure is not report.error]
    for other in others[:_SHOWN_MAX]:
        console.print(Text.assemble(("failed: ", "bold red"), _said(other)), soft_wrap=True)
    if len(others) > _SHOWN_MAX:
        console.print(Text(f"and {len(others) - _SHOWN_MAX:,} more; the report has all"), soft_wrap=True)
    for each in () if report.comparison is None else report.comparison["differences"][:_SHOWN_MAX]:
        where = f"{each['source_topic']}-{each['partition']} offset {each['source_offset']}: {each['field']}"
        console.print(Text.assemble((where, "bold red"), f" is {each['target']} instead of {each['source']}"))
    if report.remains:
        left = f"these topics could not be removed: {', '.join(report.remains[:_SHOWN_MAX])}"
        console.print(Text.assemble(("error: ", "bold red"), left), soft_wrap=True)


def _said(error: Mapping[str, Any]) -> str:
    where = f"{error['where']}: " if error.get("where") else ""
    parts = [f"in {error['object_name']}"] if error.get("object_name") else []
    parts += [f"at offset {error['offset']}"] if error.get("offset") is not None else []
    place = f" ({', '.join(parts)})" if parts else ""
    return f"{where}{error.get('message')}{place}"
