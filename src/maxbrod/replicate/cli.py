"""`maxbrod replicate`: a cluster mirrored to another one through an archive."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import err, out, print_error, print_json, print_json_line, print_line
from maxbrod.errors import EXIT_DONE, MaxbrodError
from maxbrod.options import PLACE, ClusterOptions, JsonOption, QuietOption, SparkOptions
from maxbrod.replicate.options import ReplicateOptions
from maxbrod.replicate.printing import (
    IngressPrinter,
    print_line_to_err,
    print_promotion,
    print_repairs,
    print_status,
    print_ways_back,
)
from maxbrod.replicate.seed.cli import egress_tree, ingress_tree

if TYPE_CHECKING:
    from maxbrod.backup.follow import Interval as EgressInterval
    from maxbrod.config import Config
    from maxbrod.replicate.egress import EgressShare
    from maxbrod.replicate.ingress.run import IngressInterval

app = typer.Typer(no_args_is_help=True, help="Mirror topics to another cluster through an archive.")
_FAR: Final = (ClusterOptions, *PLACE)
_LONG: Final = (SparkOptions, QuietOption, JsonOption)
_LINK: Final = ("topics", "exclude", "link", "rename", "prefix", "offsets")
_FOLLOW: Final = ("every", "once", "takeover", "metrics_port", "metrics_host", "metrics_names", "metrics_file")
_ROLL: Final = ("roll_bytes", "roll_records", "roll_age", "topic_limits")
_CARRY: Final = ("configs", "groups")


@app.command()
@command(
    "replicate", ReplicateOptions, before=_FAR, after=_LONG, only=["topics", "exclude", "min_topics", *_FOLLOW, *_ROLL]
)
def egress(call: Call[ReplicateOptions]) -> None:
    """In the source region: archive topics continuously, with a heartbeat of the source's log ends.

    It is 'maxbrod backup --follow' with a heartbeat. The section 'backup' of the file applies as well. Several
    instances for one archive divide the partitions among themselves, and take over those of one that is lost.

    For example:

      maxbrod replicate egress --bootstrap source1:9092 -a s3://outbox/kafka --topic 'orders-*' --every 1s --roll-age 0
    """
    from maxbrod.backup.metrics import BackupMetrics, problem_of  # noqa: PLC0415
    from maxbrod.backup.summary import IntervalPrinter  # noqa: PLC0415 - Kafka, Arrow, Delta: not for `--help`
    from maxbrod.cli.log import showing_log  # noqa: PLC0415
    from maxbrod.cli.metrics import exporting  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415
    from maxbrod.model import now_ms  # noqa: PLC0415
    from maxbrod.replicate.egress import follow_source  # noqa: PLC0415
    from maxbrod.replicate.metrics import BeatMetrics  # noqa: PLC0415

    stop, show = threading.Event(), IntervalPrinter(quiet=call.quiet, as_json=call.as_json)
    metrics = BackupMetrics()
    beats = BeatMetrics(metrics.registry)
    with ExitStack() as undo:
        undo.enter_context(showing_log(quiet=call.quiet))
        undo.enter_context(stopping_by_signals(stop))
        ended = undo.enter_context(exporting(metrics.registry, call.options, every_s=call.options.every))
        unbeaten: list[str] = []

        leaders: list[str] = []

        def shared(share: EgressShare) -> None:
            beats.share(share)
            if share.any:
                leaders.clear()
                return
            ended(None)
            leader = share.leader or "another instance"
            if leaders != [leader] and not (call.quiet or call.as_json):
                print_line(f"standing by: {leader} leads")
            leaders[:] = [leader]

        def report(interval: EgressInterval) -> None:
            metrics.observe(interval)
            beats.ran(interval.report)
            ended(problem_of(interval) or next(iter(unbeaten), None))
            show(interval)

        def beaten(error: MaxbrodError | None) -> None:
            beats.observe(now_ms() if error is None else None)
            unbeaten[:] = [] if error is None else [f"the heartbeat could not be written: {error}"]
            for why in unbeaten:
                print_line_to_err(why)

        on_progress = undo.enter_context(progress_bar(shown=not (call.quiet or call.as_json)))
        last = follow_source(
            _settings(call),
            stop=stop,
            on_interval=report,
            on_beat=beaten,
            on_share=shared,
            on_progress=on_progress,
        )
    raise typer.Exit(last.exit_code)


@app.command()
@command(
    "replicate",
    ReplicateOptions,
    before=_FAR,
    after=_LONG,
    only=[*_LINK, *_CARRY, "accept_gaps", "rate_bytes_per_s", *_FOLLOW],
)
def ingress(call: Call[ReplicateOptions]) -> None:
    """In the destination region: follow an archive, and append what it holds to mirrors, exactly once.

    Mirrors have the source's offsets. Topics are created, configured and grown as the source's are, and log starts
    follow. With --offsets append, records join those of others, in transactions that contain the position. Nothing is
    remembered but at the destination: kill it at any time, and start it again anywhere. The archive may be a bucket
    that something else copies object by object, in any order.

    For example:

      maxbrod replicate ingress --bootstrap target1:9092 -a s3://inbox/kafka --every 1s --groups '*'

      maxbrod replicate ingress --bootstrap target1:9092 -a s3://inbox/kafka --prefix eu. --once --json

      maxbrod replicate ingress --bootstrap target1:9092 -a s3://inbox/kafka --link eu --offsets append
    """
    from maxbrod.cli.log import showing_log  # noqa: PLC0415 - as above
    from maxbrod.cli.metrics import exporting  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415
    from maxbrod.replicate.ingress.run import follow_archive  # noqa: PLC0415
    from maxbrod.replicate.metrics import IngressMetrics, problem_of  # noqa: PLC0415

    stop, show = threading.Event(), IngressPrinter(quiet=call.quiet, as_json=call.as_json)
    metrics = IngressMetrics()
    with ExitStack() as undo:
        undo.enter_context(showing_log(quiet=call.quiet))
        undo.enter_context(stopping_by_signals(stop))
        ended = undo.enter_context(exporting(metrics.registry, call.options, every_s=call.options.every))

        def report(interval: IngressInterval) -> None:
            metrics.observe(interval)
            ended(problem_of(interval))
            show(interval)

        on_progress = undo.enter_context(progress_bar(shown=not (call.quiet or call.as_json)))
        last = follow_archive(_settings(call), stop=stop, on_interval=report, on_progress=on_progress)
    raise typer.Exit(last.exit_code)


@app.command()
@command("replicate", ReplicateOptions, before=_FAR, after=(JsonOption,), only=[*_LINK, "watch"])
def status(call: Call[ReplicateOptions]) -> None:
    """At the destination: the state and the lag of every mirrored partition. The source is not asked.

    States: in step, catching up, late segment, lost range, paused, promoted, source gone, faulted. The exit code is 5
    if a partition is faulted; 3 if one waits for a segment or has lost a range, if a named topic is not archived, or if
    records wait and no ingress has reported for five minutes. With --watch, a cluster or an archive that cannot be read
    for a while is told, and looked at again.

    For example:

      maxbrod replicate status --bootstrap target1:9092 -a s3://inbox/kafka --watch 5s
    """
    options = call.options
    if options.watch is None:
        raise typer.Exit(_show_status(call))
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415 - only to watch
    from maxbrod.replicate.ingress.run import may_come, wait_unless  # noqa: PLC0415

    stop = threading.Event()
    code, going_on = EXIT_DONE, True
    with stopping_by_signals(stop, what="the last look ends first"):
        while going_on:
            if out.is_terminal and not call.as_json:
                out.clear()
            try:
                code = _show_status(call)
            except MaxbrodError as error:
                # While it watches, a cluster may restart, and a bucket may be copied.
                if not may_come(error, once=False):
                    raise
                if call.as_json:
                    print_json_line(error.as_dict())
                else:
                    print_error(error, as_json=False)
                code = error.exit_code
            going_on = wait_unless(options.watch, stop)
    raise typer.Exit(code)


@app.command()
@command("replicate", ReplicateOptions, before=_FAR, after=(JsonOption,), only=_LINK)
def pause(call: Call[ReplicateOptions]) -> None:
    """Pause the selected topics: ingress appends nothing to them until they are resumed."""
    _order(call, "pause", "paused")


@app.command()
@command("replicate", ReplicateOptions, before=_FAR, after=(JsonOption,), only=_LINK)
def resume(call: Call[ReplicateOptions]) -> None:
    """Resume paused topics where they stopped."""
    _order(call, "run", "resumed")


@app.command()
@command("replicate", ReplicateOptions, before=_FAR, after=(JsonOption,), only=[*_LINK, *_CARRY, "force"])
def promote(call: Call[ReplicateOptions]) -> None:
    """At the destination: end the link, and make the selected mirrors ordinary topics that producers may write to.

    Each partition ends at a definite offset, and brokers refuse whatever an ingress may still send. Groups get the
    offsets that the archive last recorded. The report names what had not arrived, as far as the last heartbeat tells.
    The exit code is 3 if something had not arrived, or if that is unknown. May be repeated.

    For example:

      maxbrod replicate promote --bootstrap target1:9092 -a s3://inbox/kafka --groups '*'
    """
    from maxbrod.replicate.promote import promote as end_link  # noqa: PLC0415 - Kafka, Arrow, Delta: not for `--help`

    report = end_link(_settings(call))
    if call.as_json:
        print_json(report.as_dict())
    else:
        print_promotion(report, groups=bool(call.options.groups))
    raise typer.Exit(report.exit_code)


@app.command(name="fail-back")
@command("replicate", ReplicateOptions, before=_FAR, after=_LONG, only=_LINK)
def fail_back(call: Call[ReplicateOptions]) -> None:
    """At the old source: let it become the mirror of what was promoted, at the same offsets.

    The archive is one that 'replicate egress' makes of the promoted cluster. Records that never arrived there have
    diverged: they are named, the exit code is 5, and nothing is changed. Otherwise 'replicate ingress' with the same
    options continues the topics, exactly once.

    With --offsets append, ingress appends what was written at the promoted cluster since the promotion. Diverged
    records are named and stay; the exit code is 3 then.

    For example:

      maxbrod replicate fail-back --bootstrap source1:9092 -a s3://wayback/kafka --topic orders

      maxbrod replicate fail-back --bootstrap source1:9092 -a s3://wayback/kafka --topic orders --offsets append
    """
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415 - as above
    from maxbrod.replicate.fail_back import fail_back as prepare  # noqa: PLC0415

    with progress_bar(shown=not (call.quiet or call.as_json)) as on_progress:
        report = prepare(_settings(call), on_progress=on_progress)
    if call.as_json:
        print_json(report.as_dict())
        raise typer.Exit(report.exit_code)
    print_ways_back(report)
    raise typer.Exit(report.exit_code)


@app.command()
@command("replicate", ReplicateOptions, before=_FAR, after=_LONG, only=[*_LINK, "yes"])
def repair(call: Call[ReplicateOptions]) -> None:
    """At the destination: let faulted mirrors go on that are what the archive has, or mirror them anew.

    The logs of faulted partitions are compared with the archive, every record. What is equal goes on: ingress continues
    at the end of the log. A log with anything else cannot be cut. With --yes its topic is deleted, and ingress mirrors
    all of it anew, at the same offsets. Without --yes nothing is deleted: the report says which topics would be, and
    which groups would lose their positions. The exit code is 5 if a partition is still faulted.

    For example:

      maxbrod replicate repair --bootstrap target1:9092 -a s3://inbox/kafka --topic orders
    """
    from maxbrod.cli.log import showing_log  # noqa: PLC0415 - as above
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.replicate.repair import repair as prove  # noqa: PLC0415

    with showing_log(quiet=call.quiet), progress_bar(shown=not (call.quiet or call.as_json)) as on_progress:
        report = prove(_settings(call), on_progress=on_progress)
    if call.as_json:
        print_json(report.as_dict())
    else:
        print_repairs(report, quiet=call.quiet)
    raise typer.Exit(report.exit_code)


@app.command()
@command("replicate", ReplicateOptions, before=_FAR, after=_LONG, only=[*_LINK, "ranges"])
def verify(call: Call[ReplicateOptions]) -> None:
    """At the destination: compare mirrors with the archive, every record, while both go on.

    What both have when it begins is compared: all of it, or the given ranges. In topics that the link appends to, its
    records are found by their headers. The exit code is 3 if anything differs, or if not both sides have a given range.

    For example:

      maxbrod replicate verify --bootstrap target1:9092 -a s3://inbox/kafka --range orders:0:1000..2000
    """
    from maxbrod.cli.log import showing_log  # noqa: PLC0415 - as above
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.compare.summary import print_comparison, print_differences  # noqa: PLC0415
    from maxbrod.replicate.verify import verify as compare_mirrors  # noqa: PLC0415

    with showing_log(quiet=call.quiet), progress_bar(shown=not (call.quiet or call.as_json)) as on_progress:
        found = compare_mirrors(_settings(call), on_progress=on_progress)
    if call.as_json:
        compared = {"partitions": []} if found.report is None else found.report.as_dict()
        uncompared = [{**asdict(each.where), "first": each.first, "end": each.end} for each in found.uncompared]
        print_json({**compared, "uncompared": uncompared, "exit_code": found.exit_code})
    elif found.report is None:
        print_line("the selected mirrors have no records that the archive has")
    elif call.quiet:
        print_differences(found.report, err)
    else:
        print_comparison(found.report)
    for each in found.uncompared:
        print_line_to_err(
            f"{each.where}  offsets {each.first} to {each.end} (exclusive) are not on both sides: not compared"
        )
    raise typer.Exit(found.exit_code)


app.command(name="egress-tree")(egress_tree)
app.command(name="ingress-tree")(ingress_tree)


def _settings(call: Call[ReplicateOptions]) -> Config:
    return call.config.model_copy(update={"archive": call.archive, "replicate": call.options})


def _order(call: Call[ReplicateOptions], order: str, done: str) -> None:
    from maxbrod.replicate.link import Order  # noqa: PLC0415 - as above
    from maxbrod.replicate.promote import give_order  # noqa: PLC0415

    topics = give_order(_settings(call), Order(order))
    if call.as_json:
        print_json({"order": order, "topics": list(topics)})
    else:
        print_line(f"{done}: {', '.join(topics)}")


def _show_status(call: Call[ReplicateOptions]) -> int:
    from maxbrod.replicate.status import link_status  # noqa: PLC0415 - as above

    found = link_status(_settings(call))
    if call.as_json:
        (print_json if call.options.watch is None else print_json_line)(found.as_dict())
    else:
        print_status(found)
    return found.exit_code
