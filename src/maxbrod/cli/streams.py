"""Standard output and standard error of a command, either of which may be full, closed, or read by nobody any more.

Output that is lost ends the command with an error, because a document or a table that was cut must not pass for a whole
one. Messages that are lost change nothing: a backup does not fail because nobody can be told how it is.
"""

from __future__ import annotations

import os
import sys
from typing import IO, TYPE_CHECKING, Any, ClassVar

from maxbrod.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable


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
