"""`maxbrod prune`: the oldest segments of another tool's archive deleted by their age."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from maxbrod.cli.durations import parse_duration_s
from maxbrod.cli.options import (
    ArchiveOption,
    ConfigOption,
    LayoutOption,
    S3EndpointOption,
    S3PathStyleOption,
    S3RegionOption,
    find_place,
)
from maxbrod.cli.output import JsonFlag, human_bytes, out, print_json, print_line, table


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="How old all records of a segment must be: 24h, 90d.")
    ],
    delete: Annotated[
        bool, typer.Option("--delete", help="Really delete. Without it, only say what would go.")
    ] = False,
    archive: ArchiveOption = None,
    layout: LayoutOption = None,
    config: ConfigOption = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    s3_path_style: S3PathStyleOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Find old segments of an archive in another tool's layout, and delete them.

    A segment goes when every record of it is older; the last one of each partition stays, so that a backup knows where
    to go on. Only for layouts that are made for it: binlog.

    For example:

      maxbrod prune -a /backups/binlog --older-than 90d

      maxbrod prune -a /backups/binlog --older-than 90d --delete
    """
    from maxbrod.archive.opening import open_archive  # noqa: PLC0415 - Arrow and Delta: not for `--help`
    from maxbrod.prune.run import prune_archive  # noqa: PLC0415

    before_ms = round((time.time() - parse_duration_s(older_than)) * 1000)
    place = find_place(archive, config, layout=layout, endpoint=s3_endpoint, region=s3_region, path_style=s3_path_style)
    opened = open_archive(place.url, place.storage, layout=place.config.layout)
    report = prune_archive(opened, before_ms, delete=delete)
    if as_json:
        print_json(asdict(report))
        return
    if report.segments:
        shown = table("Deleted" if delete else "Would be deleted", "*object", ">records", ">size")
        for each in report.segments:
            shown.add_row(each.path, "" if each.records is None else f"{each.records:,}", human_bytes(each.bytes))
        out.print(shown)
    what = "deleted" if delete else "would be deleted"
    print_line(f"{len(report.segments):,} segments of {human_bytes(report.bytes)} {what}")
    if report.segments and not delete:
        print_line("nothing was changed; repeat with --delete")
