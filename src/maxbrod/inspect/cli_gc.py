"""`maxbrod gc`: deletes what no commit names."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from maxbrod.cli.durations import parse_duration_s
from maxbrod.cli.options import (
    ArchiveOption,
    ConfigOption,
    S3EndpointOption,
    S3PathStyleOption,
    S3RegionOption,
    find_place,
)
from maxbrod.cli.output import JsonFlag, human_bytes, human_time, out, print_json, print_line, table

if TYPE_CHECKING:
    from maxbrod.inspect.garbage import GarbageReport


def gc(
    delete: Annotated[
        bool, typer.Option("--delete", help="Really delete. Without it, only say what would go.")
    ] = False,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Leave younger objects alone: 90m, 24h, 7d. At least 1h.")
    ] = "24h",
    archive: ArchiveOption = None,
    config: ConfigOption = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    s3_path_style: S3PathStyleOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Find objects that no run has committed, and delete them.

    A run that was killed leaves objects behind that nobody can see. They look like those of a run that is still at
    work, so only age tells them apart: the grace time must be longer than any run takes from its first object to its
    commit. If somebody commits while objects are deleted, the rest stays.

    For example:

      maxbrod gc -a /backups/kafka

      maxbrod gc -a s3://backups/kafka --grace 7d --delete
    """
    from maxbrod.archive.opening import open_archive  # noqa: PLC0415 - Arrow and Delta: not for `--help`
    from maxbrod.inspect.garbage import collect_garbage  # noqa: PLC0415

    grace_s = parse_duration_s(grace)
    place = find_place(archive, config, endpoint=s3_endpoint, region=s3_region, path_style=s3_path_style)
    report = collect_garbage(open_archive(place.url, place.storage), grace_s=grace_s, delete=delete)
    if as_json:
        print_json(asdict(report))
    else:
        _print(report, grace)


def _print(report: GarbageReport, grace: str) -> None:
    if report.objects:
        shown = table("Deleted" if report.deleted else "Would be deleted", "*object", ">size", "written")
        for found in report.objects:
            shown.add_row(found.path, human_bytes(found.size), human_time(found.modified_ms, to="minute"))
        out.print(shown)
    what = "deleted" if report.deleted else "would be deleted"
    print_line(
        f"{len(report.objects):,} objects of {human_bytes(report.bytes)} {what}; {report.named_objects:,} are in use"
    )
    if report.young_objects:
        young = human_bytes(report.young_bytes)
        print_line(f"{report.young_objects:,} objects of {young} are younger than {grace}: perhaps of a run at work")
    if report.objects and not report.deleted:
        print_line("nothing was changed; repeat with --delete")
