"""`maxbrod backup`: from a live cluster into an archive, once or again and again."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import typer

from maxbrod.backup.cli_options import (
    AcceptLossOption,
    BootstrapOption,
    CodecOption,
    CommandConfigOption,
    CompressionOption,
    EveryOption,
    ExactTimestampsOption,
    ExcludeOption,
    FollowOption,
    FromLogdirOption,
    InternalOption,
    LayoutExtraOption,
    MasterOption,
    MetricsHostOption,
    MetricsPortOption,
    PatienceOption,
    QuietFlag,
    RollAgeOption,
    RollBytesOption,
    RollRecordsOption,
    SegmentBytesOption,
    SegmentRecordsOption,
    SingleWriterOption,
    StartOption,
    TopicOption,
    UncommittedTailFlag,
    layout_extras,
    with_flags,
)
from maxbrod.cli.options import (
    ArchiveOption,
    ConfigOption,
    LayoutOption,
    S3EndpointOption,
    S3PathStyleOption,
    S3RegionOption,
    find_place,
)
from maxbrod.cli.output import JsonFlag, err, print_json, print_line
from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from maxbrod.backup.choosing import AnyBackup
    from maxbrod.config import Config


def backup(
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    from_logdir: FromLogdirOption = None,
    uncommitted_tail: UncommittedTailFlag = False,
    archive: ArchiveOption = None,
    config: ConfigOption = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    s3_path_style: S3PathStyleOption = None,
    topic: TopicOption = None,
    exclude: ExcludeOption = None,
    internal: InternalOption = None,
    start: StartOption = None,
    compression: CompressionOption = None,
    segment_bytes: SegmentBytesOption = None,
    segment_records: SegmentRecordsOption = None,
    exact_timestamps: ExactTimestampsOption = None,
    layout: LayoutOption = None,
    codec: CodecOption = None,
    layout_option: LayoutExtraOption = None,
    accept_loss: AcceptLossOption = None,
    single_writer: SingleWriterOption = None,
    patience: PatienceOption = None,
    master: MasterOption = None,
    follow: FollowOption = None,
    every: EveryOption = None,
    roll_bytes: RollBytesOption = None,
    roll_records: RollRecordsOption = None,
    roll_age: RollAgeOption = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Back topics of a cluster up into an archive.

    The first run takes everything that the cluster has, every later one what
    has come since. Killed at any instant, it loses nothing: run it again.

    For example:

      maxbrod backup --bootstrap broker1:9092 --archive /backups/kafka

      maxbrod backup --bootstrap broker1:9092 -a s3://backups/kafka --topic 'a-*'

      maxbrod backup -c maxbrod.yaml --command-config client.properties

      maxbrod backup --bootstrap broker1:9092 -a /backups/old --layout kbak

      maxbrod backup --from-logdir /disks/broker1 --from-logdir /disks/broker2 -a /backups/kafka

      maxbrod backup -c maxbrod.yaml --follow --every 60s --metrics-port 9464
    """
    place = find_place(archive, config, layout=layout, endpoint=s3_endpoint, region=s3_region, path_style=s3_path_style)
    request = with_flags(
        place.config,
        bootstrap=bootstrap,
        command_config=command_config,
        master=master,
        start=start,
        topics=tuple(topic) if topic else None,
        exclude=tuple(exclude) if exclude else None,
        internal=internal,
        compression=compression,
        segment_bytes=segment_bytes,
        segment_records=segment_records,
        exact_timestamps=exact_timestamps,
        codec=codec,
        layout_options=layout_extras(layout_option),
        accept_loss=accept_loss,
        single_writer=single_writer,
        patience=patience,
        every=every,
        roll_bytes=roll_bytes,
        roll_records=roll_records,
        roll_age=roll_age,
        follow=follow,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
    ).model_copy(update={"archive": place.url, "storage": place.storage})
    if from_logdir:
        if bootstrap is not None:
            raise UsageError("--from-logdir is for clusters that are gone, --bootstrap for one that runs")
        from maxbrod.backup.cli_logdir import back_up_logdirs  # noqa: PLC0415 - as the others

        back_up_logdirs(request, from_logdir, uncommitted_tail=uncommitted_tail, quiet=quiet, as_json=as_json)
    elif uncommitted_tail:
        raise UsageError("--uncommitted-tail is for --from-logdir")
    elif request.backup.follow:
        _follow(request, quiet=quiet, as_json=as_json)
    elif metrics_port is not None:
        raise UsageError("--metrics-port is for --follow", hint="take the figures of one run from --json")
    else:
        _run_once(request, quiet=quiet, as_json=as_json)


def _run_once(request: Config, *, quiet: bool, as_json: bool) -> None:
    from maxbrod.backup.choosing import open_backup  # noqa: PLC0415 - Kafka, Arrow and Delta: not for `--help`
    from maxbrod.backup.summary import print_notices, print_summary  # noqa: PLC0415
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
        _tell_losses(work, quiet=quiet or as_json)
        report = work.run()
    if as_json:
        print_json(report.as_dict())
    elif quiet:
        print_notices(report, err, grave_only=True)
    else:
        print_summary(report)
    raise typer.Exit(report.exit_code)


def _tell_losses(work: AnyBackup, *, quiet: bool) -> None:
    """Once, before anything is written."""
    from maxbrod.backup.foreign import ForeignBackup  # noqa: PLC0415 - as above

    if isinstance(work, ForeignBackup) and not quiet:
        for loss in work.target.losses:
            print_line(f"{'lost' if loss.real else 'not kept'} in this layout: {loss.what}")


def _follow(request: Config, *, quiet: bool, as_json: bool) -> None:
    from maxbrod.backup.cli_following import IntervalPrinter  # noqa: PLC0415
    from maxbrod.backup.follow import Interval, follow  # noqa: PLC0415 - Kafka, Arrow and Delta: not for `--help`
    from maxbrod.backup.metrics import BackupMetrics, serving  # noqa: PLC0415
    from maxbrod.cli.log import showing_log  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415

    stop = threading.Event()
    metrics, show = BackupMetrics(), IntervalPrinter(quiet=quiet, as_json=as_json)

    def tell(interval: Interval) -> None:
        metrics.observe(interval)
        show(interval)

    with ExitStack() as undo:
        undo.enter_context(showing_log(quiet=quiet))
        undo.enter_context(stopping_by_signals(stop))
        if request.backup.metrics_port is not None:
            undo.enter_context(serving(metrics, request.backup.metrics_port, request.backup.metrics_host))
        on_progress = undo.enter_context(progress_bar(shown=not quiet))
        last = follow(request, stop=stop, on_interval=tell, on_progress=on_progress)
    raise typer.Exit(last.exit_code)
