"""`maxbrod replicate egress-tree` and `ingress-tree`: write a tree of kafka-replicator, and follow one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import out, print_json, print_line, table
from maxbrod.cli.signals import stopping_by_signals
from maxbrod.options import ArchiveOptions, ClusterOptions, JsonOption, QuietOption, SparkOptions, StorageOptions
from maxbrod.replicate.seed.options import EgressTreeOptions, IngressTreeOptions
from maxbrod.text import counted

if TYPE_CHECKING:
    from maxbrod.replicate.seed.report import TreePartition, TreeReport
    from maxbrod.replicate.seed.run import TreeIngress


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
    from contextlib import ExitStack  # noqa: PLC0415 - Arrow and Kafka: not for `--help`

    from maxbrod.backup.summary import IntervalPrinter  # noqa: PLC0415
    from maxbrod.cli.log import showing_log  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.replicate.seed.egress import TreeEgress, follow_into_tree  # noqa: PLC0415
    from maxbrod.replicate.seed.metrics import TreeEgressCollector, serving  # noqa: PLC0415

    options, stop, silent = call.options, threading.Event(), call.as_json or call.quiet
    with ExitStack() as stack:
        stack.enter_context(showing_log(quiet=call.quiet))
        stack.enter_context(stopping_by_signals(stop, what="waiting records are written first"))
        on_progress = stack.enter_context(progress_bar(shown=not silent))

        def serve(egress: TreeEgress) -> None:
            if options.metrics_port is not None:
                served = serving(
                    TreeEgressCollector(egress), options.metrics_port, options.metrics_host, options.metrics_names
                )
                port = stack.enter_context(served)
                if not silent:
                    print_line(f"metrics: http://{options.metrics_host}:{port}/metrics")

        show = IntervalPrinter(quiet=call.quiet, as_json=call.as_json)
        last = follow_into_tree(call.config, stop=stop, on_interval=show, on_opened=serve, on_progress=on_progress)
    raise typer.Exit(last.exit_code)


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
    from contextlib import ExitStack  # noqa: PLC0415 - Arrow and Kafka: not for `--help`

    from maxbrod.replicate.seed.metrics import TreeIngressCollector, serving  # noqa: PLC0415
    from maxbrod.replicate.seed.run import TreeIngress  # noqa: PLC0415

    stop = threading.Event()
    show = _silent if call.as_json or call.quiet else _Changes()
    with ExitStack() as stack:
        stack.enter_context(stopping_by_signals(stop, what="running batches are finished first"))
        ingress = stack.enter_context(TreeIngress(call.config, stop=stop))
        options = call.options
        if options.metrics_port is not None:
            served = serving(
                TreeIngressCollector(ingress), options.metrics_port, options.metrics_host, options.metrics_names
            )
            port = stack.enter_context(served)
            if not (call.as_json or call.quiet):
                print_line(f"metrics: http://{options.metrics_host}:{port}/metrics")
        report = ingress.run(show)
    if call.as_json:
        print_json(report.as_dict())
    else:
        _print(report, quiet=call.quiet)
    raise typer.Exit(report.exit_code)


def _silent(_: TreeIngress) -> None:
    pass


class _Changes:
    """Prints a line for each partition whose state has changed."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str, int], str] = {}

    def __call__(self, ingress: TreeIngress) -> None:
        for status in ingress.statuses():
            name, state = (status.region, status.topic, status.partition), _state(status)
            if self._states.get(name) != state:
                self._states[name] = state
                print_line(f"{status.region}/{status.topic}-{status.partition}: {state}, checkpoint {_offset(status)}")


def _print(report: TreeReport, *, quiet: bool) -> None:
    shown = table("Partitions", "*source", "destination", "state", "checkpoint", "records", "lost")
    for partition in report.partitions:
        if not quiet or partition.lost or partition.fault is not None:
            lost = ", ".join(_lost(partition, offsets) for offsets in partition.lost)
            name = f"{partition.region}/{partition.topic}-{partition.partition}"
            shown.add_row(
                name, partition.destination, _state(partition), _offset(partition), f"{partition.records:,}", lost
            )
    if shown.row_count:
        out.print(shown)
    if not quiet:
        print_line(f"{counted(report.records, 'record', 'was', 'were')} produced, {report.delivery}")


def _lost(each: TreePartition, offsets: tuple[int, int]) -> str:
    return f"{offsets[0]} to {offsets[1]}{' (deleted at the source)' if offsets in each.deleted else ''}"


def _state(each: TreePartition) -> str:
    return each.state if each.fault is None else f"faulted: {each.fault}"


def _offset(each: TreePartition) -> str:
    return "none" if each.checkpoint is None else str(each.checkpoint)
