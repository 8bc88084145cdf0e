"""`maxbrod gc`: deletes objects that no commit names."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.durations import parse_duration_s
from maxbrod.cli.output import out, print_json, print_line, table
from maxbrod.inspect.options import GcOptions
from maxbrod.options import ArchiveOptions, JsonOption, StorageOptions
from maxbrod.text import counted, human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.inspect.garbage import GarbageReport

_SHOWN: Final = 20


@command("gc", GcOptions, after=(ArchiveOptions, StorageOptions, JsonOption))
def gc(call: Call[GcOptions]) -> None:
    """List objects that no run has committed, and delete them.

    A run that was killed leaves objects behind that no reader can see. They look like those of a run in progress; only
    their age tells them apart. The grace period must be longer than any run takes from its first object to its commit.
    If another process commits while objects are being deleted, the remaining ones are kept. Objects that hold records
    which the catalog lacks are kept too, and the exit code is 3: see 'maxbrod repair'.

    For example:

      maxbrod gc -a /backups/kafka

      maxbrod gc -a s3://backups/kafka --grace 7d --delete
    """
    from maxbrod.archive.archive import open_archive  # noqa: PLC0415 - Arrow and Delta: not for `--help`
    from maxbrod.inspect.garbage import collect_garbage  # noqa: PLC0415

    options = call.options
    grace_s = parse_duration_s(options.grace)
    report = collect_garbage(
        open_archive(call.archive, call.config.storage),
        grace_s=grace_s,
        delete=options.delete,
        trust_clock=options.trust_clock,
    )
    if call.as_json:
        print_json(asdict(report))
    else:
        _print(report, options.grace)
    raise typer.Exit(report.exit_code)


def _print(report: GarbageReport, grace: str) -> None:
    if report.objects:
        shown = table("Deleted" if report.deleted else "Would be deleted", "*object", ">size", "written")
        for found in report.objects:
            shown.add_row(found.path, human_bytes(found.size), human_time(found.modified_ms, to="minute"))
        out.print(shown)
    what = "deleted" if report.deleted else "would be deleted"
    print_line(
        f"{counted(len(report.objects), 'object')} of {human_bytes(report.bytes)} {what}; "
        f"{report.named_objects:,} {'is' if report.named_objects == 1 else 'are'} in use"
    )
    if report.young_objects:
        young = human_bytes(report.young_bytes)
        why = f"written, or put out of use, within {grace}: a run or a reader may need them"
        stay = "stays" if report.young_objects == 1 else "stay"
        print_line(f"{counted(report.young_objects, 'object')} of {young} {stay}, {why}")
    if report.prunes_waiting:
        print_line(
            f"{counted(len(report.prunes_waiting), 'prune')} can still be undone by the time of the newest backup, but "
            "not by this machine's clock: the objects stay until a backup finds something new; if this clock is "
            "right, give --trust-clock"
        )
    from maxbrod.archive.unlisted import HINT  # noqa: PLC0415 - as above

    for each in report.unlisted[:_SHOWN]:
        print_line(f"stays, because the catalog lacks its records: {each}")
    if len(report.unlisted) > _SHOWN:
        print_line(f"and {len(report.unlisted) - _SHOWN:,} more: see --json")
    if report.unlisted:
        print_line(f"  {HINT}")
    if report.objects and not report.deleted:
        print_line("nothing was changed; repeat with --delete")
