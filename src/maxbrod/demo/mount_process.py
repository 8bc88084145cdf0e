"""`maxbrod mount` as a process of its own, as a person would start it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.errors import UnavailableError

_LINE: Final = "--bootstrap-server "
_END_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class MountProcess:
    bootstrap: str
    pid: int
    began: float
    """When the command was started, by the clock that does not jump."""


@contextmanager
def mount_process(archive: Path, state: Path, *arguments: str) -> Iterator[MountProcess]:
    """Mount an archive at a free port of loopback until the block ends. `state` is the folder for commits of groups."""
    began = time.monotonic()
    listen = ("--listen", "127.0.0.1:0", "--state", str(state))
    command = [sys.executable, "-m", "maxbrod", "mount", str(archive), *listen, *arguments]
    # What it says about its end is not for whoever started it.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            lines = iter(process.stdout or ())
            line = next((line for line in lines if line.startswith(_LINE)), None)
            if line is None:
                raise UnavailableError("the mount has ended before it was ready", object_name=str(archive))
            yield MountProcess(bootstrap=line.removeprefix(_LINE).strip(), pid=process.pid, began=began)
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
