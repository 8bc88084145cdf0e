"""The log of a command: on standard error what it waits for, on request each step, and the same in a file.

Every line of a file and every JSON line carries the id of the run, one for each call of the command, so that lines of
several commands in one file or one collector can be told apart. Standard error of a person at a terminal has only the
messages. No line contains a secret: messages are those of errors and notices, which have none.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO
from weakref import WeakSet

import typer
from rich.text import Text

from maxbrod.cli.output import err, safe_json
from maxbrod.errors import EXIT_DONE, MaxbrodError, UsageError
from maxbrod.private_files import private_opener

if TYPE_CHECKING:
    from maxbrod.config import LogConfig

_ROOT: Final = "maxbrod"
_LOG: Final = logging.getLogger(__name__)
_FIELDS: Final = "fields"
"""The attribute of a log record that holds further fields of its line."""
_on_screen: WeakSet[MaxbrodError] = WeakSet()
_STYLES: Final = {logging.DEBUG: "dim", logging.INFO: "dim", logging.ERROR: "bold red"}


@contextmanager
def showing_log(*, quiet: bool) -> Iterator[None]:
    """Print log messages to standard error, above a progress bar. Nested blocks print each message once."""
    logger, handler = logging.getLogger(_ROOT), _Lines()
    if not quiet and not any(isinstance(handler, _Lines | _JsonLines) for handler in logger.handlers):
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def logging_to(config: LogConfig, *, verb: str, quiet: bool) -> Iterator[None]:
    """Log the block, which is one call of a verb, as configured: that it begins, its steps, and how it ends."""
    if not (config.verbose or config.file is not None or config.format == "json"):
        yield
        return
    logger = logging.getLogger(_ROOT)
    handlers = _handlers(config, verb, quiet=quiet)
    replaced = (
        [handler for handler in logger.handlers if isinstance(handler, _Lines)] if config.format == "json" else []
    )
    level = logger.level
    logger.setLevel(logging.DEBUG if config.verbose else logging.INFO)
    for lines in replaced:
        logger.removeHandler(lines)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        with _framed(verb):
            yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
        for lines in replaced:
            logger.addHandler(lines)
        logger.setLevel(level)


def log_step(phase: str) -> None:
    """Log that a step begins."""
    _LOG.info("%s", phase, extra={_FIELDS: {"event": "step"}})


def is_in_json_log(error: MaxbrodError) -> bool:
    """True if standard error has the error as a JSON line, so that it needs no text."""
    return error in _on_screen


@contextmanager
def _framed(verb: str) -> Iterator[None]:
    started = time.monotonic()
    _LOG.info("%s begins", verb, extra={_FIELDS: {"event": "begin"}})
    code, failure = EXIT_DONE, None
    try:
        yield
    except typer.Exit as ending:
        code = int(ending.exit_code)
        raise
    except MaxbrodError as error:
        code, failure = error.exit_code, error
        raise
    except BaseException as error:
        code = 1
        _LOG.error("%s: %s", type(error).__name__, error, extra={_FIELDS: {"event": "error"}})
        raise
    finally:
        if failure is not None:
            if any(isinstance(handler, _JsonLines) for handler in logging.getLogger(_ROOT).handlers):
                _on_screen.add(failure)
            _LOG.error("%s", failure, extra={_FIELDS: {"event": "error", **failure.as_dict()}})
        fields = {"event": "end", "exit_code": code, "seconds": round(time.monotonic() - started, 3)}
        _LOG.info("%s ends with exit code %d", verb, code, extra={_FIELDS: fields})


def _handlers(config: LogConfig, verb: str, *, quiet: bool) -> list[logging.Handler]:
    run = uuid.uuid4().hex[:12]
    handlers: list[logging.Handler] = []
    if config.file is not None:
        try:
            handlers.append(_File(config.file, encoding="utf-8"))
        except OSError as error:
            raise UsageError(
                f"the log file cannot be written: {error.strerror}", object_name=str(config.file), hint="see --log-file"
            ) from error
        handlers[0].setFormatter(_Json(run, verb) if config.format == "json" else _TextLines(run, verb))
    if config.format == "json" and not quiet:
        on_screen: logging.Handler = _JsonLines()
        on_screen.setFormatter(_Json(run, verb))
        on_screen.setLevel(logging.DEBUG if config.verbose else logging.WARNING)
        handlers.append(on_screen)
    elif not quiet:
        for handler in logging.getLogger(_ROOT).handlers:
            if isinstance(handler, _Lines):
                handler.setLevel(logging.DEBUG if config.verbose else logging.WARNING)
    return handlers


class _File(WatchedFileHandler):
    """A file that others cannot read: it names topics, objects and brokers. Also after logrotate has moved it.

    One that cannot be written, because the disk is full, is told of once, and changes nothing else.
    """

    told = False

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=private_opener)

    def handleError(self, _: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if not self.told:
            self.told = True
            text = f"the log file cannot be written: {sys.exception()} ({self.baseFilename})"
            err.print(Text(text, style="yellow"), soft_wrap=True)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class _TextLines(logging.Formatter):
    def __init__(self, run: str, verb: str) -> None:
        super().__init__(f"%(asctime)s.%(msecs)03dZ %(levelname)s {run} {verb} %(message)s", "%Y-%m-%dT%H:%M:%S")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        return time.strftime(datefmt or "", time.gmtime(record.created))

    def format(self, record: logging.LogRecord) -> str:
        # A name with a line feed in it must not pass for a line of another run.
        return super().format(record).replace("\n", "\\n")


class _Json(logging.Formatter):
    def __init__(self, run: str, verb: str) -> None:
        super().__init__()
        self._run, self._verb = run, verb

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "run": self._run,
            "verb": self._verb,
            "logger": record.name,
            **getattr(record, _FIELDS, {}),
            "message": record.getMessage(),
        }
        return safe_json(json.dumps(document, ensure_ascii=False, default=str))


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
        if record.levelno >= logging.ERROR and record.name == __name__:
            # The command prints its error itself, with the hint.
            return
        # Text, not markup: a message may quote names with brackets in them.
        err.print(Text(record.getMessage(), style=_STYLES.get(record.levelno, "yellow")), soft_wrap=True)


class _JsonLines(logging.Handler):
    """Lines for a collector, which reads standard error of a container."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(Text(self.format(record)), soft_wrap=True)
