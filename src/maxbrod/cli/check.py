"""`maxbrod check`: whether an archive is whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from maxbrod.cli.options import (
    ArchiveOption,
    ConfigOption,
    S3EndpointOption,
    S3PathStyleOption,
    S3RegionOption,
    find_place,
)
from maxbrod.cli.output import JsonFlag, human_bytes, print_json, print_line

if TYPE_CHECKING:
    from maxbrod.api.checking import CheckReport
    from maxbrod.api.problems import Problem

_PROBLEMS_SHOWN: Final = 100


def check(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="Names or patterns; all without.", show_default=False),
    ] = None,
    archive: ArchiveOption = None,
    config: ConfigOption = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    s3_path_style: S3PathStyleOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Check that an archive is whole, without reading its records.

    Every offset of every partition must be archived or explained, every object must be there and long enough, and the
    last backup's snapshot must agree. Ends with 3 if offsets are missing, with 4 if objects are.

    For example:

      maxbrod check -a /backups/kafka

      maxbrod check -a s3://backups/kafka 'orders-*' --json
    """
    from maxbrod.api.archives import open_archive  # noqa: PLC0415 - Arrow and Delta: not for `--help`
    from maxbrod.api.checking import check_archive  # noqa: PLC0415

    place = find_place(archive, config, endpoint=s3_endpoint, region=s3_region, path_style=s3_path_style)
    report = check_archive(open_archive(place.url, place.storage), patterns or ())
    if as_json:
        print_json({**asdict(report), "exit_code": report.exit_code})
    else:
        _print(report)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _print(report: CheckReport) -> None:
    for problem in report.problems[:_PROBLEMS_SHOWN]:
        _print_problem(problem)
    if len(report.problems) > _PROBLEMS_SHOWN:
        print_line(f"and {len(report.problems) - _PROBLEMS_SHOWN:,} more: see --json")
    print_line(
        f"{report.topics:,} topics, {report.partitions:,} partitions, {report.objects:,} objects with "
        f"{human_bytes(report.bytes)}, {report.snapshots:,} snapshots ({report.snapshots_read:,} read)"
    )
    print_line(
        f"{len(report.problems):,} problems" if report.problems else "whole: every offset is archived or explained"
    )


def _print_problem(problem: Problem) -> None:
    where = ""
    if problem.partition is not None:
        where = f" {problem.topic or problem.topic_id}-{problem.partition}"
    if problem.first_offset is not None:
        where += f" offsets [{problem.first_offset:,}, {problem.end_offset:,})"
    if problem.object_name is not None:
        where += f" in {problem.object_name}"
    print_line(f"{problem.kind}:{where}: {problem.message}")
    if problem.hint:
        print_line(f"  {problem.hint}")
