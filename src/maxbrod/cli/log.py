"""Shows log messages while a command runs, such as that it waits for a broker."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.text import Text

from maxbrod.cli.output import err

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def showing_log(*, quiet: bool) -> Iterator[None]:
    """Print log messages to standard error, above a progress bar. Nested blocks print each message once."""
    logger, handler = logging.getLogger("maxbrod"), _Lines()
    if not quiet and not any(isinstance(each, _Lines) for each in logger.handlers):
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Print warnings that no other handler prints, as Python does by default, except the stacks that py4j logs.

    When a JVM has died, each of py4j's threads logs an error to the root logger, which cannot be turned off. The call
    fails as well, and its error is reported.
    """
    handler = _Unhandled()
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


class _Unhandled(logging.StreamHandler[TextIO]):
    def filter(self, record: logging.LogRecord) -> bool:
        of_py4j = record.name.startswith("py4j") or Path(record.pathname).parent.name == "py4j"
        return not of_py4j and not _is_shown(record.name)


def _is_shown(name: str) -> bool:
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None and logger.parent is not None:
        if logger.handlers:
            return True
        logger = logger.parent
    return False


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Text, not markup: a message may quote names with brackets in them.
        err.print(Text(record.getMessage(), style="yellow"), soft_wrap=True)
