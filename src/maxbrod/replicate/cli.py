"""`maxbrod replicate`: a cluster mirrored to another one through an archive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.log import showing_log
from maxbrod.cli.metrics import exporting
from maxbrod.cli.output import out, print_error, print_json, print_json_line, print_line
from maxbrod.cli.progress import progress_bar
from maxbrod.cli.signals import ending_by_interrupt, stopping_by_signals
from maxbrod.cli.verbs import end, load
from maxbrod.errors import EXIT_DONE, MaxbrodError
from maxbrod.model import now_ms
from maxbrod.options import (
    PLACE,
    ArchiveOptions,
    ClusterOptions,
    ImmutableOptions,
    JsonOption,
    QuietOption,
    SparkOptions,
    StorageOptions,
)
from maxbrod.replicate.options import (
    EgressOptions,
    EgressTreeOptions,
    IngressOptions,
    IngressTreeOptions,
    LinkOptions,
    LinkStatusOptions,
    MirrorRepairOptions,
    PromoteOptions,
    ReplicateOptions,
    VerifyOptions,
)
from maxbrod.replicate.summary import (
    IngressPrinter,
    TreeChangesPrinter,
    print_line_to_err,
    print_promotion,
    print_repairs,
    print_status,
    print_tree_report,
    print_uncompared,
    print_verification,
    print_ways_back,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from maxbrod.backup.follow import Interval as EgressInterval
    from maxbrod.replicate.egress import EgressShare
    from maxbrod.replicate.ingress.run import IngressInterval
    from maxbrod.replicate.status import LinkStatus
    from maxbrod.work.progress import OnProgress

app = typer.Typer(no_args_is_help=True, help="Mirror topics to another cluster through an archive.")
_FAR: Final = (ClusterOptions, *PLACE)
_LONG: Final = (SparkOptions, QuietOption, JsonOption)


@app.command()
@command("replicate", EgressOptions, before=(*_FAR, ImmutableOptions), after=_LONG)
def egress(call: Call[ReplicateOptions]) -> None:
    """In the source region: archive topics continuously, with a heartbeat of the source's log ends.

    It is 'maxbrod backup --follow' with a heartbeat. The section 'backup' of the file applies as well. Several
    instances for one archive divide the partitions among themselves, and take over those of one that is lost.

    For example:

      maxbrod replicate egress --bootstrap source1:9092 -a s3://outbox/kafka --topic 'orders-*' --every 1s --roll-age 0
    """
    metrics = load("backup.metrics:BackupMetrics")()
    beats, problem_of = load("replicate.metrics:BeatMetrics")(metrics.registry), load("backup.metrics:problem_of")
    show = load("backup.cli:IntervalPrinter")(quiet=call.quiet, as_json=call.as_json)
    unbeaten, leaders = list[str](), list[str]()
    with _following(call, metrics.registry) as (stop, ended, on_progress):

        def shared(share: EgressShare) -> None:
            beats.share(share)
            if share.any:
                leaders.clear()
                return
            ended(None)
            leader = share.leader or "another instance"
            if leaders != [leader] and not call.silent:
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

        follow = load("replicate.egress:follow_source")
        last = follow(
            call.config, stop=stop, on_interval=report, on_beat=beaten, on_share=shared, on_progress=on_progress
        )
    raise typer.Exit(last.exit_code)


@app.command()
@command("replicate", IngressOptions, before=_FAR, after=_LONG)
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
    metrics, problem_of = load("replicate.metrics:IngressMetrics")(), load("replicate.metrics:problem_of")
    show = IngressPrinter(quiet=call.quiet, as_json=call.as_json)
    with _following(call, metrics.registry) as (stop, ended, on_progress):

        def report(interval: IngressInterval) -> None:
            metrics.observe(interval)
            ended(problem_of(interval))
            show(interval)

        follow = load("replicate.ingress.run:follow_archive")
        last = follow(call.config, stop=stop, on_interval=report, on_progress=on_progress)
    raise typer.Exit(last.exit_code)


@app.command()
@command("replicate", LinkStatusOptions, before=_FAR, after=(JsonOption,), looks=lambda _: True)
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
    may_come, wait_unless = load("replicate.ingress.run:may_come"), load("work.intervals:wait_unless")
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
@command("replicate", LinkOptions, before=_FAR, after=(JsonOption,))
def pause(call: Call[ReplicateOptions]) -> None:
    """Pause the selected topics: ingress appends nothing to them until they are resumed."""
    _order(call, "pause", "paused")


@app.command()
@command("replicate", LinkOptions, before=_FAR, after=(JsonOption,))
def resume(call: Call[ReplicateOptions]) -> None:
    """Resume paused topics where they stopped."""
    _order(call, "run", "resumed")


@app.command()
@command("replicate", PromoteOptions, before=_FAR, after=(JsonOption,))
def promote(call: Call[ReplicateOptions]) -> None:
    """At the destination: end the link, and make the selected mirrors ordinary topics that producers may write to.

    Each partition ends at a definite offset, and brokers refuse whatever an ingress may still send. Groups get the
    offsets that the archive last recorded. The report names what had not arrived, as far as the last heartbeat tells.
    The exit code is 3 if something had not arrived, or if that is unknown. May be repeated.

    For example:

      maxbrod replicate promote --bootstrap target1:9092 -a s3://inbox/kafka --groups '*'
    """
    report = load("replicate.promote:promote")(call.config)
    end(call, report, partial(print_promotion, groups=bool(call.options.groups)))


@app.command(name="fail-back")
@command("replicate", LinkOptions, before=_FAR, after=_LONG)
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
    with ending_by_interrupt(), progress_bar(shown=not call.silent) as on_progress:
        report = load("replicate.fail_back:fail_back")(call.config, on_progress=on_progress)
    end(call, report, print_ways_back)


@app.command()
@command("replicate", MirrorRepairOptions, before=_FAR, after=_LONG)
def repair(call: Call[ReplicateOptions]) -> None:
    """At the destination: let faulted mirrors go on that are what the archive has, or mirror them anew.

    The logs of faulted partitions are compared with the archive, every record. What is equal goes on: ingress continues
    at the end of the log. A log with anything else cannot be cut. With --yes its topic is deleted, and ingress mirrors
    all of it anew, at the same offsets. Without --yes nothing is deleted: the report says which topics would be, and
    which groups would lose their positions. The exit code is 5 if a partition is still faulted.

    For example:

      maxbrod replicate repair --bootstrap target1:9092 -a s3://inbox/kafka --topic orders
    """
    with (
        ending_by_interrupt(),
        showing_log(quiet=call.quiet),
        progress_bar(shown=not call.silent) as on_progress,
    ):
        report = load("replicate.repair:repair")(call.config, on_progress=on_progress)
    end(call, report, print_repairs)


@app.command()
@command("replicate", VerifyOptions, before=_FAR, after=_LONG)
def verify(call: Call[ReplicateOptions]) -> None:
    """At the destination: compare mirrors with the archive, every record, while both go on.

    What both have when it begins is compared: all of it, or the given ranges. In topics that the link appends to, its
    records are found by their headers. The exit code is 3 if anything differs, or if not both sides have a given range.

    For example:

      maxbrod replicate verify --bootstrap target1:9092 -a s3://inbox/kafka --range orders:0:1000..2000
    """
    with (
        ending_by_interrupt(),
        showing_log(quiet=call.quiet),
        progress_bar(shown=not call.silent) as on_progress,
    ):
        report = load("replicate.verify:verify")(call.config, on_progress=on_progress)
    if call.as_json:
        print_uncompared(report)
    end(call, report, print_verification)


@app.command(name="egress-tree")
@command(
    "egress_tree",
    EgressTreeOptions,
    after=(ClusterOptions, ArchiveOptions, StorageOptions, SparkOptions, QuietOption, JsonOption),
)
def egress_tree(call: Call[EgressTreeOptions]) -> None:
    """Write the records of topics into a tree of Parquet segments, as kafka-replicator does.

    Runs until SIGTERM or Ctrl-C, and then writes what is waiting. It continues after the last segment of the tree,
    whoever wrote that. Its progress is also in the consumer group of kafka-replicator, so that either tool continues
    where the other one ended.

    For example:

      maxbrod replicate egress-tree -a s3://bucket --region us-east-1 --topic orders --bootstrap broker:9092
    """
    stop = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(showing_log(quiet=call.quiet))
        stack.enter_context(stopping_by_signals(stop, what="waiting records are written first"))
        on_progress = stack.enter_context(progress_bar(shown=not call.silent))
        last = load("replicate.seed.egress:follow_into_tree")(
            call.config,
            stop=stop,
            on_interval=load("backup.cli:IntervalPrinter")(quiet=call.quiet, as_json=call.as_json),
            on_opened=partial(_serve, stack, call, "replicate.metrics:TreeEgressCollector"),
            on_progress=on_progress,
        )
    raise typer.Exit(last.exit_code)


def _serve(stack: ExitStack, call: Call[Any], collector: str, measured: object) -> None:
    """Serve the metrics of an egress or ingress until the end of the stack, if the options say so."""
    options = call.options
    if options.metrics_port is not None:
        serving = load("replicate.metrics:serving")
        port = stack.enter_context(
            serving(load(collector)(measured), options.metrics_port, options.metrics_host, options.metrics_names)
        )
        if not call.silent:
            print_line(f"metrics: http://{options.metrics_host}:{port}/metrics")


@app.command(name="ingress-tree")
@command(
    "ingress_tree", IngressTreeOptions, after=(ClusterOptions, ArchiveOptions, StorageOptions, QuietOption, JsonOption)
)
def ingress_tree(call: Call[IngressTreeOptions]) -> None:
    """Produce the records of a tree of Parquet segments, as kafka-replicator writes it, to topics of a cluster.

    Runs until SIGTERM or Ctrl-C. Segments may arrive late, twice, in any order, or never. Progress is in the checkpoint
    topic, in the format of kafka-replicator. A record is produced exactly once, unless --delivery says otherwise.

    For example:

      maxbrod replicate ingress-tree -a s3://bucket --source us-east-1/orders=orders --bootstrap broker:9092

      maxbrod replicate ingress-tree -a s3://bucket --source us-east-1/orders --queue segments --events-topic segments
    """
    stop = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(stopping_by_signals(stop, what="running batches are finished first"))
        ingress = stack.enter_context(load("replicate.seed.run:TreeIngress")(call.config, stop=stop))
        _serve(stack, call, "replicate.metrics:TreeIngressCollector", ingress)
        report = ingress.run(*([] if call.silent else [TreeChangesPrinter()]))
    end(call, report, print_tree_report)


@contextmanager
def _following(
    call: Call[ReplicateOptions], registry: CollectorRegistry
) -> Iterator[tuple[threading.Event, Callable[[str | None], None], OnProgress]]:
    """Yield what a signal sets, what to call after each interval with its problem or None, and the progress."""
    stop, options = threading.Event(), call.options
    with (
        showing_log(quiet=call.quiet),
        stopping_by_signals(stop),
        exporting(registry, options, every_s=options.every) as ended,
        progress_bar(shown=not call.silent) as on_progress,
    ):
        yield stop, ended, on_progress


def _order(call: Call[ReplicateOptions], order: str, done: str) -> None:
    topics = load("replicate.promote:give_order")(call.config, load("replicate.link:Order")(order))
    if call.as_json:
        print_json({"order": order, "topics": list(topics)})
    else:
        print_line(f"{done}: {', '.join(topics)}")


def _show_status(call: Call[ReplicateOptions]) -> int:
    found: LinkStatus = load("replicate.status:link_status")(call.config)
    if call.as_json:
        (print_json if call.options.watch is None else print_json_line)(found.as_dict())
    else:
        print_status(found)
    return found.exit_code
