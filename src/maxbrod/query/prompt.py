"""The prompt of `maxbrod query`: statements from a terminal or from standard input, answered in one Spark session.

Ctrl-C cancels the statement that runs and keeps the prompt, or discards the one that is being typed. Ctrl-D leaves.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Final

from maxbrod.cli.output import print_error, print_line
from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.private_files import cache_dir, opened
from maxbrod.work.jobs import cancelled_by

if TYPE_CHECKING:
    from maxbrod.query.output import Output
    from maxbrod.query.run import Query


_PROMPT: Final = "maxbrod> "
_MORE: Final = "    ...> "
_HISTORY: Final = "query-history"
_HISTORY_MAX: Final = 1000
_DELIMITERS: Final = " \t\n,;()=<>+*/'\""
"""Not dashes, dots and backticks, which names of topics and their quotes contain."""
_LEAVE: Final = frozenset({"exit", "quit", "\\q"})
_HELP: Final = "end a statement with a semicolon; Ctrl-C cancels it, Ctrl-D or 'exit' leaves, the tab key completes"

_TOKENS: Final = re.compile(
    r"""
      '(?:[^'\\]|\\.)*'          # text, in which a backslash takes the next character
    | "(?:[^"\\]|\\.)*"
    | `(?:[^`]|``)*`             # a name
    | --[^\n]*                   # a comment to the end of the line
    | /\*.*?\*/                  # a comment between marks
    | (?P<open>['"`]|/\*).*      # one of these that does not end
    | (?P<end>;)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_WORD: Final = re.compile(r"[\w`.$-]+", re.ASCII)
_KEYWORDS: Final = """
SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT JOIN LEFT ON AS AND OR NOT IN LIKE BETWEEN IS NULL DISTINCT COUNT SUM MIN
MAX AVG WITH UNION ALL CASE WHEN THEN ELSE END CAST DESC ASC
"""


def answer_all(query: Query, output: Output, text: Iterator[str]) -> None:
    """Answer the statements of a text, line by line. The first error is raised, and ends it."""
    rest = ""
    for line in text:
        statements, rest = split(rest + line)
        for statement in statements:
            output.print(output.answer(query, statement), sql=statement)
    if has_words(rest):
        output.print(output.answer(query, rest.strip()), sql=rest.strip())


def open_prompt(query: Query, output: Output) -> None:
    """Answer statements from the terminal until the user leaves."""
    print_line(_HELP)
    with _line_editing(query.tables()):
        for statement in _typed():
            _answer(query, output, statement)


def _answer(query: Query, output: Output, statement: str) -> None:
    if query.is_stuck():
        print_line("cancelled statements do not stop: starting Spark again")
        query.restart()
    began = time.monotonic()
    stop = threading.Event()
    try:
        with _cancelling(stop), cancelled_by(query.spark, stop):
            answer = output.answer(query, statement)
        output.print(answer, sql=statement)
        print_line(f"{time.monotonic() - began:.2f} s")
    except MaxbrodError as error:
        if stop.is_set():
            print_line(f"cancelled after {time.monotonic() - began:.2f} s")
        elif isinstance(error, UnavailableError) and not query.is_alive():
            raise
        else:
            print_error(error, as_json=False)


def _typed() -> Iterator[str]:
    """The statements, as they are completed. A line that is only a word to leave needs no semicolon."""
    rest = ""
    while True:
        try:
            line = input(_MORE if has_words(rest) else _PROMPT)
        except EOFError:
            print_line("")
            return
        except KeyboardInterrupt:
            print_line("")
            rest = ""
            continue
        if not has_words(rest) and line.strip().rstrip(";").lower() in _LEAVE:
            return
        statements, rest = split(f"{rest}{line}\n")
        yield from statements


@contextmanager
def _cancelling(stop: threading.Event) -> Iterator[None]:
    """Within the block, the first Ctrl-C sets `stop`, and the second ends the process."""

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        # Spark has set a handler of its own, which must not see the next one.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _line_editing(tables: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """History and completion, if this Python has readline."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    editor = _Editor(tables) if importlib.util.find_spec("readline") else None
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if editor is not None:
            editor.close()


class _Editor:
    """Readline with our completion and history. Importing readline changes the terminal, so it comes late."""

    def __init__(self, tables: Mapping[str, Sequence[str]]) -> None:
        import readline  # noqa: PLC0415

        self._readline, self._tables = readline, tables
        self._history = cache_dir() / _HISTORY
        self._found: list[str] = []
        with suppress(OSError, MaxbrodError), opened(self._history, create=False):
            readline.read_history_file(self._history)
        readline.set_history_length(_HISTORY_MAX)
        readline.set_completer_delims(_DELIMITERS)
        readline.set_completer(self._complete)
        readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")

    def _complete(self, word: str, number: int) -> str | None:
        """The completion of this number; readline asks until there is none."""
        if number == 0:
            self._found = complete(word, self._readline.get_line_buffer(), self._tables)
        return self._found[number] if number < len(self._found) else None

    def close(self) -> None:
        self._readline.set_completer(None)
        # Created before it is written, so that nobody else may read what a query looks for.
        with suppress(OSError, MaxbrodError), opened(self._history, create=True):
            self._readline.write_history_file(self._history)


def split(text: str) -> tuple[list[str], str]:
    """The statements that end with a semicolon, without it, and the text after the last one."""
    found, start = [], 0
    for token in _TOKENS.finditer(text):
        if token["end"]:
            found.append(text[start : token.start()].strip())
            start = token.end()
    return [statement for statement in found if has_words(statement)], text[start:]


def has_words(text: str) -> bool:
    """True if there is anything but comments and spaces."""
    return any(not token[0].isspace() and not token[0].startswith(("--", "/*")) for token in _TOKENS.finditer(text))


def complete(word: str, line: str, tables: Mapping[str, Sequence[str]]) -> list[str]:
    """The words that begin so. `tables` has the columns of each table; those of tables in the line come first."""
    named = {word.strip("`").lower() for word in _WORD.findall(line)}
    here = [name for name in tables if name.lower() in named]
    before, _, start = word.rpartition(".")
    if before and (of := [name for name in tables if quoted(name) == before or name == before]):
        return [f"{before}.{column}" for column in tables[of[0]] if column.startswith(start)]
    columns = dict.fromkeys(column for name in (here or tables) for column in tables[name])
    names = [*columns, *map(quoted, tables)]
    wanted = word.lstrip("`").lower()
    found = [name for name in names if name.lstrip("`").lower().startswith(wanted)]
    words = (_KEYWORDS if word.isupper() else _KEYWORDS.lower()).split()
    return [*found, *(known for known in words if word and known.startswith(word))]


def quoted(name: str) -> str:
    """The name as it is written in a query."""
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"
