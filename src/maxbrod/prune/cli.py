"""`maxbrod prune`: takes away old records and runs by a policy, and brings them back."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final, NoReturn

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import out, print_json, print_json_with, print_line, table
from maxbrod.cli.verbs import at_work, load, print_held
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, UsageError
from maxbrod.option_values import parse_duration_s
from maxbrod.options import PLACE, JsonOption, LookOptions
from maxbrod.prune.options import PruneOptions
from maxbrod.text import counted, human_age, human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.archive.undo import UndoReport
    from maxbrod.prune.report import PruneReport

_LINES_MAX: Final = 200
_GRACE_S_MIN: Final = 3600


@command("prune", PruneOptions, after=(*PLACE, LookOptions, JsonOption), looks=lambda given: "apply" not in given)
def prune(call: Call[PruneOptions]) -> None:
    """Take old records and old runs out of an archive, by a policy. Without --apply, only list what would go and why.

    Whole segments go, oldest first, and never the newest of a partition. A compacted topic keeps everything by age and
    size. Rules about runs keep points in time as restic does: the newest run of each period that has one, and at least
    the newest complete run. What is held ('maxbrod hold') stays. In maxbrod's own archives, objects stay for the grace
    period, in which --undo brings everything back; then 'maxbrod gc' deletes them. Other layouts have no way back.

    For example:

      maxbrod prune -a /backups/kafka --older-than 90d

      maxbrod prune -a s3://backups/kafka --as-source --keep-within 7d --keep-daily 30 --keep-monthly 12 --apply

      maxbrod prune -a s3://backups/kafka 'clicks-*' --topic-bytes 500GB --apply

      maxbrod prune -a s3://backups/kafka --undo --apply
    """
    options, storage = call.options, call.config.storage
    if parse_duration_s(options.grace) < _GRACE_S_MIN:
        raise UsageError("a grace period of less than 1h is too short", hint="readers may still use the objects")
    with at_work(call, meanwhile="what is not committed yet is left as it was") as work:
        with work.looking("reading the archive"):
            archive: Archive = load("archive.archive:open_archive")(call.archive, storage, layout=call.config.layout)
            if options.apply and archive.survey is None:
                opener = load("archive.archive:open_for_writing")
                archive = opener(call.archive, storage, single_writer=options.single_writer)
        if options.undo:
            undone = _undo(archive, call)
        else:
            clocks = load("archive.upkeep:read_clocks")(archive, ask_store=options.apply, trusted=options.trust_clock)
            request = load("prune.run:request_of")(options, clocks.earliest_ms)
            prune_archive = load("prune.run:prune_archive")
            report: PruneReport = prune_archive(archive, request, work=work, apply=options.apply, clocks=clocks)
    if options.undo:
        _show_undone(call, undone)
    if call.as_json:
        # There may be some for each of a hundred thousand partitions.
        items = (json.dumps(asdict(item)) for item in report.items)
        print_json_with(replace(report, items=()).as_dict(), "items", items)
        return
    _print(report, about_runs=request.runs.given)
    aged = options.older_than is not None or options.deleted_before is not None or options.as_source
    if aged and report.idle_ms:
        print_line(
            f"ages count up to the newest backup that found something new, {human_time(report.ages_until_ms)}: "
            f"{human_age(report.idle_ms)} ago by this machine's clock; if this clock is right, --trust-clock counts "
            "them up to now"
        )


def _undo(archive: Archive, call: Call[PruneOptions]) -> UndoReport:
    if archive.survey is not None:
        raise UsageError(f"what was pruned of the layout {archive.survey.layout} is deleted, and cannot come back")
    if len(call.options.topics) > 1:
        raise UsageError("one prune is undone at a time", hint="name one run, or none for the newest prune")
    run_id = next(iter(call.options.topics), None)
    report: UndoReport = load("archive.undo:undo_prune")(archive, run_id, apply=call.options.apply)
    return report


def _show_undone(call: Call[PruneOptions], report: UndoReport) -> NoReturn:
    code = EXIT_INCOMPLETE if report.lost or report.taken else EXIT_DONE
    if call.as_json:
        print_json({**asdict(report), "exit_code": code})
    else:
        _print_undo(report)
    raise typer.Exit(code)


def _print(report: PruneReport, *, about_runs: bool) -> None:
    lines = sorted(report.items, key=lambda item: (item.keep, item.topic))
    if lines:
        shown = table("Segments", "*topic", ">partition", ">offsets", ">segments", ">size", "", "why")
        for line in lines[:_LINES_MAX]:
            shown.add_row(
                line.topic,
                str(line.partition),
                f"[{line.first_offset:,}, {line.end_offset:,})",
                f"{line.segments:,}",
                human_bytes(line.bytes),
                "stays" if line.keep else "goes",
                f"{line.reason}; replaced by later rows" if line.replaced else line.reason,
            )
        out.print(shown)
        if len(lines) > _LINES_MAX:
            print_line(f"and {len(lines) - _LINES_MAX:,} more: see --json")
    if about_runs and report.runs:
        shown = table("Runs", "*run", "time", "", "why")
        for run in report.runs[-_LINES_MAX:]:
            shown.add_row(run.run_id, human_time(run.at_ms), "stays" if run.keep else "goes", ", ".join(run.reasons))
        out.print(shown)
        if len(report.runs) > _LINES_MAX:
            print_line(f"and {counted(len(report.runs) - _LINES_MAX, 'older run')}: see --json")
    print_held(report.held_objects)
    go = "are gone" if report.applied else "would go"
    segments = f"{counted(report.going.segments, 'segment')} of {human_bytes(report.going.bytes)}"
    print_line(
        f"{segments} and {counted(report.runs_going, 'run')} {go}; "
        f"{counted(report.kept.segments, 'segment')} of {human_bytes(report.kept.bytes)} "
        f"{'stays' if report.kept.segments == 1 else 'stay'}"
    )
    if report.going.bytes > report.objects_bytes:
        shared = human_bytes(report.going.bytes - report.objects_bytes)
        print_line(f"{shared} of that share objects with segments that stay: the space is not free before they go too")
    if report.run_id is not None:
        print_line(
            f"until {human_time(report.undo_until_ms)}, 'maxbrod prune --undo {report.run_id} --apply' brings it back; "
            "then 'maxbrod gc' deletes the objects"
        )
    if not report.applied and (report.going.segments or report.runs_going):
        print_line("nothing was changed; repeat with --apply")


def _print_undo(report: UndoReport) -> None:
    comes = "are back" if report.applied else "would come back"
    print_line(
        f"{counted(report.rows, 'segment')} with {counted(report.records, 'record')} and {human_bytes(report.bytes)}, "
        f"and {counted(report.runs, 'run')} {comes} that the run {report.prune} pruned"
    )
    for path in report.lost[:_LINES_MAX]:
        print_line(f"lost: {path} was deleted, so that it cannot come back")
    if len(report.lost) > _LINES_MAX:
        print_line(f"and {len(report.lost) - _LINES_MAX:,} more: see --json")
    if report.taken:
        print_line(f"{counted(report.taken, 'segment')} cannot come back: later commits have replaced their offsets")
    if not report.applied:
        print_line("nothing was changed; repeat with --apply")
