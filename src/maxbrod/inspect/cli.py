"""`maxbrod ls`, `show`, `gc` and `status`: topics and runs, one of them in detail, garbage, and what is promised."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.text import Text

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import ending, out, print_json, print_json_line, print_line, print_promises, table
from maxbrod.cli.signals import stopping_by_signals
from maxbrod.cli.verbs import at_work, load, looking, print_held
from maxbrod.errors import EXIT_DONE, UsageError
from maxbrod.inspect.options import GcOptions, LsOptions, ShowOptions, StatusOptions
from maxbrod.layouts.registry import NATIVE
from maxbrod.option_values import parse_duration_s
from maxbrod.options import PLACE, ArchiveOptions, JsonOption, LookOptions, StorageOptions
from maxbrod.text import counted, human_bytes, human_count, human_time, stored_bytes

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.archive.runs import RunReport, RunSummary
    from maxbrod.inspect.garbage import GarbageReport
    from maxbrod.inspect.listing import GenerationSummary, TopicListing, TopicSummary
    from maxbrod.inspect.status import ArchiveStatus
    from maxbrod.inspect.topic import PartitionExtent, TopicDescription, TopicDetails

_DATA: Final = "data"
"""The cover of offsets that are archived."""
_LINES_SHOWN: Final = 10
_OBJECTS_SHOWN: Final = 20
_BAR_WIDTH: Final = 64
_NO_LONGER_WHOLE: Final = (
    "no longer whole: records that the run left were pruned since, or taken out as lost; a restore as of it needs "
    "--accept-gaps"
)
_SHOWN_ELSEWHERE: Final = {"command", "complete"}
"""Statistics of a run that another line already has."""


@command("ls", LsOptions, after=(*PLACE, LookOptions, JsonOption))
def ls(call: Call[LsOptions]) -> None:
    """List the topics of an archive, or its runs.

    For example:

      maxbrod ls -a /backups/kafka

      maxbrod ls -a s3://backups/kafka 'orders-*' --as-of latest

      maxbrod ls -c maxbrod.yaml --runs --json
    """
    options = call.options
    if options.runs and options.all:
        raise UsageError("--all is about topics, --runs lists runs", hint="leave one of them out")
    with looking(call):
        opened = _open(call)
        listed = load("archive.runs:list_runs" if options.runs else "inspect.listing:list_topics")
        listing = listed(opened, options.topics, as_of=options.as_of)
    if options.runs:
        if opened.survey is not None and not call.as_json:
            print_line(_no_runs(opened.survey.layout))
        else:
            _show_runs(listing, as_json=call.as_json)
        return
    if call.as_json:
        print_json(asdict(listing))
    else:
        _show_topics(listing, every=options.all)


@command("show", ShowOptions, after=(*PLACE, LookOptions, JsonOption))
def show(call: Call[ShowOptions]) -> None:
    """Show what is archived of a topic by partition, with its gaps, configuration and consumer groups.

    Name a run by its id, the beginning of its id, or 'latest'.

    For example:

      maxbrod show -a /backups/kafka orders

      maxbrod show -a s3://backups/kafka orders --partition 3 --as-of 20260801T0300

      maxbrod show -a /backups/kafka --run latest --json
    """
    options = call.options
    if (options.topic is None) == (options.run is None):
        raise UsageError("name a topic, or a run with --run", hint="see 'maxbrod ls' and 'maxbrod ls --runs'")
    if options.all and options.topic_id is not None:
        raise UsageError("--all and --topic-id exclude each other")
    with looking(call):
        opened = _open(call)
        report = _run_or_topic(opened, options)
    (_print_topics if options.run is None else _print_run)(report, as_json=call.as_json)


def _run_or_topic(opened: Archive, options: ShowOptions) -> Any:  # noqa: ANN401 - whichever was asked for
    if options.run is not None:
        return load("archive.runs:show_run")(opened, options.run)
    return load("inspect.topic:show_topic")(
        opened,
        options.topic,
        partition=options.partition,
        as_of=options.as_of,
        topic_id=load("inspect.topic:EVERY") if options.all else options.topic_id,
    )


@command(
    "gc",
    GcOptions,
    after=(ArchiveOptions, StorageOptions, LookOptions, JsonOption),
    looks=lambda given: "delete" not in given,
)
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
    options = call.options
    grace_s = parse_duration_s(options.grace)
    with at_work(call, meanwhile="objects that are being deleted go first") as work:
        with work.looking("reading the archive"):
            archive = load("archive.archive:open_archive")(call.archive, call.config.storage)
        report = load("inspect.garbage:collect_garbage")(
            archive, work=work, grace_s=grace_s, delete=options.delete, trust_clock=options.trust_clock
        )
    if call.as_json:
        print_json(asdict(report))
    else:
        _print_garbage(report, options.grace)
    raise typer.Exit(report.exit_code)


@command("status", StatusOptions, before=PLACE, after=(LookOptions, JsonOption))
def status(call: Call[StatusOptions]) -> None:
    """Show whether an archive keeps its promises: one OK, WARN or FAILED line for each.

    The last backup and the recovery point against a target; offsets that are neither archived nor explained; objects
    that are missing; the last deep check and the last drill, with the time that a whole restore would take at its
    speed; size and growth; format and clock. What was not looked at is never OK. No cluster is asked, and no
    object is read.

    An offset is explained if the archive has no record at it and says why: the topic was compacted, retention deleted
    the record before a backup read it, or it was pruned. The recovery point is the time up to which the archive has
    everything that the cluster had.

    The exit code is 3 or 4 if a promise has failed, 0 if there are only warnings, unless --strict.

    For example:

      maxbrod status -a /backups/kafka --recovery-point 1h

      maxbrod status s3://backups/kafka s3://backups/other --json

      maxbrod status -a /backups/kafka --recovery-time 4h --watch 30s
    """
    options = call.options
    # Words stand for what the file or the environment says; a flag is one more.
    named = call.config.archive if "archive" in call.given or "archives" not in call.given else None
    urls = [*([] if named is None else [named]), *options.archives]
    if not urls:
        raise UsageError("no archive is named", hint="give --archive URL, or one or more archives as words")
    if options.watch is None:
        with looking(call):
            found = _statuses(call, urls)
        raise typer.Exit(_show_statuses(call, found))
    stop = threading.Event()
    code = EXIT_DONE
    with stopping_by_signals(stop):
        while not stop.is_set():
            if out.is_terminal and not call.as_json:
                out.clear()
            code = _show_statuses(call, _statuses(call, urls))
            stop.wait(options.watch)
    raise typer.Exit(code)


def _statuses(call: Call[StatusOptions], urls: list[str]) -> list[ArchiveStatus]:
    price = load("inspect.status:price_of")(call.options)
    status_of = load("inspect.status:status_of")
    return [status_of(url, call.config.storage, call.options, price, layout=call.config.layout) for url in urls]


def _show_statuses(call: Call[StatusOptions], found: list[ArchiveStatus]) -> int:
    code = max(status.exit_code for status in found)
    if call.as_json:
        document = {"archives": [asdict(archive) for archive in found], "exit_code": code}
        (print_json if call.options.watch is None else print_json_line)(document)
        return code
    for status in found:
        print_line(status.archive)
        print_promises(status.promises)
    return code


def _open(call: Call[Any]) -> Archive:
    found: Archive = load("archive.archive:open_archive")(call.archive, call.config.storage, layout=call.config.layout)
    return found


def _no_runs(layout: str) -> str:
    return f"layout {layout}: of another tool, which does not say which runs there were"


def _show_topics(listing: TopicListing, *, every: bool) -> None:
    title = listing.archive if listing.as_of is None else f"{listing.archive} as of {listing.as_of}"
    shown = table(title, "*topic", ">parts", ">records", "oldest", "newest", ">stored", ">gaps")
    chosen = [topic for topic in listing.topics if topic.newest or every]
    for topic in chosen:
        shown.add_row(
            topic.topic if topic.newest else f"{topic.topic} ({topic.topic_id})",
            f"{topic.partitions:,}",
            human_count(topic.records),
            human_time(topic.min_timestamp, to="day"),
            human_time(topic.max_timestamp, to="minute"),
            human_bytes(topic.bytes),
            human_count(sum(topic.gaps.values())) if topic.gaps else "",
        )
    out.print(shown)
    _show_foot(listing, chosen)


def _show_foot(listing: TopicListing, chosen: list[TopicSummary]) -> None:
    stored, raw = sum(topic.bytes for topic in chosen), sum(topic.raw_bytes for topic in chosen)
    print_line(f"{counted(len(chosen), 'topic')}, {stored_bytes(stored, raw)}")
    gone = [f"{topic.topic} (last seen by run {topic.last_seen})" for topic in chosen if topic.last_seen is not None]
    _print_first([f"not seen in the cluster any more: {line}" for line in gone], "topic", " more that are not")
    # The active generation of each topic that has several, and the one under construction.
    generations = [
        f"{topic.topic}: {_describe_generation(generation)}"
        for topic in chosen
        for generation in topic.generations
        if generation.stage in {"active", "building"}
    ]
    _print_first(generations, "generation", " more")
    past = len(listing.topics) - len(chosen)
    if past:
        print_line(f"{past:,} more were deleted and created again since: see --all")
    if listing.layout != NATIVE:
        if listing.faults:
            faults = counted(listing.faults, "fault")
            print_line(f"damaged: {faults}, by which records are not listed: see 'maxbrod check'")
        print_line(_no_runs(listing.layout))
        return
    last = listing.last_run
    if last is None:
        print_line("no run yet")
    else:
        print_line(
            f"last of {counted(listing.runs, 'run')}: {last.run_id}, ended {human_time(last.finished_at)}, "
            f"{_ending(last)}"
        )
    _show_recovery_point(listing, chosen)


def _show_recovery_point(listing: TopicListing, chosen: list[TopicSummary]) -> None:
    """With the topic that determines it, if others are newer."""
    if listing.unreadable_snapshot is not None:
        print_line(
            f"recovery point: unknown: the snapshot of run {listing.unreadable_snapshot} cannot be read, see "
            "'maxbrod check'; topics without records are not listed"
        )
    elif listing.partial:
        print_line("recovery point: none: topics may be hidden from the user of the last backup: see 'maxbrod status'")
    elif listing.recovery_point is None:
        print_line("recovery point: none: no backup of a cluster has archived all of this to its end")
    else:
        known = {topic.recovery_point: topic.topic for topic in chosen if topic.recovery_point is not None}
        oldest = known.get(listing.recovery_point)
        because = f", because of {oldest}" if len(known) > 1 and oldest is not None else ""
        when = human_time(listing.recovery_point)
        print_line(f"recovery point: {when}, or later{because}: a run that finds nothing new is not recorded")
    if listing.behind:
        behind = counted(listing.behind, "partition", "is", "are")
        print_line(f"{behind} not archived to the end that the last backup saw: see 'maxbrod check'")


def _show_runs(runs: list[RunSummary], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(run) for run in runs])
        return
    columns = ("*run, by its start", "verb", ">took", ">topics", ">records", ">size", "ended")
    shown = table("Runs, in the order of commits", *columns)
    for run in runs:
        shown.add_row(
            run.run_id,
            run.command or "",
            f"{(run.finished_at - run.started_at) / 1000:,.1f} s",
            *("" if count is None else human_count(count) for count in (run.topics, run.records)),
            "" if run.bytes is None else human_bytes(run.bytes),
            _ending(run) if run.restorable is not False else f"{_ending(run)}, no longer whole",
        )
    out.print(shown)
    if any(run.restorable is False for run in runs):
        print_line(_NO_LONGER_WHOLE)


def _ending(run: RunSummary) -> str:
    if run.exit_code is None:
        return "committed"
    return f"stopped, exit {run.exit_code}" if run.stopped else ending(run.exit_code)


def _describe_generation(generation: GenerationSummary) -> str:
    name = f"generation {generation.number} {generation.stage}"
    began = f"begun {human_time(generation.began_at)}"
    match generation.stage:
        case "building":
            read = sum(min(end, generation.targets.get(partition, 0)) for partition, end in generation.read.items())
            return f"{name}: {began}, read to {read:,} of {counted(sum(generation.targets.values()), 'offset')}"
        case "active":
            offsets = counted(sum(generation.log_ends.values()), "offset")
            return f"{name}: {began}, complete {human_time(generation.activated_at)} at {offsets}"
        case "retired":
            return f"{name}: {began}, until {human_time(generation.ended_at)}"
        case _:
            return f"{name} {human_time(generation.ended_at)}: {generation.why}"


def _print_topics(report: TopicDescription, *, as_json: bool) -> None:
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
            print_line(_describe_generation(generation))
        for extent in details.partitions:
            _print_partition(extent)
        print_line("")
        out.print(
            load("inspect.topic:legend")(span for extent in details.partitions for span in extent.spans),
            highlight=False,
        )
        if details.configs:
            print_line(f"configuration at {details.described_by or report.snapshot}:")
            for name, value in sorted(details.configs.items()):
                print_line(f"  {name}={'' if value is None else value}")
        if details.groups:
            _print_groups(details, report.snapshot)


def _print_partition(extent: PartitionExtent) -> None:
    bar = load("inspect.topic:coverage_bar")(extent.spans, _BAR_WIDTH)
    most = "" if extent.exact else "at most "
    packed = stored_bytes(extent.bytes, extent.raw_bytes)
    print_line("")
    print_line(f"partition {extent.partition}: offsets [{extent.first_offset:,}, {extent.end_offset:,})")
    out.print(Text("  [").append(bar).append("]"), highlight=False)
    print_line(f"  {most}{counted(extent.records, 'record')} in {counted(extent.segments, 'segment')}, {packed}")
    if extent.log_start is not None and extent.log_start != extent.first_offset:
        print_line(f"  the log itself began at offset {extent.log_start:,} then")
    if extent.min_timestamp is not None:
        print_line(f"  {human_time(extent.min_timestamp)} to {human_time(extent.max_timestamp)}")
    if extent.first_leader_epoch is not None and extent.first_leader_epoch >= 0:
        print_line(f"  leader epochs {extent.first_leader_epoch} to {extent.last_leader_epoch}")
    if extent.aborted:
        print_line(f"  {len(extent.aborted):,} aborted transactions")
    gaps = [
        f"  {span.cover}: [{span.first_offset:,}, {span.end_offset:,}), "
        f"{counted(span.end_offset - span.first_offset, 'offset')}"
        for span in extent.spans
        if span.cover != _DATA
    ]
    _print_first(gaps, "more gap", indent="  ")


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
        print_line(_NO_LONGER_WHOLE)
    for name, value in run.statistics.items():
        if name in _SHOWN_ELSEWHERE or value in ([], {}):
            continue
        for item in value if isinstance(value, list) else [value]:
            print_line(f"{name.replace('_', ' ')}: {item:,}" if isinstance(item, int) else f"{name}: {item}")
    shown = table("What is in the archive from this run", "*topic", ">parts", ">records", ">stored", ">objects", "gaps")
    for topic in report.topics:
        gaps = ", ".join(f"{count:,} {reason}" for reason, count in topic.gaps.items())
        counts = (f"{topic.partitions:,}", human_count(topic.records), human_bytes(topic.bytes), f"{topic.objects:,}")
        shown.add_row(topic.topic, *counts, gaps)
    out.print(shown)


def _print_garbage(report: GarbageReport, grace: str) -> None:
    if report.objects:
        shown = table("Deleted" if report.deleted else "Would be deleted", "*object", ">size", "written")
        for found in report.objects:
            shown.add_row(found.path, human_bytes(found.size), human_time(found.modified_ms, to="minute"))
        out.print(shown)
    what = "deleted" if report.deleted else "would be deleted"
    if report.held_objects:
        what += f", of which {human_bytes(report.held_bytes)} are held"
    print_line(
        f"{counted(len(report.objects), 'object')} of {human_bytes(report.bytes)} {what}; "
        f"{report.named_objects:,} {'is' if report.named_objects == 1 else 'are'} in use"
    )
    print_held(report.held_objects)
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
    unlisted = [f"stays, because the catalog lacks its records: {lost}" for lost in report.unlisted]
    _print_first(unlisted, "", " more", most=_OBJECTS_SHOWN)
    if report.unlisted:
        print_line(f"  {load('archive.unlisted:HINT')}")
    if report.objects and not report.deleted:
        print_line("nothing was changed; repeat with --delete")


def _print_first(
    lines: Sequence[str], noun: str, more: str = "", *, most: int = _LINES_SHOWN, indent: str = ""
) -> None:
    """Print the first lines, and how many there are beyond `most`."""
    for line in lines[:most]:
        print_line(line)
    left = len(lines) - most
    if left > 0:
        print_line(f"{indent}and {counted(left, noun) if noun else f'{left:,}'}{more}: see --json")
