"""What every verb shares in speaking: `--json` for machines, colour and tables for people, quiet in a pipe."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich import box
from rich.console import Console, RenderHook
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import ConsoleOptions, ConsoleRenderable

    from maxbrod.errors import MaxbrodError

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES: Final = {"day": "%Y-%m-%d", "minute": "%Y-%m-%d %H:%M", "second": "%Y-%m-%d %H:%M:%SZ"}

_FOLDED_WIDTH_MIN: Final = 12

# What a terminal acts upon instead of showing it. Line feeds stay.
_CONTROLS: Final = dict.fromkeys((*range(10), *range(11, 32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")


class _Shown:
    """Anything that rich renders, without what would steer the terminal: groups are called what their clients like."""

    def __init__(self, what: ConsoleRenderable) -> None:
        self._what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for each in console.render(self._what, options):
            yield each if each.control else Segment(each.text.translate(_CONTROLS), each.style)


class _Plainly(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Shown(each) for each in renderables]


def console(**options: Any) -> Console:  # noqa: ANN401 - rich's own
    """Text is text: brackets and colons in a name are neither markup nor emoji."""
    made = Console(markup=False, emoji=False, **options)
    made.push_render_hook(_Plainly())
    return made


out = console()
err = console(stderr=True)


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
    """A table that fits 80 columns, as terminals at 3 a.m. are small.

    A heading with `>` before it is for numbers; with `*`, for names that are folded where they would be cut off.
    """
    made = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        folded = heading.startswith("*")
        made.add_column(
            heading.lstrip(">*"),
            justify="right" if heading.startswith(">") else "left",
            no_wrap=not folded,
            min_width=_FOLDED_WIDTH_MIN if folded else None,
            overflow="fold" if folded else "ellipsis",
        )
    return made


def stored_bytes(stored: int, raw: int) -> str:
    """What an archive takes, and of how much log. Other layouts do not know the latter: both are the same there."""
    return f"{human_bytes(stored)} stored" + ("" if raw == stored else f" of {human_bytes(raw)} of log")


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def human_count(count: int) -> str:
    """To the last one, while that is short enough for a table."""
    return f"{count:,}" if count < 10**10 else f"{count / 1e9:,.1f} G"


def human_time(timestamp_ms: int | None, *, to: Literal["day", "minute", "second"] = "second") -> str:
    """UTC. A record may carry any 64 bits as its time, also what no calendar has."""
    if timestamp_ms is None:
        return ""
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).strftime(_TIMES[to])
    except OverflowError:
        return "before 0001" if timestamp_ms < 0 else "after 9999"


def print_line(text: str) -> None:
    """One line as it is: names may hold what rich takes for markup."""
    out.print(text, markup=False, highlight=False, soft_wrap=True)
