"""Ends everything in a sandbox's folder when its owner has ended, in whatever way.

`python -m maxbrod.sandbox.reaper FOLDER` waits for the end of its standard input, a pipe whose other end only the owner
holds: the kernel closes it even after `kill -9`. Then it kills every process with a pid file in the folder and removes
the folder. It knows only the folder, because an owner that was killed while it started brokers could pass nothing else.
It imports little, because it must run before the first broker.
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
    """The owner's end of the pipe, which stays open as long as the owner lives."""

    _watcher: subprocess.Popen[bytes]

    @classmethod
    def start(cls, folder: Path, *, keep: bool = False) -> Reaper:
        # -P and our own path: no file in the current folder can be imported instead.
        command = [sys.executable, "-P", "-m", __name__, str(folder), *((_KEEP,) if keep else ())]
        watcher = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # Otherwise a reader of a killed owner's output would wait for us.
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
        )
        return cls(watcher)

    def close(self) -> None:
        """Start the reaper's work, and wait for it."""
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
    """Kill every process of the folder, then remove the folder unless `keep`."""
    if not folder.is_dir():
        return
    # From here on nothing new can start: a launched process checks for this file after it wrote its pid file.
    (folder / CLOSING).touch()
    for process in processes(folder):
        process.kill()
    if keep:
        return
    wait_for(f"removal of {folder}", lambda: _emptied(folder), timeout_s=_REMOVE_TIMEOUT_S)
    (folder / CLOSING).unlink()
    folder.rmdir()


def _emptied(folder: Path) -> bool:
    """Remove all but CLOSING; False if a process that started too late has written a pid file meanwhile.

    Many files take long to remove, so what counts is what is left afterwards.
    """
    for path in _rest(folder):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    return not _rest(folder)


def _rest(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != CLOSING]


def main() -> None:
    # Signals of the terminal and the session manager are for the owner, whose end we wait for.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder, *options = sys.argv[1:]
    sys.stdin.buffer.read()
    reap(Path(folder), keep=_KEEP in options)


if __name__ == "__main__":
    main()
