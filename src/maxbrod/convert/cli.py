"""`maxbrod convert`: from one layout into another."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Final

import typer

from maxbrod.backup.cli_options import (
    AcceptLossOption,
    CodecOption,
    LayoutExtraOption,
    MasterOption,
    QuietFlag,
    SegmentBytesOption,
    SegmentRecordsOption,
    TopicOption,
    layout_extras,
)
from maxbrod.cli.options import ConfigOption, S3EndpointOption, S3PathStyleOption, S3RegionOption, find_place
from maxbrod.cli.output import JsonFlag, human_bytes, out, print_json, print_line, table
from maxbrod.transform.summary import print_changes

if TYPE_CHECKING:
    from maxbrod.convert.report import ConvertedTopic, ConvertReport
    from maxbrod.convert.run import Convert

_NOTICES_SHOWN: Final = 20


def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The archive to convert, in any layout.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="Where it goes: empty, or converted to before.")],
    to: Annotated[
        str, typer.Option("--to", metavar="NAME", help="kafka (our own), kbak, kbs, binlog, avro or parquet.")
    ],
    from_layout: Annotated[
        str | None,
        typer.Option("--from", metavar="NAME", help="The layout of SRC; looked for without.", show_default=False),
    ] = None,
    from_option: Annotated[
        list[str] | None,
        typer.Option(
            "--from-option",
            metavar="K=V",
            help="What only the layout of SRC knows, such as uncommitted_tail=true of logdir; may be repeated.",
            show_default=False,
        ),
    ] = None,
    topic: TopicOption = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="SQL",
            help="Only records that this is true of, as of restore; --to kafka only.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            "--select",
            metavar="SQL",
            help="Rewrite key, value, headers or timestamp, as of restore; --to kafka only.",
            show_default=False,
        ),
    ] = None,
    codec: CodecOption = None,
    segment_bytes: SegmentBytesOption = None,
    segment_records: SegmentRecordsOption = None,
    layout_option: LayoutExtraOption = None,
    accept_loss: AcceptLossOption = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Read both sides again, and compare every record.")
    ] = True,
    config: ConfigOption = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    s3_path_style: S3PathStyleOption = None,
    master: MasterOption = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Convert an archive into another layout, and prove that all records are there.

    What the target has already is left alone: a conversion that was interrupted goes on, and one that is run again
    takes what is new. Ends with 4 if records cannot be read, or are not the same on both sides.

    For example:

      maxbrod convert /backups/old /backups/kafka --to kafka

      maxbrod convert s3://backups/kafka /export --to parquet --topic 'orders-*'

      maxbrod convert /backups/kafka /backups/clean --to kafka --where "key != 'user-17'"
    """
    from maxbrod.archive.foreign_target import TargetRequest  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415
    from maxbrod.convert.run import Convert, ConvertRequest  # noqa: PLC0415 - Arrow and Delta: not for `--help`
    from maxbrod.transform.plan import Transform  # noqa: PLC0415

    place = find_place(source, config, endpoint=s3_endpoint, region=s3_region, path_style=s3_path_style)
    spark = place.config.spark if master is None else place.config.spark.model_copy(update={"master": master})
    request = ConvertRequest(
        source_url=source,
        source=place.storage,
        target_url=target,
        target=place.storage,
        source_layout=from_layout,
        source_extra=layout_extras(from_option) or {},
        topics=tuple(topic or ()),
        transform=None if where is None and select is None else Transform(where=where, select=select),
        verify=verify,
        to=TargetRequest(
            layout=to,
            codec=codec,
            segment_bytes=None if segment_bytes is None else _bytes(segment_bytes),
            segment_records=segment_records,
            extra=layout_extras(layout_option),
            accept_loss=bool(accept_loss),
        ),
    )
    stop = threading.Event()
    with (
        stopping_by_signals(stop),
        progress_bar(shown=not (quiet or as_json)) as on_progress,
        Convert(request, spark, on_progress=on_progress, stop=stop) as work,
    ):
        if not quiet and not as_json:
            _tell(work)
        report = work.run()
    if as_json:
        print_json(report.as_dict())
    else:
        print_report(report, quiet=quiet)
    raise typer.Exit(report.exit_code)


def _bytes(text: str) -> int:
    from maxbrod.config import BackupConfig  # noqa: PLC0415 - pydantic: not for `--help`

    return BackupConfig.model_validate({"segment_bytes": text}).segment_bytes


def _tell(work: Convert) -> None:
    print_line(f"from the layout {work.source_layout} into {work.target.url}")
    for loss in work.target.losses:
        print_line(f"{'lost' if loss.real else 'not kept'} in this layout: {loss.what}")


def print_report(report: ConvertReport, *, quiet: bool, done: str | None = None) -> None:
    """`done` says what was done, where that is not what one calls a conversion."""
    for notice in report.notices[:_NOTICES_SHOWN]:
        print_line(f"{notice.kind}: {notice}")
        if notice.hint:
            print_line(f"  {notice.hint}")
    if len(report.notices) > _NOTICES_SHOWN:
        print_line(f"and {len(report.notices) - _NOTICES_SHOWN:,} more: see --json")
    if quiet:
        return
    compared = any(each.equal is not None for each in report.topics)
    proof = (">records", "digest", "verdict") if compared else ()
    shown = table(report.target, "*topic", ">parts", ">written", ">stored", *proof)
    for each in report.topics:
        cells = [each.topic, f"{each.partitions:,}", f"{each.records:,}", human_bytes(each.bytes)]
        shown.add_row(*cells, *(_proof(each) if compared else ()))
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
    """What both sides have in common."""
    return (
        "" if topic.target_records is None else f"{topic.target_records:,}",
        "" if topic.target_digest is None else topic.target_digest[:16],
        {None: "not compared", True: "equal", False: "DIFFERENT"}[topic.equal],
    )
