"""How the process of a command ends: at once, as soon as everything that was to be done at its end is done."""

from __future__ import annotations

import atexit
import logging
import os
import sys

from maxbrod.errors import OutputError


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
