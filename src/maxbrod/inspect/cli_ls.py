"""`maxbrod ls`: lists the topics or runs of an archive."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import ending, out, print_json, print_line, table
from maxbrod.errors import UsageError
from maxbrod.inspect.cli_generations import describe_generation
from maxbrod.inspect.options import LsOptions
from maxbrod.layouts.registry import NATIVE
from maxbrod.options import PLACE, JsonOption
from maxbrod.text import counted, human_bytes, human_count, human_time, stored_bytes

_GONE_SHOWN: Final = 10
NO_LONGER_WHOLE: Final = (
    "no longer whole: records that the run left were pruned since, or taken out as lost; a restore as of it needs "
    "--accept-gaps"
)

if TYPE_CHECKING:
    from maxbrod.archive.runs import RunSummary
    from maxbrod.inspect.listing import Listing, TopicSummary


@command("ls", LsOptions, after=(*PLACE, JsonOption))
def ls(call: Call[LsOptions]) -> None:
    """List the topics of an archive, or its runs.

    For example:

      maxbrod ls -a /backups/kafka

      maxbrod ls -a s3://backups/kafka 'orders-*' --as-of latest

      maxbrod ls -c maxbrod.yaml --runs --json
    """
    from maxbrod.archive.archive import open_archive  # noqa: PLC0415 - Arrow and Delta: not for `--help`
    from maxbrod.archive.runs import list_runs  # noqa: PLC0415
    from maxbrod.inspect.listing import list_topics  # noqa: PLC0415

    options = call.options
    opened = open_archive(call.archive, call.config.storage, layout=call.config.layout)
    if options.runs:
        if options.all:
            raise UsageError("--all is about topics, --runs lists runs", hint="leave one of them out")
        if opened.survey is not None and not call.as_json:
            print_line(_no_runs(opened.survey.layout))
            return
        _show_runs(list_runs(opened, options.topics, as_of=options.as_of), as_json=call.as_json)
        return
    listing = list_topics(opened, options.topics, as_of=options.as_of)
    if call.as_json:
        print_json(asdict(listing))
    else:
        _show_topics(listing, every=options.all)


def _no_runs(layout: str) -> str:
    return f"layout {layout}: of another tool, which does not say which runs there were"


def _show_topics(listing: Listing, *, every: bool) -> None:
    title = listing.archive if listing.as_of is None else f"{listing.archive} as of {listing.as_of}"
    shown = table(title, "*topic", ">parts", ">records", "from", "to", ">stored", ">gaps")
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


def _show_foot(listing: Listing, chosen: list[TopicSummary]) -> None:
    stored, raw = sum(topic.bytes for topic in chosen), sum(topic.raw_bytes for topic in chosen)
    print_line(f"{counted(len(chosen), 'topic')}, {stored_bytes(stored, raw)}")
    gone = [f"{topic.topic} (last seen by run {topic.last_seen})" for topic in chosen if topic.last_seen is not None]
    for line in gone[:_GONE_SHOWN]:
        print_line(f"not seen in the cluster any more: {line}")
    if len(gone) > _GONE_SHOWN:
        print_line(f"and {counted(len(gone) - _GONE_SHOWN, 'topic')} more that are not: see --json")
    _show_generations(chosen)
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


def _show_generations(chosen: list[TopicSummary]) -> None:
    """The active generation of each topic that has several, and the one under construction."""
    lines = [
        f"{topic.topic}: {describe_generation(generation)}"
        for topic in chosen
        for generation in topic.generations
        if generation.stage in {"active", "building"}
    ]
    for line in lines[:_GONE_SHOWN]:
        print_line(line)
    if len(lines) > _GONE_SHOWN:
        print_line(f"and {counted(len(lines) - _GONE_SHOWN, 'generation')} more: see --json")


def _show_recovery_point(listing: Listing, chosen: list[TopicSummary]) -> None:
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
        because = f", owed to {oldest}" if len(known) > 1 and oldest is not None else ""
        print_line(f"recovery point: {human_time(listing.recovery_point)}, or later{because}")
    if listing.behind:
        behind = counted(listing.behind, "partition", "is", "are")
        print_line(f"{behind} not archived as far as the last backup was to: see check")


def _show_runs(runs: list[RunSummary], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(run) for run in runs])
        return
    columns = ("*run, by its begin", "of", ">took", ">topics", ">records", ">size", "ended")
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
        print_line(NO_LONGER_WHOLE)


def _ending(run: RunSummary) -> str:
    return "committed" if run.exit_code is None else ending(run.exit_code)
