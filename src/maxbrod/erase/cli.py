"""`maxbrod erase`: the records of a person leave the archive, and stay away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import out, print_line, table
from maxbrod.cli.verbs import run_verb
from maxbrod.erase.options import EraseOptions
from maxbrod.options import PLACE, JsonOption, LookOptions, QuietOption, SparkOptions
from maxbrod.text import counted, human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.erase.report import EraseReport

_SHOWN: Final = 20


@command(
    "erase",
    EraseOptions,
    before=PLACE,
    after=(LookOptions, SparkOptions, QuietOption, JsonOption),
    looks=lambda given: bool(given.get("dry_run")),
)
def erase(call: Call[EraseOptions]) -> None:
    """Erase the records of a person from the archive, and keep them away.

    Only slices that hold such records are written anew, at the same offsets; live ones and those that only queries as
    of older runs return. The old objects are deleted at once, so a restore or a query that reads one at that moment
    fails, and must be repeated. A ledger in the archive, with keyed hashes instead of keys, keeps every later reader
    from the records, also where a hold or the store keeps an object, or where a backup reads the source again. Records
    that are archived later are not meant: the person may come back.

    The exit code is 3 if something still holds the records: the report and the certificate say what, and until when.

    For example:

      maxbrod erase -a s3://backups/kafka --topic customers --key 4711 --dry-run

      maxbrod erase -a s3://backups/kafka --topic 'orders*' --keys-file people.txt --certificate erased.json

      maxbrod erase -a s3://backups/kafka --topic visits --where "cast(value as string) like '%4711%'"

      maxbrod erase -a s3://backups/kafka --again
    """
    run_verb(call, "erase.verb:erase_archive", _print)


def _print(report: EraseReport, *, quiet: bool) -> None:
    for fault in report.faults[:_SHOWN]:
        what = "damaged" if fault.damaged else "not reached"
        where = f"{fault.topic}-{fault.partition} offsets [{fault.base_offset:,}, {fault.end_offset:,})"
        print_line(f"{what}: {where}: {fault.message} (in {fault.object_name})")
    for kept in report.kept[:_SHOWN]:
        until = "" if kept.until_ms is None else f", until {human_time(kept.until_ms)}"
        print_line(f"still there: {kept.path} ({human_bytes(kept.bytes)}): {kept.why}{until}")
    for entries in (report.faults, report.kept):
        if len(entries) > _SHOWN:
            print_line(f"and {len(entries) - _SHOWN:,} more: see --json")
    if quiet:
        return
    shown = table(
        "Would be erased" if report.dry_run else report.archive, "*topic", "id", ">slices", ">holding", ">records"
    )
    for topic in report.topics:
        cells = (f"{number:,}" for number in (topic.slices, topic.holding, topic.records))
        shown.add_row(topic.topic, topic.topic_id, *cells)
    if report.topics:
        out.print(shown)
    print_line(_words(report))


def _words(report: EraseReport) -> str:
    records = counted(report.records, "record")
    if report.dry_run:
        return f"{records} in {counted(report.holding, 'slice')} would be erased; nothing was changed"
    took_s = (report.finished_at_ms - report.started_at_ms) / 1000
    words = f"erased {report.records - report.suppressed:,} of {records} in {took_s:,.1f} s"
    if report.deleted:
        words += f"; deleted {counted(report.deleted, 'object')} ({human_bytes(report.deleted_bytes)})"
    if report.suppressed:
        words += f"; {counted(report.suppressed, 'record', 'is', 'are')} still there, and no reader returns them"
    if report.found_again:
        words += f"; {counted(report.found_again, 'record', 'was', 'were')} found again: run 'maxbrod erase --again'"
    elif report.found_again == 0:
        words += "; a second look found none"
    if report.interrupted:
        words += "; stopped on request: the same command goes on"
    return words
