"""`maxbrod convert`: from one layout into another."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import out, print_json, print_line, table
from maxbrod.convert.options import ConvertOptions
from maxbrod.errors import UsageError
from maxbrod.options import JsonOption, QuietOption, SparkOptions, StorageOptions
from maxbrod.text import human_bytes
from maxbrod.transform.summary import print_changes

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.convert.report import ConvertedTopic, ConvertReport
    from maxbrod.convert.run import Convert, ConvertRequest

_NOTICES_SHOWN: Final = 20


@command("convert", ConvertOptions, after=(StorageOptions, SparkOptions, QuietOption, JsonOption))
def convert(call: Call[ConvertOptions]) -> None:
    """Convert an archive into another layout, and verify that all records are there.

    Records that the target already has are not written again: a conversion that was interrupted resumes, and a later
    one adds what is new. The exit code is 4 if records cannot be read, or differ between the two archives.

    For example:

      maxbrod convert /backups/old /backups/kafka --to kafka

      maxbrod convert s3://backups/kafka /export --to parquet --topic 'orders-*'

      maxbrod convert /backups/kafka /backups/clean --to kafka --where "key != 'user-17'"
    """
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415
    from maxbrod.convert.run import Convert  # noqa: PLC0415 - Arrow and Delta: not for `--help`

    quiet, as_json = call.quiet, call.as_json
    request = _request(call.options, call.config)
    stop = threading.Event()
    with (
        stopping_by_signals(stop),
        progress_bar(shown=not (quiet or as_json)) as on_progress,
        Convert(request, call.config.spark, on_progress=on_progress, stop=stop) as work,
    ):
        if not quiet and not as_json:
            _print_losses(work)
        report = work.run()
    if as_json:
        print_json(report.as_dict())
    else:
        print_report(report, quiet=quiet)
    raise typer.Exit(report.exit_code)


def _request(options: ConvertOptions, config: Config) -> ConvertRequest:
    from maxbrod.archive.foreign_target import TargetRequest  # noqa: PLC0415 - not for `--help`
    from maxbrod.convert.run import ConvertRequest, sides_of  # noqa: PLC0415
    from maxbrod.transform.plan import Transform  # noqa: PLC0415

    if options.source is None or options.target is None:
        raise UsageError("a conversion needs SRC and DST", hint="see 'maxbrod convert --help'")
    if options.to is None:
        raise UsageError("--to is missing", hint="see 'maxbrod convert --help'")
    source, target = sides_of(
        config.storage, (options.source, options.target), (options.from_storage, options.to_storage)
    )
    transformed = options.where is not None or options.select is not None
    return ConvertRequest(
        source_url=options.source,
        source=source,
        target_url=options.target,
        target=target,
        source_layout=options.from_layout,
        source_extra=options.from_options,
        topics=options.topics,
        transform=Transform(where=options.where, select=options.select) if transformed else None,
        verify=options.verify,
        to=TargetRequest(
            layout=options.to,
            codec=options.codec,
            segment_bytes=options.segment_bytes,
            segment_records=options.segment_records,
            extra=options.layout_options or None,
            accept_loss=options.accept_loss,
        ),
    )


def _print_losses(work: Convert) -> None:
    print_line(f"from the layout {work.source_layout} into {work.target.url}")
    for loss in work.target.losses:
        print_line(f"{'lost' if loss.real else 'not kept'} in this layout: {loss.what}")


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
