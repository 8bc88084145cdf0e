"""What every verb shares in speaking: `--json` for machines, colour and tables for people, quiet in a pipe."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from maxbrod.errors import MaxbrodError

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]

out = Console()
err = Console(stderr=True)


def print_json(document: object) -> None:
    """One document on standard output, nothing else: the contract of `--json`."""
    json.dump(document, sys.stdout, indent=2, sort_keys=False, default=str)
    sys.stdout.write("\n")


def print_error(error: MaxbrodError, *, as_json: bool) -> None:
    if as_json:
        print_json(error.as_dict())
        return
    # Text, not markup: a message may quote a regex or a header with brackets in it.
    err.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
    if error.hint:
        err.print(Text.assemble(("hint:  ", "bold yellow"), error.hint), soft_wrap=True)


def table(title: str, *headings: str) -> Table:
    """A table that fits 80 columns, as terminals at 3 a.m. are small. A heading with `>` before it is for numbers."""
    made = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        made.add_column(heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left", no_wrap=True)
    return made


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
