"""`maxbrod status`: one OK, WARN or FAILED line for each promise of an archive."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import typer
from rich.text import Text

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import out, print_json, print_json_line, print_line
from maxbrod.errors import EXIT_DONE, UsageError
from maxbrod.options import PLACE, JsonOption
from maxbrod.status.options import StatusOptions

if TYPE_CHECKING:
    from maxbrod.status.run import ArchiveStatus

_STYLES: Final = {"OK": "green", "WARN": "yellow", "FAILED": "bold red"}


@command("status", StatusOptions, before=PLACE, after=(JsonOption,))
def status(call: Call[StatusOptions]) -> None:
    """Show whether an archive keeps its promises: one OK, WARN or FAILED line for each.

    The last backup and the recovery point against a target; offsets that are neither archived nor explained; objects
    that are missing; the last deep check and the last drill, with the time that a whole restore would take at its
    speed; size and growth; format and clock. Nothing is OK that nobody has looked at. No cluster is asked, and no
    object is read. The exit code is 3 or 4 if a promise has failed, 0 if there are only warnings, unless --strict.

    For example:

      maxbrod status -a /backups/kafka --recovery-point 1h

      maxbrod status s3://backups/kafka s3://backups/other --json

      maxbrod status -a /backups/kafka --recovery-time 4h --watch 30s
    """
    options = call.options
    urls = [*([] if call.config.archive is None else [call.config.archive]), *options.archives]
    if not urls:
        raise UsageError("no archive is named", hint="give --archive URL, or one or more archives as words")
    if options.watch is None:
        raise typer.Exit(_look(call, urls))
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415 - only to watch

    stop = threading.Event()
    code = EXIT_DONE
    with stopping_by_signals(stop):
        while not stop.is_set():
            if out.is_terminal and not call.as_json:
                out.clear()
            code = _look(call, urls)
            stop.wait(options.watch)
    raise typer.Exit(code)


def _look(call: Call[StatusOptions], urls: list[str]) -> int:
    from maxbrod.status.run import status_of, targets_of  # noqa: PLC0415 - Arrow and Delta: not for `--help`

    options, config = call.options, call.config
    targets = targets_of(options)
    found = [status_of(url, config.storage, targets, layout=config.layout, strict=options.strict) for url in urls]
    code = max(each.exit_code for each in found)
    if call.as_json:
        document = {"archives": [each.as_dict() for each in found], "exit_code": code}
        (print_json if options.watch is None else print_json_line)(document)
    else:
        for status in found:
            _print(status)
    return code


def _print(status: ArchiveStatus) -> None:
    print_line(status.archive)
    for promise in status.promises:
        style = _STYLES[promise.state]
        line = Text.assemble("  ", (f"{promise.state:<6}", style), f"  {promise.name}: {promise.text}")
        out.print(line, soft_wrap=True)
        if promise.hint is not None:
            out.print(Text(f"          {promise.hint}", style="dim"), soft_wrap=True)
