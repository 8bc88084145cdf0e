"""`maxbrod convert`: from one layout into another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import out, print_line, table
from maxbrod.cli.verbs import at_work, end, load
from maxbrod.convert.options import ConvertOptions
from maxbrod.options import JsonOption, LookOptions, QuietOption, SparkOptions, StorageOptions
from maxbrod.text import human_bytes
from maxbrod.transform.summary import print_changes

if TYPE_CHECKING:
    from maxbrod.convert.verb import Conversion, ConvertedTopic, ConvertReport

_NOTICES_SHOWN: Final = 20


@command(
    "convert",
    ConvertOptions,
    after=(StorageOptions, LookOptions, SparkOptions, QuietOption, JsonOption),
    looks=lambda _: False,
)
def convert(call: Call[ConvertOptions]) -> None:
    """Convert an archive into another layout, and verify that all records are there.

    Records that the target already has are not written again: a conversion that was interrupted resumes, and a later
    one adds what is new. The exit code is 4 if records cannot be read, or differ between the two archives.

    For example:

      maxbrod convert /backups/old /backups/kafka --to kafka

      maxbrod convert s3://backups/kafka /export --to parquet --topic 'orders-*'

      maxbrod convert /backups/kafka /backups/clean --to kafka --where "key != 'user-17'"
    """
    with at_work(call) as work:
        conversion: Conversion = load("convert.verb:Conversion")(work, call.options)
        if not call.silent:
            print_line(f"from the layout {conversion.source.archive.layout} into {conversion.target.url}")
            for loss in conversion.target.losses:
                print_line(f"{'lost' if loss.real else 'not kept'} in this layout: {loss.what}")
        report = conversion.run()
    end(call, report, print_report)


def print_report(report: ConvertReport, *, quiet: bool, done: str | None = None) -> None:
    """`done` names what was done, if that is not called a conversion."""
    for notice in report.notices[:_NOTICES_SHOWN]:
        print_line(f"{notice.kind}: {notice}")
        if notice.hint:
            print_line(f"  {notice.hint}")
    if len(report.notices) > _NOTICES_SHOWN:
        print_line(f"and {len(report.notices) - _NOTICES_SHOWN:,} more: see --json")
    if quiet:
        return
    compared = any(topic.equal is not None for topic in report.topics)
    proof = (">records", "digest", "verdict") if compared else ()
    shown = table(report.target, "*topic", ">parts", ">written", ">stored", *proof)
    for topic in report.topics:
        cells = [topic.topic, f"{topic.partitions:,}", f"{topic.records:,}", human_bytes(topic.bytes)]
        shown.add_row(*cells, *(_proof(topic) if compared else ()))
    out.print(shown)
    if report.changes:
        print_changes(report.changes)
    took_s = (report.finished_at_ms - report.started_at_ms) / 1000
    done = done or f"converted from {report.source_layout} to {report.target_layout}"
    if report.exit_code:
        print_line(f"{report.verdict}, after {took_s:,.1f} s: not all of it was {done}; see above")
        return
    print_line(f"{done} in {took_s:,.1f} s" + ("" if compared else "; 'maxbrod check --deep' proves what was written"))


def _proof(topic: ConvertedTopic) -> tuple[str, str, str]:
    """The cells that prove the copy."""
    return (
        "" if topic.target_records is None else f"{topic.target_records:,}",
        "" if topic.target_digest is None else topic.target_digest[:16],
        {None: "not compared", True: "equal", False: "DIFFERENT"}[topic.equal],
    )
