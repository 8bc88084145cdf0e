"""`maxbrod lock`: extends and shows the locks of an archive's objects in S3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import print_line
from maxbrod.cli.verbs import run_verb
from maxbrod.lock.options import LockOptions
from maxbrod.options import PLACE, JsonOption, QuietOption
from maxbrod.text import counted, human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.lock.report import LockReport, LockTotals

app = typer.Typer(no_args_is_help=True, help="Locks: objects in S3 that nobody deletes before a time.")
_SHARED: Final = (*PLACE, QuietOption, JsonOption)
_SHOWN: Final = 20


@app.command()
@command("lock", LockOptions, after=_SHARED)
def extend(call: Call[LockOptions]) -> None:
    """Extend the locks of everything that the archive needs, so that none of it ends before a time.

    Needed are the objects that the catalog names, the files of its newest version, snapshots, ledgers and keys.
    Garbage, old files of the catalog and leases are not: their locks end. A lock is never shortened. The command can be
    stopped and repeated, and may run beside backups and beside itself. If a lock is refused, the others are extended
    all the same, and the exit code is 3.

    For example:

      maxbrod lock extend -a s3://backups/kafka --for 30d

      maxbrod lock extend -a s3://backups/kafka --until 2027-01-01T00:00Z --lock-mode compliance
    """
    run_verb(call, "lock.verb:extend_archive_locks", _print, meanwhile="locks that are being set are set")


@app.command()
@command("lock", LockOptions, after=_SHARED, without=["until", "for_", "lock_mode", "dry_run"])
def show(call: Call[LockOptions]) -> None:
    """Show what the bucket locks by itself, how much of the archive is locked, and when the first lock ends.

    For example:

      maxbrod lock show -a s3://backups/kafka
    """
    run_verb(call, "lock.verb:show_archive_locks", _print)


def _print(report: LockReport, *, quiet: bool) -> None:
    for refused in report.refused[:_SHOWN]:
        print_line(f"refused: {refused.path}: {refused.reason}")
    if len(report.refused) > _SHOWN:
        print_line(f"and {len(report.refused) - _SHOWN:,} more: see --json")
    if report.left:
        print_line(f"stopped on request, {counted(report.left, 'object')} before the end: the same command goes on")
    if quiet:
        return
    print_line(_bucket_words(report))
    needed = _of(report.needed)
    if report.until_ms is not None:
        done = "would be extended" if report.dry_run else "extended"
        print_line(
            f"{_of(report.extended)} {done} until {human_time(report.until_ms)}, of {needed} that the archive needs; "
            f"{_of(report.lasting)} locked for longer"
        )
    elif report.object_lock:
        print_line(f"{_of(report.lasting)} locked, {_of(report.unlocked)} without an own lock, of {needed} needed")
    if report.first_end_ms is not None:
        print_line(f"the first lock ends at {human_time(report.first_end_ms)}")
    if report.not_needed.objects:
        print_line(f"{_of(report.not_needed)} that the archive does not need: left as they are")


def _bucket_words(report: LockReport) -> str:
    if not report.object_lock:
        words = "the bucket has no Object Lock: nothing in it is locked"
    elif report.default_days is None:
        words = "the bucket has Object Lock, and locks nothing by itself"
    else:
        words = f"the bucket locks every new object for {report.default_days} days ({report.default_mode})"
    kept = {True: "it keeps older versions", False: "it keeps no older versions", None: "versions: not known"}
    return f"{words}; {kept[report.versions]}"


def _of(totals: LockTotals) -> str:
    return f"{counted(totals.objects, 'object')} of {human_bytes(totals.bytes)}"
