"""`maxbrod compact`: few large segments instead of many small ones, or only the newest record of each key."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import out, print_line, table
from maxbrod.cli.verbs import print_held, run_verb
from maxbrod.compact.options import CompactOptions
from maxbrod.options import PLACE, JsonOption, LookOptions, QuietOption, SparkOptions
from maxbrod.text import counted, human_bytes

if TYPE_CHECKING:
    from maxbrod.compact.report import CompactFault, CompactReport

_FAULTS_SHOWN: Final = 20


@command(
    "compact",
    CompactOptions,
    before=PLACE,
    after=(LookOptions, SparkOptions, QuietOption, JsonOption),
    looks=lambda given: bool(given.get("dry_run")),
)
def compact(call: Call[CompactOptions]) -> None:
    """Merge many small segments into few large ones. No record and no offset changes.

    Spark copies whole batches in order of offsets and checks every one of them; records are decoded only with
    --recompress zstd. One commit replaces the segments. Restores, queries and streams that are under way are not
    disturbed: 'maxbrod gc' deletes the old objects after its grace time. If a segment is damaged, the segments that
    would be merged with it stay as they are, and the exit code is 4. In the layout parquet, segments are merged as
    kafka-replicator does it.

    --by-key does what a broker does with a compacted topic: of each key only the newest record stays, up to the newest
    backup or the run of --cut. Tombstones older than the topic's delete.retention.ms go, records without a key stay. As
    of older runs the archive still has everything, until that is pruned.

    For example:

      maxbrod compact -a /backups/kafka --dry-run

      maxbrod compact -a s3://backups/kafka --min-segment-size 64MiB

      maxbrod compact -a s3://backups/kafka --topic 'orders-*' --min-level 1 --max-level 1 --min-segment-age 30d

      maxbrod compact -a s3://backups/kafka --by-key --topic customers
    """
    run_verb(call, "compact.verb:compact_archive", _print)


def _print(report: CompactReport, *, quiet: bool) -> None:
    for fault in report.faults[:_FAULTS_SHOWN]:
        _print_fault(fault)
    if len(report.faults) > _FAULTS_SHOWN:
        print_line(f"and {len(report.faults) - _FAULTS_SHOWN:,} more: see --json")
    if quiet:
        return
    by_key = report.cut is not None
    changed = [topic for topic in report.topics if (topic.segments if by_key else topic.merges)]
    if changed:
        would = "Would be read" if by_key else "Would be merged"
        columns = (">records", ">removed") if by_key else (">become", ">objects")
        shown = table(
            would if report.dry_run else report.archive, "*topic", ">parts", ">segments", *columns, ">bytes", ">become"
        )
        for topic in changed:
            figures = (topic.records or 0, topic.removed) if by_key else (topic.new_segments, topic.merges)
            counts = (topic.partitions, topic.segments, *figures)
            after = "" if topic.new_bytes is None else human_bytes(topic.new_bytes)
            cells = ("" if count is None else f"{count:,}" for count in counts)
            shown.add_row(topic.topic, *cells, human_bytes(topic.bytes), after)
        out.print(shown)
    left: Counter[str] = Counter()
    for topic in report.topics:
        left.update(topic.left)
    if left:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in left.items())
        print_line(f"segments that stay as they are: {reasons}")
    for topic in report.topics:
        if topic.larger is not None:
            grown = human_bytes((topic.new_bytes or 0) - topic.bytes)
            print_line(f"{topic.topic} takes {grown} more than before: {topic.larger}")
    print_held(report.held_objects)
    print_line(_words_by_key(report) if by_key else _words(report))


def _words_by_key(report: CompactReport) -> str:
    took_s = (report.finished_at_ms - report.started_at_ms) / 1000
    if report.dry_run:
        words = f"{counted(report.total('segments'), 'segment')} up to {report.cut} would be read; nothing was changed"
    elif not report.commits:
        words = "nothing was removed" + (": see above" if report.faults else "")
    else:
        gone = f"removed {report.total('removed'):,} of {counted(report.total('records'), 'record')}"
        words = f"{gone} in {took_s:,.1f} s, up to {report.cut}"
    if report.overtaken:
        words += f"; {counted(report.overtaken, 'partition', 'was', 'were')} left: changed or held meanwhile"
    return f"{words}; stopped on request, the same command goes on" if report.interrupted else words


def _print_fault(fault: CompactFault) -> None:
    what = "damaged" if fault.damaged else "not reached"
    at = "" if fault.offset is None else f", at offset {fault.offset:,}"
    where = f"{fault.topic}-{fault.partition} offsets [{fault.base_offset:,}, {fault.end_offset:,})"
    print_line(f"{what}: {where} stay as they are: {fault.message} (in {fault.object_name}{at})")
    if fault.hint:
        print_line(f"  {fault.hint}")


def _words(report: CompactReport) -> str:
    before, after = report.total("segments"), report.total("new_segments")
    took_s = (report.finished_at_ms - report.started_at_ms) / 1000
    if report.dry_run:
        return f"{counted(before, 'segment')} would become {after:,}; nothing was changed"
    dropped = (
        f"; {counted(report.overtaken, 'merge', 'was', 'were')} dropped, another run replaced the segments"
        if report.overtaken
        else ""
    )
    end = " on request before its end: the same command goes on" if report.interrupted else ""
    if not before:
        return f"nothing was merged{': see above' if report.faults else ''}{dropped}{'; stopped' + end if end else ''}"
    later = "" if report.layout != "kafka" else "; 'maxbrod gc' deletes the old objects after its grace time"
    took = f"{took_s:,.1f} s{', stopped' if end else ''}"
    return f"{counted(before, 'segment')} became {after:,} in {took}{end}{later}{dropped}"
