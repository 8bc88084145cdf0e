"""`maxbrod prune`: deletes the oldest segments of another tool's archive by their age."""

from __future__ import annotations

import time
from dataclasses import asdict

from maxbrod.cli.commands import Call, command
from maxbrod.cli.durations import parse_duration_s
from maxbrod.cli.output import human_bytes, out, print_json, print_line, table
from maxbrod.errors import UsageError
from maxbrod.options import PLACE, JsonOption
from maxbrod.prune.options import PruneOptions


@command("prune", PruneOptions, after=(*PLACE, JsonOption))
def prune(call: Call[PruneOptions]) -> None:
    """List old segments of an archive in another tool's layout, and delete them.

    A segment is deleted if all its records are older. The last segment of each partition is kept, so that a backup can
    continue after it. Only for layouts that are made for it: binlog.

    For example:

      maxbrod prune -a /backups/binlog --older-than 90d

      maxbrod prune -a /backups/binlog --older-than 90d --delete
    """
    from maxbrod.archive.opening import open_archive  # noqa: PLC0415 - Arrow and Delta: not for `--help`
    from maxbrod.prune.run import prune_archive  # noqa: PLC0415

    options, delete = call.options, call.options.delete
    if options.older_than is None:
        raise UsageError("--older-than is missing", hint="give an age, such as --older-than 90d")
    before_ms = round((time.time() - parse_duration_s(options.older_than)) * 1000)
    opened = open_archive(call.archive, call.config.storage, layout=call.config.layout)
    report = prune_archive(opened, before_ms, delete=delete)
    if call.as_json:
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
