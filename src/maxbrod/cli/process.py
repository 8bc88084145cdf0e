"""The process of a command: its streams, either of which may be full, closed, or read by nobody any more, and its end.

Output that is lost ends the command with an error, because a document or a table that was cut must not pass for a whole
one. Messages that are lost change nothing: a backup does not fail because nobody can be told how it is.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, ClassVar, NoReturn

from maxbrod.errors import OutputError


def guard_streams() -> None:
    """Guard the streams of this process. Call it before anything is opened."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # Closed by the caller: the next file would get this number, and be written to as if it were the stream.
            setattr(sys, name, _nothing(number))
    sys.stdout, sys.stderr = _Output(sys.stdout), _Messages(sys.stderr)


def _nothing(number: int) -> IO[str]:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    return open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)


class _Guarded:
    """A stream, of text or of bytes, whose failure is handled once: what follows goes nowhere."""

    def __init__(self, stream: IO[Any]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all of the stream's
        return getattr(self._stream, name)

    @property
    def buffer(self) -> _Guarded:
        return type(self)(self._stream.buffer)  # type: ignore[attr-defined]

    def write(self, data: Any) -> int:  # noqa: ANN401 - text or bytes
        try:
            return self._stream.write(data)
        except (OSError, ValueError) as error:
            self._lose(error)
            return len(data)

    def writelines(self, lines: Iterable[Any]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._lose(error)

    def _lose(self, error: OSError | ValueError) -> None:
        # What is still in the buffer would fail again when the interpreter ends.
        nothing = os.open(os.devnull, os.O_WRONLY)
        if not self._stream.closed:
            os.dup2(nothing, self._stream.fileno())
        os.close(nothing)
        self._tell(error)

    def _tell(self, error: OSError | ValueError) -> None:
        """By default nobody is told."""


class _Messages(_Guarded):
    """Standard error."""


class _Output(_Guarded):
    """Standard output."""

    lost: ClassVar[OutputError | None] = None
    """Also if whoever printed, perhaps another thread, has passed over the error."""

    def _tell(self, error: OSError | ValueError) -> None:
        _Output.lost = OutputError(
            f"the output cannot be written: {getattr(error, 'strerror', None) or error}",
            hint="make room where it goes to, or send it elsewhere; what the command did is done",
        )
        raise _Output.lost from error


def refuse_lost_output() -> None:
    """OutputError: something that was printed to standard output is lost."""
    sys.stdout.flush()
    if _Output.lost is not None:
        raise _Output.lost


@contextmanager
def raising_interrupt() -> Iterator[None]:
    """Within the block, Ctrl-C raises KeyboardInterrupt, where it would end the process: for prompts and cleanups."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


class Leaving:
    """Ends the process with `code`, without taking the interpreter apart.

    Threads of Arrow that still wait for the interpreter abort the process when it is taken apart
    (https://github.com/apache/arrow/issues/34314): a command that has done its work would end by SIGABRT.
    Create it before the command runs: what registers itself with `atexit` later is called earlier.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        """None as long as the command has not returned: an exception that nobody caught ends the process as usual."""
        atexit.register(self._leave)

    def leave(self, code: int) -> NoReturn:
        """End the process now. Threads are not waited for: one may still wait for a store that does not answer."""
        self.code = code
        atexit._run_exitfuncs()  # noqa: SLF001 - the interpreter would wait for threads before it calls them
        sys.exit(code)

    def _leave(self) -> None:
        if self.code is None:
            return
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        except (OSError, ValueError, OutputError):
            return  # what was printed last is lost: the interpreter says so, and has an exit code for it
        logging.shutdown()
        os._exit(self.code)


def means_dead_jvm(error: Exception) -> bool:
    """Return True if the JVM has died. Any call of PySpark can find that out, also one that only cleans up."""
    of_py4j = type(error).__module__.startswith("py4j") and type(error).__name__ != "Py4JJavaError"
    return of_py4j or (isinstance(error, ConnectionError) and "py4j" in sys.modules)
