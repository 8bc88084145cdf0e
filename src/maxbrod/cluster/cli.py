"""`maxbrod cluster`: prepares a Spark cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from maxbrod.cli.output import JsonFlag, print_json, print_line
from maxbrod.text import counted, human_bytes

app = typer.Typer(no_args_is_help=True, help="Prepare a Spark cluster for maxbrod.")


@app.callback()
def cluster() -> None:
    """Prepare a Spark cluster for maxbrod."""


@app.command()
def pack(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="The archive to write, .tar.gz or .tgz. By default named after version and machine."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Pack this environment into one file for Spark's workers, and print the settings that use it.

    The workers need the same minor version of Python and the same kind of machine as this one.

    For example:

      maxbrod cluster pack /tmp/maxbrod.tar.gz
    """
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415 - rich's, not for `--help`
    from maxbrod.cluster.pack import default_name, lines_of  # noqa: PLC0415
    from maxbrod.cluster.pack import pack as write_pack  # noqa: PLC0415

    with progress_bar(shown=not as_json) as on_progress:
        made = write_pack(path or Path(default_name()), on_progress=on_progress)
    if as_json:
        print_json({**asdict(made), "path": str(made.path), "settings": made.settings})
        return
    packages = counted(len(made.packages), "package")
    print_line(f"{made.path}: {packages}, {human_bytes(made.bytes)}, for Python {made.python}")
    print_line("For the configuration file:")
    # Line by line: what follows a line feed in a text is indented, so that it cannot pass for a line of its own.
    for line in lines_of(made):
        print_line(line)
