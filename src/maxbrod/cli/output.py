"""The output that all verbs share: `--json` for programs, colour and tables for people, plain text in a pipe."""

from __future__ import annotations

import json
import os
import re
import sys
import termios
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from maxbrod.cli.process import raising_interrupt
from maxbrod.cli.supervised import supervisor
from maxbrod.errors import EXIT_DONE, MaxbrodError
from maxbrod.notices import Promise, PromiseState, verdict_of
from maxbrod.options import JsonOption, declared

JsonFlag = Annotated[bool, typer.Option("--json", help=declared(JsonOption)[0].option.help)]

_FOLDED_WIDTH_MIN: Final = 12
_STATES: Final = {PromiseState.OK: "green", PromiseState.WARN: "yellow", PromiseState.FAILED: "bold red"}

_NAME_LINES_MAX: Final = 3
_PIPE_WIDTH: Final = 10_000

# Characters that a terminal acts on, or that make a text look like another one: controls, marks that reverse the
# direction of writing, line separators, and characters without a width. Line feeds stay: rich splits lines.
_STEERING: Final = (
    *(*range(10), *range(11, 32), *range(127, 160)),
    *(0xAD, 0x61C, 0x180E, 0xFEFF),
    *(*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), *range(0xFFF9, 0xFFFC)),
    *range(0xE0000, 0xE0080),
)
_CONTROLS: Final = dict.fromkeys(_STEERING, "\N{REPLACEMENT CHARACTER}")
# Controls below the space are escaped in any JSON; those between values are not part of a text.
_ESCAPES: Final = {code: json.dumps(chr(code))[1:-1] for code in _STEERING if code > ord(" ")}


def safe_text(text: str) -> str:
    """Replace characters that control a terminal: clients choose the names of groups and headers."""
    return text.translate(_CONTROLS)


def safe_json(text: str) -> str:
    """The same document, with characters that control a terminal escaped. Other tools' JSON may contain them raw."""
    return text.translate(_ESCAPES)


class _Shown:
    """Anything that rich renders, without characters that control the terminal."""

    def __init__(self, what: ConsoleRenderable) -> None:
        self._what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._what, options):
            yield segment if segment.control else Segment(safe_text(segment.text), segment.style)


class _Plainly(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Shown(renderable) for renderable in renderables]


class _Flowing:
    """A text whose lines end between words, and go on further to the right.

    A word that is longer than a line, such as a URL, is left whole, so that it can be copied.
    """

    def __init__(self, text: Text, *, indent: int = 2) -> None:
        self._text = text
        self._indent = indent

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        for line in self._text.split("\n", allow_blank=True):
            blanks = len(line.plain) - len(line.plain.lstrip())
            body = line[blanks:]
            indent = blanks + (self._indent if len(line) > options.max_width else 0)
            width = max(options.max_width - indent, _FOLDED_WIDTH_MIN)
            breaks = _breaks(body.plain, first=width + indent - blanks, width=width)
            for number, part in enumerate(body.divide(breaks)):
                part.rstrip()
                yield Text(" " * (indent if number else blanks), no_wrap=True, overflow="ignore") + part


def _breaks(text: str, *, first: int, width: int) -> list[int]:
    """The offsets of the words with which a new line begins. `first` is the width of the first line."""
    found: list[int] = []
    used = 0
    for word in re.finditer(r"\S+\s*", text):
        if used and used + cell_len(word[0].rstrip()) > (width if found else first):
            found.append(word.start())
            used = 0
        used += cell_len(word[0])
    return found


class _Console(Console):
    """In a pipe as wide as its tables need: no name is folded or cut. On a terminal, lines end between words."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:  # noqa: ANN401 - rich's own
        if soft_wrap and self.is_terminal and len(objects) == 1 and isinstance(objects[0], str | Text):
            text = Text(objects[0]) if isinstance(objects[0], str) else objects[0]
            # JSON stays on one line.
            objects = (text,) if text.plain.startswith("{") else (_Flowing(text),)
        super().print(*objects, soft_wrap=soft_wrap, **options)

    @property
    def size(self) -> ConsoleDimensions:
        found = super().size
        known = self._width is not None or "COLUMNS" in os.environ or self.is_terminal
        return found if known else ConsoleDimensions(_PIPE_WIDTH, found.height)

    @size.setter
    def size(self, new: tuple[int, int]) -> None:
        self._width, self._height = new


def console(**options: Any) -> Console:  # noqa: ANN401 - rich's own
    """A console that prints text as it is: brackets and colons in a name are neither markup nor emoji."""
    made = _Console(markup=False, emoji=False, **options)
    made.push_render_hook(_Plainly())
    return made


out = console()
err = console(stderr=True)


class _Standard:
    """The state of standard output within one command."""

    document_printed = False
    lines = False


@contextmanager
def speaking(*, as_json: bool) -> Iterator[None]:
    """For the duration of one command. With `as_json`, text for people goes to standard error."""
    _Standard.document_printed = _Standard.lines = False
    if as_json:
        out.file = sys.stderr
    try:
        yield
    finally:
        out._file = None  # noqa: SLF001 - standard output again, as it is at that time


def print_json(document: object) -> None:
    """Print one document to standard output, and nothing else: the contract of `--json`."""
    if (by := supervisor()) is not None:
        by.on_document(document if isinstance(document, Mapping) else {"items": document})
        return
    text = json.dumps(document, indent=None if _Standard.lines else 2, sort_keys=False, default=str)
    print_document(text)


def print_json_with(document: Mapping[str, object], name: str, items: Iterable[str]) -> None:
    """Print one document whose list `name` has items that are JSON already. They are not held in memory."""
    if (by := supervisor()) is not None:
        by.on_document(document)
        return
    head = json.dumps({key: value for key, value in document.items() if key != name}, indent=2, default=str)
    _Standard.document_printed = True
    sys.stdout.write(f"{head.removesuffix('}').rstrip()},\n  {json.dumps(name)}: [")
    separator = ""
    for item in items:
        sys.stdout.write(f"{separator}\n    {item}")
        separator = ","
    sys.stdout.write("\n  ]\n}\n" if separator else "]\n}\n")
    sys.stdout.flush()


def print_json_line(document: object) -> None:
    """Print one of several documents as a line. All that follow are lines, too, including an error."""
    _Standard.lines = _Standard.lines or supervisor() is None
    print_json(document)
    _Standard.document_printed = False if supervisor() is None else _Standard.document_printed


def print_document(text: str) -> None:
    """Print JSON that is already text. Under a supervisor nobody wants it."""
    if supervisor() is not None:
        return
    _Standard.document_printed = True
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def print_error(error: MaxbrodError, *, as_json: bool) -> None:
    # A verb may raise after it has printed its document, which says how it ended: one document is enough.
    if as_json and not _Standard.document_printed:
        print_json(error.as_dict())
        return
    # Text, not markup: a message may quote a regular expression or a header with brackets.
    err.print(Text.assemble(("error: ", "bold red"), _one(str(error))), soft_wrap=True)
    if error.hint:
        err.print(Text.assemble(("hint:  ", "bold yellow"), _one(error.hint)), soft_wrap=True)


class _Name:
    """A name on at most a few lines. A longer one loses its middle, in which names differ least."""

    def __init__(self, name: str) -> None:
        # Before the layout: replacement characters have a width.
        self._name = Text(safe_text(name), overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._name)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield shortened(self._name, options.max_width * _NAME_LINES_MAX)


def shortened(text: Text, width: int) -> Text:
    """The text, or its beginning and its end if it is longer than `width`."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return text[: width - 1 - end] + Text("…", overflow="fold") + text[len(text) - end :]


class _Table(Table):
    def add_row(self, *cells: Any, **options: Any) -> None:  # noqa: ANN401 - rich's own
        names = [column.overflow == "fold" for column in self.columns]
        pairs = zip(cells, names, strict=True)
        wrapped = [_Name(cell) if name and isinstance(cell, str) else cell for cell, name in pairs]
        super().add_row(*wrapped, **options)


def table(title: str, *headings: str) -> Table:
    """A table that fits 80 columns, as terminals at 3 a.m. are small.

    A heading with `>` is for numbers; one with `*` for names, which are folded instead of cut off.
    """
    made = _Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
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


def agreed(question: str) -> bool:
    """True if the user confirmed. What was typed before the question counts as no answer, Ctrl-C and its end as no."""
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    try:
        with raising_interrupt():
            return typer.confirm(question, default=False)
    except (typer.Abort, KeyboardInterrupt, EOFError):
        print_line("")
        return False


def ending(exit_code: int) -> str:
    """How a run ended, by its exit code."""
    return verdict_of(exit_code) if exit_code == EXIT_DONE else f"{verdict_of(exit_code)}, exit {exit_code}"


def print_promises(promises: Iterable[Promise]) -> None:
    """Print a line for each: OK, WARN or FAILED, and the way out below it."""
    for promise in promises:
        line = Text.assemble("  ", (f"{promise.state:<6}", _STATES[promise.state]), f"  {promise.name}: {promise.text}")
        out.print(_Flowing(line, indent=8) if out.is_terminal else line, soft_wrap=True)
        if promise.hint is not None:
            out.print(Text(f"          {promise.hint}", style="dim"), soft_wrap=True)


def print_line(text: str) -> None:
    """Print one line as it is: names may contain what rich takes for markup."""
    out.print(_one(text), markup=False, highlight=False, soft_wrap=True)


def print_first(lines: Sequence[str], most: int, more: str = "more; --json shows all", *, indent: str = "") -> None:
    """Print at most so many lines, and how many there are besides."""
    for line in lines[:most]:
        print_line(f"{indent}{line}")
    if len(lines) > most:
        print_line(f"{indent}and {len(lines) - most:,} {more}")


def print_marked(mark: str, text: str, hint: str | None = None, *, to: Console = out, style: str = "bold red") -> None:
    """Print a text behind a coloured mark, and below it what to do."""
    to.print(Text.assemble((f"{mark}: ", style), text), soft_wrap=True)
    if hint:
        to.print(Text(f"  {hint}", style="dim"), soft_wrap=True)


def _one(text: str) -> str:
    """Indent further lines, so that no name can pass for a line of maxbrod's own."""
    return text.replace("\n", "\n  ")
