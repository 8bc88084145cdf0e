"""`maxbrod show`: one topic or one run in detail."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from rich.text import Text

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import out, print_json, print_line, table
from maxbrod.errors import UsageError
from maxbrod.inspect.cli_generations import describe_generation
from maxbrod.inspect.cli_ls import NO_LONGER_WHOLE
from maxbrod.inspect.options import ShowOptions
from maxbrod.options import PLACE, JsonOption
from maxbrod.text import counted, human_bytes, human_count, human_time, stored_bytes

if TYPE_CHECKING:
    from maxbrod.archive.runs import RunReport
    from maxbrod.inspect.extents import PartitionExtent
    from maxbrod.inspect.showing import TopicDetails, TopicReport

_BAR_WIDTH: Final = 64
_GAPS_SHOWN: Final = 10

_SHOWN_ELSEWHERE: Final = {"command", "complete"}
"""Statistics of a run that another line already has."""


@command("show", ShowOptions, after=(*PLACE, JsonOption))
def show(call: Call[ShowOptions]) -> None:
    """Show what is archived of a topic by partition, with its gaps, configuration and consumer groups.

    Name a run by its id, the beginning of its id, or 'latest'.

    For example:

      maxbrod show -a /backups/kafka orders

      maxbrod show -a s3://backups/kafka orders --partition 3 --as-of 20260801T0300

      maxbrod show -a /backups/kafka --run latest --json
    """
    from maxbrod.archive.archive import open_archive  # noqa: PLC0415 - Arrow and Delta: not for `--help`
    from maxbrod.archive.runs import show_run  # noqa: PLC0415
    from maxbrod.inspect.showing import EVERY, show_topic  # noqa: PLC0415

    options = call.options
    if (options.topic is None) == (options.run is None):
        raise UsageError("name a topic, or a run with --run", hint="see 'maxbrod ls' and 'maxbrod ls --runs'")
    if options.all and options.topic_id is not None:
        raise UsageError("--all and --topic-id exclude each other")
    opened = open_archive(call.archive, call.config.storage, layout=call.config.layout)
    if options.run is not None:
        _print_run(show_run(opened, options.run), as_json=call.as_json)
    elif options.topic is not None:
        topic_id = EVERY if options.all else options.topic_id
        report = show_topic(opened, options.topic, partition=options.partition, as_of=options.as_of, topic_id=topic_id)
        _print_topics(report, as_json=call.as_json)


def _print_topics(report: TopicReport, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(report))
        return
    for details in report.topics:
        age = "" if details.newest else ", since deleted and created again"
        moment = "" if report.as_of is None else f" as of {report.as_of}"
        print_line(f"{details.topic}{moment} (topic id {details.topic_id}{age})")
        if details.last_seen is not None:
            print_line(f"not seen in the cluster any more: last seen by run {details.last_seen}")
        for generation in details.generations:
            print_line(describe_generation(generation))
        for extent in details.partitions:
            _print_partition(extent)
        _print_legend(details)
        if details.configs:
            print_line(f"configuration at {details.described_by or report.snapshot}:")
            for name, value in sorted(details.configs.items()):
                print_line(f"  {name}={'' if value is None else value}")
        if details.groups:
            _print_groups(details, report.snapshot)


def _print_partition(extent: PartitionExtent) -> None:
    from maxbrod.inspect.coverage import coverage_bar  # noqa: PLC0415 - the catalog's words: not for `--help`

    most = "" if extent.exact else "at most "
    packed = stored_bytes(extent.bytes, extent.raw_bytes)
    print_line("")
    print_line(f"partition {extent.partition}: offsets [{extent.first_offset:,}, {extent.end_offset:,})")
    out.print(Text("  [").append(coverage_bar(extent.spans, _BAR_WIDTH)).append("]"), highlight=False)
    print_line(f"  {most}{counted(extent.records, 'record')} in {counted(extent.segments, 'segment')}, {packed}")
    if extent.log_start is not None and extent.log_start != extent.first_offset:
        print_line(f"  the log itself began at offset {extent.log_start:,} then")
    if extent.min_timestamp is not None:
        print_line(f"  {human_time(extent.min_timestamp)} to {human_time(extent.max_timestamp)}")
    if extent.first_leader_epoch is not None and extent.first_leader_epoch >= 0:
        print_line(f"  leader epochs {extent.first_leader_epoch} to {extent.last_leader_epoch}")
    if extent.aborted:
        print_line(f"  {len(extent.aborted):,} aborted transactions")
    _print_gaps(extent)


def _print_gaps(extent: PartitionExtent) -> None:
    from maxbrod.inspect.extents import DATA  # noqa: PLC0415 - as above

    gaps = [span for span in extent.spans if span.cover != DATA]
    for span in gaps[:_GAPS_SHOWN]:
        count = span.end_offset - span.first_offset
        print_line(f"  {span.cover}: [{span.first_offset:,}, {span.end_offset:,}), {counted(count, 'offset')}")
    if len(gaps) > _GAPS_SHOWN:
        print_line(f"  and {counted(len(gaps) - _GAPS_SHOWN, 'more gap')}: see --json")


def _print_legend(details: TopicDetails) -> None:
    from maxbrod.inspect.coverage import legend  # noqa: PLC0415 - as above

    line = legend(span for extent in details.partitions for span in extent.spans)
    print_line("")
    out.print(line, highlight=False)


def _print_groups(details: TopicDetails, snapshot: str | None) -> None:
    shown = table(
        f"Consumer groups at {snapshot}", "*group", "state", ">partition", ">committed", ">lag in the archive"
    )
    for group in details.groups:
        ahead = " (ahead)" if group.lag < 0 else ""
        state = group.state if group.last_known is None else f"last known by run {group.last_known}"
        shown.add_row(group.group_id, state, str(group.partition), f"{group.offset:,}", f"{group.lag:,}{ahead}")
    out.print(shown)


def _print_run(report: RunReport, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(report))
        return
    run = report.run
    print_line(f"{run.command or 'run'} {run.run_id}")
    print_line(f"from {human_time(run.started_at)} to {human_time(run.finished_at)}")
    print_line(f"snapshot: {run.snapshot or 'none'}")
    if run.restorable is False:
        print_line(NO_LONGER_WHOLE)
    for name, value in run.statistics.items():
        if name in _SHOWN_ELSEWHERE or value in ([], {}):
            continue
        for each in value if isinstance(value, list) else [value]:
            print_line(f"{name.replace('_', ' ')}: {each:,}" if isinstance(each, int) else f"{name}: {each}")
    shown = table("What is in the archive from this run", "*topic", ">parts", ">records", ">stored", ">objects", "gaps")
    for topic in report.topics:
        gaps = ", ".join(f"{count:,} {reason}" for reason, count in topic.gaps.items())
        counts = (f"{topic.partitions:,}", human_count(topic.records), human_bytes(topic.bytes), f"{topic.objects:,}")
        shown.add_row(topic.topic, *counts, gaps)
    out.print(shown)
