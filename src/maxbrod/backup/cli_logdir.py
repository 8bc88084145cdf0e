"""`maxbrod backup --from-logdir`: the disks of a lost cluster, converted into an archive of maxbrod's own layout."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import typer

from maxbrod.cli.output import print_json
from maxbrod.errors import UsageError
from maxbrod.storage.joined import joined_url

if TYPE_CHECKING:
    from maxbrod.config import Config


def back_up_logdirs(request: Config, *, quiet: bool, as_json: bool) -> None:
    """Back up all directories into one archive. Only records, topics and groups that are on the disks are known."""
    if request.layout not in {None, "kafka"}:
        raise UsageError("log directories are backed up in maxbrod's own layout", hint="convert the archive afterwards")
    options = request.backup
    if options.follow:
        raise UsageError("--from-logdir is for a lost cluster: --follow does not apply")
    if options.exclude or options.start != "earliest":
        raise UsageError("--from-logdir does not support --exclude and --start", hint="select the topics with --topic")
    for directory in options.from_logdir:
        if not directory.is_dir():
            raise UsageError("there is no such directory", object_name=str(directory))
    single = len(options.from_logdir) == 1
    source = str(options.from_logdir[0]) if single else joined_url(options.from_logdir)
    _convert(request, source, quiet=quiet, as_json=as_json)


def _convert(request: Config, source: str, *, quiet: bool, as_json: bool) -> None:
    from maxbrod.archive.foreign_target import TargetRequest  # noqa: PLC0415
    from maxbrod.backup.logdir import logdir_request  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415
    from maxbrod.convert.cli import print_report  # noqa: PLC0415
    from maxbrod.convert.run import Convert  # noqa: PLC0415 - Arrow and Delta: not for `--help`

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
