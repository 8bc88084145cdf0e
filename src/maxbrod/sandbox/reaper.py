"""Ends everything in a sandbox's folder when its owner is gone, however it went.

`python -m maxbrod.sandbox.reaper FOLDER` waits for the end of its standard input, a pipe of which only the
owner holds the other end: the kernel closes it even after `kill -9`. Then it kills whatever has a pid file
in the folder and removes the folder. It is told nothing but the folder, since an owner that was killed while
it started brokers had no time to tell more. Imports little: it has to be up before the first broker.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import maxbrod
from maxbrod.sandbox.process import CLOSING, Process
from maxbrod.sandbox.waiting import wait_for

_KEEP: Final = "--keep"
_REMOVE_TIMEOUT_S: Final = 30


@dataclass(frozen=True, slots=True)
class Reaper:
    """The owner's end of the pipe. Held open for as long as the owner lives."""

    _watcher: subprocess.Popen[bytes]

    @classmethod
    def start(cls, folder: Path, *, keep: bool = False) -> Reaper:
        # -P and our own path: no file that lies about in the current folder may be imported instead.
        command = [sys.executable, "-P", "-m", __name__, str(folder), *((_KEEP,) if keep else ())]
        watcher = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # Else whoever reads the output of a killed owner would wait for us.
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
        )
        return cls(watcher)

    def close(self) -> None:
        """Let the reaper do its work, and wait for it."""
        assert self._watcher.stdin is not None  # noqa: S101 - asked for above
        self._watcher.stdin.close()
        self._watcher.wait()


def _import_path() -> list[str]:
    root = str(Path(maxbrod.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    return [root, inherited] if inherited else [root]


def processes(folder: Path) -> list[Process]:
    return [Process(pid_file) for pid_file in sorted(folder.glob("*/pid"))]


def reap(folder: Path, *, keep: bool = False) -> None:
    """Kill every process of the folder, then remove the folder unless it is to be kept."""
    if not folder.is_dir():
        return
    # From here on nothing new can start: a launched process looks for this after it wrote its pid file.
    (folder / CLOSING).touch()
    for process in processes(folder):
        process.kill()
    if keep:
        return
    wait_for(f"removal of {folder}", lambda: _emptied(folder), timeout_s=_REMOVE_TIMEOUT_S)
    (folder / CLOSING).unlink()
    folder.rmdir()


def _emptied(folder: Path) -> bool:
    """Remove all but CLOSING. A process that starts too late may write its pid file meanwhile: then once more."""
    rest = [path for path in folder.iterdir() if path.name != CLOSING]
    for path in rest:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    return not rest


def main() -> None:
    # The terminal and the session manager mean the owner; the owner's end is what we wait for.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder, *options = sys.argv[1:]
    sys.stdin.buffer.read()
    reap(Path(folder), keep=_KEEP in options)


if __name__ == "__main__":
    main()
