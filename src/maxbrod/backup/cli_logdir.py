"""`maxbrod backup --from-logdir`: brokers are gone, disks remain. A conversion into an archive of our own layout."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import typer

from maxbrod.cli.output import print_json
from maxbrod.errors import UsageError
from maxbrod.storage.joined import joined_url

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from maxbrod.config import Config


def back_up_logdirs(
    request: Config, directories: Sequence[Path], *, uncommitted_tail: bool, quiet: bool, as_json: bool
) -> None:
    """All directories into one archive. Only the records, groups and topics that are on the disks: nothing is asked."""
    if request.layout not in {None, "kafka"}:
        raise UsageError("log directories are backed up in our own layout", hint="convert the archive afterwards")
    if request.backup.follow:
        raise UsageError("--from-logdir is for brokers that are gone: there is nothing to follow")
    if request.backup.exclude or request.backup.start != "earliest":
        raise UsageError(
            "--from-logdir goes without --exclude and --start",
            hint="name the topics that are wanted, by --topic",
        )
    for directory in directories:
        if not directory.is_dir():
            raise UsageError("there is no such directory", object_name=str(directory))
    source = str(directories[0]) if len(directories) == 1 else joined_url(directories)
    _convert(request, source, uncommitted_tail=uncommitted_tail, quiet=quiet, as_json=as_json)


def _convert(request: Config, source: str, *, uncommitted_tail: bool, quiet: bool, as_json: bool) -> None:
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
        uncommitted_tail=uncommitted_tail,
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
