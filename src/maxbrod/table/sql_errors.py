"""Translates Spark's exceptions into ours: one line for a person, no Java stack, and the exit code of the cause.

A mistake in the SQL is a UsageError. An error that the table raised in a task comes back as that error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from maxbrod import errors
from maxbrod.errors import MaxbrodError, UnavailableError, UsageError

LINES_BEFORE: Final = 1
"""The number of lines that `maxbrod.table.scans.checked` adds above the user's query."""

_OURS: Final = re.compile(r"maxbrod\.errors\.(\w+): ([^\n]*)")
_SPARKS: Final = re.compile(r"\[([A-Z][A-Z0-9_.]*)\] (.*?) SQLSTATE: (\w{5})", re.DOTALL)
_PLACE: Final = re.compile(r"\(?\bline (\d+),? pos(?:ition)? (\d+)\)?")
# Classes of SQL states that the query causes: syntax, unknown names, values, unsupported features.
_OF_THE_QUERY: Final = ("42", "22", "21", "0A", "54", "07", "P0")
_WORDS_MAX: Final = 400
_LOGGER: Final = "SQLQueryContextLogger"


@contextmanager
def plain_errors(hints: dict[str, str] | None = None) -> Iterator[None]:
    """Within the block, what Spark raises becomes a MaxbrodError. `hints` are by Spark's error class."""
    try:
        with quiet_spark():
            yield
    except Exception as error:
        if _is_gone(error):
            hint = "run it again; set MAXBROD_SPARK_LOG to a file to keep Spark's log"
            raise UnavailableError("Spark's JVM has exited: it was killed", operation="query", hint=hint) from None
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        raise translate(str(error), hints or {}) from None


@contextmanager
def quiet_spark() -> Iterator[None]:
    """Within the block, PySpark does not log each error with its Java stack to standard error."""
    logger = logging.getLogger(_LOGGER)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _is_gone(error: Exception) -> bool:
    """True if the JVM no longer answers. Exceptions of Java itself have another class."""
    of_py4j = type(error).__module__.startswith("py4j") and type(error).__name__ != "Py4JJavaError"
    # Rows come over a socket of their own, which is closed then.
    return isinstance(error, ConnectionError | EOFError) or of_py4j


def translate(text: str, hints: dict[str, str]) -> MaxbrodError:
    """The error for the text of an exception of Spark."""
    if found := _OURS.search(text):
        kind = getattr(errors, found[1], MaxbrodError)
        return kind(found[2].strip()) if issubclass(kind, MaxbrodError) else MaxbrodError(found[2])
    found_in_text = _SPARKS.findall(text)
    for name, message, state in found_in_text:
        if state.startswith(_OF_THE_QUERY):
            return UsageError(f"{_line(message)}{_place(text)} ({name})", operation="query", hint=hints.get(name))
    return MaxbrodError(f"Spark failed: {_line(found_in_text[0][1] if found_in_text else text)}", operation="query")


def _line(message: str) -> str:
    """The first line says what is wrong. More lines suggest settings of Spark that do not apply here."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "no reason is given")
    return line if len(line) <= _WORDS_MAX else f"{line[:_WORDS_MAX]}…"


def _place(text: str) -> str:
    found = _PLACE.search(text)
    if found is None:
        return ""
    return f", line {max(int(found[1]) - LINES_BEFORE, 1)}, column {int(found[2]) + 1}"
