"""`maxbrod repair`: an archive whose catalog or objects were lost or damaged."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import print_json_with, print_line
from maxbrod.cli.verbs import at_work, load, print_held
from maxbrod.notices import Notice
from maxbrod.options import ArchiveOptions, ClusterOptions, JsonOption, SparkOptions, StorageOptions
from maxbrod.repair.options import RepairOptions
from maxbrod.text import counted, human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.repair.report import OlderVersions, RepairReport

_NOTICES_SHOWN: Final = 50


@command("repair", RepairOptions, after=(ArchiveOptions, StorageOptions, ClusterOptions, SparkOptions, JsonOption))
def repair(call: Call[RepairOptions]) -> None:
    """Rebuild a lost or damaged catalog, and take lost or damaged objects out of it.

    If the catalog cannot be read, Spark reads every object of the archive once and makes a new catalog of what they
    say. The old one is kept aside. If the catalog can be read, objects that are missing or cut, and with --deep those
    that are damaged, become gaps 'corrupt'. The next backup reads such gaps again; with --bootstrap, or a cluster in
    the configuration file, that happens at once. Without --apply nothing is changed, and the exit code is 4 if there is
    something to repair. For objects that were deleted on purpose, and are not to be read again, use 'maxbrod check
    --repair'. A backup that runs at the same time is refused, or makes the repair refuse.

    If somebody has deleted or overwritten objects in a bucket that keeps versions, --versions-before brings every
    object back as it was before a time, and then looks at the archive without changing more.

    For example:

      maxbrod repair -a /backups/kafka

      maxbrod repair -a s3://backups/kafka --apply

      maxbrod repair -a s3://backups/kafka --versions-before 2026-11-18T04:00Z --apply

      maxbrod repair -a s3://backups/kafka --deep --apply --bootstrap broker:9092
    """
    with TemporaryFile("w+", encoding="utf-8") as notices:

        def write(notice: Notice) -> None:
            # There may be millions, and an error later must be the only document.
            print(json.dumps(asdict(notice)), file=notices)

        with at_work(call, meanwhile="what is not committed yet is left as it was") as work:
            report: RepairReport = load("repair.run:repair_archive")(
                work, notices_max=0 if call.as_json else _NOTICES_SHOWN, on_notice=write if call.as_json else None
            )
        if not call.as_json:
            _print(report)
            raise typer.Exit(report.exit_code)
        for notice in report.notices:
            write(notice)
        notices.seek(0)
        document = replace(report, notices=()).as_dict() | {"exit_code": report.exit_code}
        print_json_with(document, "notices", (line.rstrip("\n") for line in notices))
    raise typer.Exit(report.exit_code)


def _print(report: RepairReport) -> None:
    if report.problem is not None:
        print_line(f"the catalog: {report.problem}")
    for notice in report.notices[:_NOTICES_SHOWN]:
        print_line(f"{notice.kind}: {notice}")
        if notice.hint:
            print_line(f"  {notice.hint}")
    count = max(len(report.notices), report.rows if report.action == "taken out" else 0)
    if count > _NOTICES_SHOWN:
        print_line(f"and {count - _NOTICES_SHOWN:,} more: see --json")
    print_held(report.held_objects)
    if report.older_versions is not None:
        print_line(_came_back(report.older_versions))
    for path in report.unknown:
        print_line(f"not known: {path}")
    print_line(_words(report))
    if report.mended:
        print_line("the source had all offsets that were lost: they are archived again")


def _came_back(found: OlderVersions) -> str:
    when = human_time(found.before_ms)
    if not found.is_needed:
        return f"every object is what it was before {when}"
    come = "came back" if found.applied else "would come back"
    words = f"{counted(found.objects, 'object')} of {human_bytes(found.bytes)} {come} as before {when}"
    words += f", {found.copied:,} by copies" if found.copied else ""
    if found.hidden:
        hidden = counted(found.hidden, "file")
        words += f"; {hidden} of the catalog that came later {'are hidden' if found.applied else 'would be hidden'}"
    return words + (f"; {counted(found.later, 'later object')} left as they are" if found.later else "")


def _words(report: RepairReport) -> str:
    match report.action:
        case "brought back" if report.applied:
            return "the catalog can be read, and every object that it names is there"
        case "brought back":
            return "nothing was changed, repeat with --apply"
        case "none" if report.lost_snapshots:
            lost = counted(report.lost_snapshots, "snapshot")
            return f"nothing was changed: {lost} cannot be made again; every segment that the catalog names is there"
        case "none":
            return "nothing to repair: the catalog can be read, and every object that it names is there"
        case "taken out":
            return f"{_taken_out(report)}{_ending(report)}"
    done = "was rebuilt" if report.applied else "would be rebuilt"
    gaps = "".join(f", {counted(count, 'offset')} {reason}" for reason, count in sorted(report.gaps.items()))
    left = ""
    if report.unnamed_slices:
        left = (
            f"; copies or left over: {counted(report.unnamed_slices, 'slice')} of {human_bytes(report.unnamed_bytes)}"
        )
    return (
        f"the catalog {done} from {counted(report.objects, 'object')} of {human_bytes(report.bytes)}: "
        f"{counted(report.topics, 'topic')}, {counted(report.partitions, 'partition')}, {counted(report.rows, 'row')}, "
        f"{counted(report.runs, 'run')}{gaps}{left}{_ending(report)}"
    )


def _taken_out(report: RepairReport) -> str:
    parts = []
    if report.rows:
        done = "became" if report.applied else "would become"
        slices = counted(report.rows, "lost or damaged slice")
        parts.append(f"{slices} in {counted(report.partitions, 'partition')} {done} gaps")
    if report.generations:
        done = "dropped" if report.applied else "to be dropped"
        parts.append(f"{counted(report.generations, 'generation')} under construction {done}")
    return ", ".join(parts)


def _ending(report: RepairReport) -> str:
    if not report.applied:
        return "; nothing was changed, repeat with --apply"
    return f"; the old catalog is in {report.kept_aside}" if report.kept_aside else ""
