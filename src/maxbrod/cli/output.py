"""What every verb shares in speaking: `--json` for machines, colour and tables for people, quiet in a pipe."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
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


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
