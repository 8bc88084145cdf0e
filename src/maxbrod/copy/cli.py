"""`maxbrod copy`: a second copy of an archive, or of chosen topics of it, in another store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import print_error, print_json_line, print_line
from maxbrod.cli.verbs import at_work, load, run_verb
from maxbrod.copy.options import CopyOptions
from maxbrod.errors import UsageError
from maxbrod.options import JsonOption, LookOptions, QuietOption, SparkOptions, StorageOptions
from maxbrod.text import counted, human_bytes

if TYPE_CHECKING:
    from maxbrod.copy.report import CopyReport
    from maxbrod.copy.verb import CopyInterval

_NOTICES_SHOWN: Final = 20
_MEANWHILE: Final = "what is being copied"


@command(
    "copies",
    CopyOptions,
    after=(StorageOptions, LookOptions, SparkOptions, QuietOption, JsonOption),
    looks=lambda given: bool(given.get("dry_run")),
)
def copy(call: Call[CopyOptions]) -> None:
    """Copy an archive, or chosen topics of it, to another store, and only what is not there yet.

    Objects come first and the catalog last, in one step: the copy is a complete archive at every instant, however the
    command ends, and the same command goes on. Every slice is compared with the digest in the catalog on its way. A
    damaged object is named and not copied, the others are, and the exit code is 4. What prunes, compactions and
    erasures take out of the source goes from the copy, too; 'maxbrod gc' deletes the objects there.

    DST is empty, or a copy of the same archive: anything else is refused, and so is a source that was rolled back.

    For example:

      maxbrod copy /backups/kafka s3://second/kafka

      maxbrod copy s3://backups/kafka s3://second/kafka --to-storage s3.endpoint=https://other:9000 --follow --every 5m

      maxbrod copy s3://backups/kafka /export/orders --topic 'orders-*'

      maxbrod copy s3://backups/kafka s3://cold/kafka --storage-class-after 30d=STANDARD_IA,90d=GLACIER
    """
    if not call.options.follow:
        run_verb(call, "copy.verb:copy_archive", _print)
    if call.options.dry_run:
        raise UsageError("--dry-run and --follow exclude each other")

    def show(interval: CopyInterval) -> None:
        if call.as_json:
            print_json_line(interval.as_dict())
        elif interval.error is not None:
            print_error(interval.error, as_json=False)
        elif interval.report is not None and (interval.report.exit_code or interval.report.has_written):
            _print(interval.report, quiet=call.quiet)

    with at_work(call) as work:
        last: CopyInterval = load("copy.verb:follow_source")(work, show)
    raise typer.Exit(last.exit_code)


def _print(report: CopyReport, *, quiet: bool) -> None:
    for notice in report.notices[:_NOTICES_SHOWN]:
        print_line(f"{notice.kind}: {notice}")
        if notice.hint:
            print_line(f"  {notice.hint}")
    if len(report.notices) > _NOTICES_SHOWN:
        print_line(f"and {len(report.notices) - _NOTICES_SHOWN:,} more: see --json")
    if quiet:
        return
    print_line(_words(report))
    if report.not_recorded is not None:
        print_line(f"the source does not know of this copy: {report.not_recorded}")


def _words(report: CopyReport) -> str:
    what = (
        f"{counted(report.objects, 'object')}, {human_bytes(report.bytes)}, and {counted(report.documents, 'document')}"
    )
    if report.dry_run:
        return f"{what} would be copied to {report.target}; nothing was changed"
    took_s = (report.finished_at_ms - report.started_at_ms) / 1000
    proved = f"{counted(report.slices_verified, 'slice')} compared with the catalog"
    proved += ", all of it read back" if report.read_back else ""
    if report.version != report.source_version:
        state = (
            "the copy has no catalog yet" if report.version is None else f"the copy is still version {report.version}"
        )
        return f"{what} copied in {took_s:,.1f} s; {state}, and the same command goes on"
    if not report.has_written:
        return f"{report.target} is up to date: version {report.version}"
    return f"{what} copied to {report.target} in {took_s:,.1f} s ({proved}); it is version {report.version} now"
