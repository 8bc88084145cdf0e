"""Shows what the parts below log while a command runs, such as that a broker is waited for."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.text import Text

from maxbrod.cli.output import err

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def showing_log(*, quiet: bool) -> Iterator[None]:
    """On standard error, above a progress bar if there is one. Once, also where one block stands inside another."""
    logger, handler = logging.getLogger("maxbrod"), _Lines()
    if not quiet and not any(isinstance(each, _Lines) for each in logger.handlers):
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Text, not markup: a message may quote names with brackets in them.
        err.print(Text(record.getMessage(), style="yellow"), soft_wrap=True)
