"""`maxbrod backup`: from a live cluster into an archive, once or continuously."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import typer

from maxbrod.backup.options import BackupOptions
from maxbrod.cli.commands import Call, command
from maxbrod.cli.metrics import report_figures
from maxbrod.cli.output import err, print_json, print_line
from maxbrod.errors import UsageError
from maxbrod.options import PLACE, ClusterOptions, JsonOption, QuietOption, SparkOptions

if TYPE_CHECKING:
    from maxbrod.backup.follow import Interval
    from maxbrod.backup.variants import AnyBackup
    from maxbrod.config import Config


@command("backup", BackupOptions, before=(ClusterOptions, *PLACE), after=(SparkOptions, QuietOption, JsonOption))
def backup(call: Call[BackupOptions]) -> None:
    """Back up topics of a cluster into an archive.

    The first run archives everything that the cluster has. Each later run archives what has been written since. A run
    that was killed loses nothing: run it again.

    For example:

      maxbrod backup --bootstrap broker1:9092 --archive /backups/kafka

      maxbrod backup --bootstrap broker1:9092 -a s3://backups/kafka --topic 'a-*'

      maxbrod backup -c maxbrod.yaml --command-config client.properties

      maxbrod backup --bootstrap broker1:9092 -a /backups/old --layout kbak

      maxbrod backup --from-logdir /disks/broker1 --from-logdir /disks/broker2 -a /backups/kafka

      maxbrod backup -c maxbrod.yaml --follow --every 60s --metrics-port 9464
    """
    options, quiet, as_json = call.options, call.quiet, call.as_json
    request = call.config.model_copy(update={"archive": call.archive})
    if options.from_logdir:
        if "bootstrap" in call.given:
            raise UsageError("--from-logdir is for a lost cluster, --bootstrap for a running one")
        _back_up_logdirs(request, quiet=quiet, as_json=as_json)
    elif options.uncommitted_tail:
        raise UsageError("--uncommitted-tail needs --from-logdir")
    elif options.follow:
        _follow(request, quiet=quiet, as_json=as_json)
    else:
        _run_once(request, quiet=quiet, as_json=as_json)


def _run_once(request: Config, *, quiet: bool, as_json: bool) -> None:
    from maxbrod.backup.summary import print_notices, print_summary  # noqa: PLC0415
    from maxbrod.backup.variants import open_backup  # noqa: PLC0415 - Kafka, Arrow and Delta: not for `--help`
    from maxbrod.cli.log import showing_log  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415

    stop = threading.Event()
    with (
        showing_log(quiet=quiet),
        stopping_by_signals(stop),
        progress_bar(shown=not quiet) as on_progress,
        open_backup(request, on_progress=on_progress, stop=stop) as work,
    ):
        _print_losses(work, quiet=quiet or as_json)
        report = work.run()
    point = report.recovery_point_ms
    report_figures(
        recovery_point_timestamp_seconds=0 if point is None else point / 1000,
        last_records=report.records,
        last_read_bytes=report.raw_bytes,
        last_stored_bytes=report.bytes,
    )
    if as_json:
        print_json(report.as_dict())
    elif quiet:
        # A schedule that backs nothing up is not to go on without a word.
        print_notices(report, err, grave_only=not report.nothing_selected)
    else:
        print_summary(report)
    raise typer.Exit(report.exit_code)


def _print_losses(work: AnyBackup, *, quiet: bool) -> None:
    """Printed once, before anything is written."""
    from maxbrod.backup.foreign import ForeignBackup  # noqa: PLC0415 - as above

    if isinstance(work, ForeignBackup) and not quiet:
        for loss in work.target.losses:
            print_line(f"{'lost' if loss.real else 'not kept'} in this layout: {loss.what}")


def _follow(request: Config, *, quiet: bool, as_json: bool) -> None:
    from maxbrod.backup.follow import follow  # noqa: PLC0415 - Kafka, Arrow and Delta: not for `--help`
    from maxbrod.backup.metrics import BackupMetrics, problem_of  # noqa: PLC0415
    from maxbrod.backup.summary import IntervalPrinter  # noqa: PLC0415
    from maxbrod.cli.log import showing_log  # noqa: PLC0415
    from maxbrod.cli.metrics import exporting  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415

    stop = threading.Event()
    metrics, show = BackupMetrics(), IntervalPrinter(quiet=quiet, as_json=as_json)
    with ExitStack() as undo:
        undo.enter_context(showing_log(quiet=quiet))
        undo.enter_context(stopping_by_signals(stop))
        ended = undo.enter_context(exporting(metrics.registry, request.backup, every_s=request.backup.every))

        def report(interval: Interval) -> None:
            metrics.observe(interval)
            ended(problem_of(interval))
            show(interval)

        on_progress = undo.enter_context(progress_bar(shown=not quiet))
        last = follow(request, stop=stop, on_interval=report, on_progress=on_progress)
    raise typer.Exit(last.exit_code)


def _back_up_logdirs(request: Config, *, quiet: bool, as_json: bool) -> None:
    """Back up all directories into one archive. Only records, topics and groups that are on the disks are known."""
    from maxbrod.storage.composed import joined_url  # noqa: PLC0415 - as the others

    if request.layout not in {None, "kafka"}:
        raise UsageError("log directories are backed up in maxbrod's own layout", hint="convert the archive afterwards")
    options = request.backup
    if options.follow:
        raise UsageError("--from-logdir is for a lost cluster: --follow does not apply")
    if options.exclude or options.start != "earliest":
        raise UsageError("--from-logdir does not support --exclude and --start", hint="select the topics with --topic")
    if options.min_topics is not None:
        raise UsageError("--from-logdir reads what is on the disks: --min-topics does not apply")
    if options.rate_bytes_per_s is not None:
        raise UsageError("--from-logdir reads no broker: --rate does not apply", hint="omit --rate")
    for directory in options.from_logdir:
        if not directory.is_dir():
            raise UsageError("there is no such directory", object_name=str(directory))
    single = len(options.from_logdir) == 1
    source = str(options.from_logdir[0]) if single else joined_url(options.from_logdir)
    _convert(request, source, quiet=quiet, as_json=as_json)


def _convert(request: Config, source: str, *, quiet: bool, as_json: bool) -> None:
    from maxbrod.archive.foreign_target import TargetRequest  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415
    from maxbrod.convert.cli import print_report  # noqa: PLC0415
    from maxbrod.convert.run import Convert, logdir_request  # noqa: PLC0415 - Arrow and Delta: not for `--help`

    plan = logdir_request(
        source,
        str(request.archive),
        request.storage,
        TargetRequest(layout="kafka", codec=request.backup.compression, segment_bytes=request.backup.segment_bytes),
        topics=request.backup.topics,
        uncommitted_tail=request.backup.uncommitted_tail,
    )
    stop = threading.Event()
    with (
        stopping_by_signals(stop),
        progress_bar(shown=not (quiet or as_json)) as on_progress,
        Convert(plan, request.spark, on_progress=on_progress, stop=stop) as work,
    ):
        report = work.run()
    if as_json:
        print_json(report.as_dict())
    else:
        print_report(report, quiet=quiet, done="backed up from log directories")
    raise typer.Exit(report.exit_code)
