"""Starts processes that outlive their starter, and finds them again by a pid file, from this process or another.

A process writes its own pid file before it executes the program, so that it never runs without one. The file also has
the start time: a pid that the system has given to another process since is never signalled.

`Reaper` ends everything in a sandbox's folder when its owner has ended, in whatever way: `python
-m maxbrod.sandbox.process FOLDER` waits for the end of its standard input, a pipe whose other end only it holds. The
kernel closes it even after `kill -9`. Then it kills every process with a pid file in the folder and removes the folder.
It knows only the folder, because an owner that was killed while it started brokers could pass nothing else. This module
imports little, because the reaper must run before the first broker.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import maxbrod
from maxbrod.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


CLOSING: Final = "closing"
"""The file in a sandbox's folder that forbids further starts."""

_LINUX: Final = sys.platform == "linux"
_STAMP: Final = "sed 's/.*) //' /proc/$$/stat | cut -d ' ' -f 20" if _LINUX else "ps -o lstart= -p $$"
# The launcher writes the pid file first and then checks for `closing`. The reaper does the reverse, so either the
# reaper sees the pid, or the process sees that it must not continue.
_LAUNCHER: Final = (
    f'printf "%s %s\\n" $$ "$({_STAMP})" >"$1.new" && mv "$1.new" "$1" && [ ! -e "$2" ] || exit 1; shift 2; exec "$@"'
)

_KILL_TIMEOUT_S: Final = 30

# A child stays a zombie until its parent has waited for it.
_children: dict[int, subprocess.Popen[bytes]] = {}

T = TypeVar("T")
_FIRST_PAUSE_S: Final = 0.005
_PAUSE_S: Final = 0.05

_KEEP: Final = "--keep"
_REMOVE_TIMEOUT_S: Final = 30


@dataclass(frozen=True, slots=True)
class Process:
    """A process with a pid file. It may not have started yet, or be dead."""

    pid_file: Path

    @property
    def pid(self) -> int | None:
        """The pid, if the process that wrote the file still exists, running or suspended."""
        try:
            pid_text, _, stamp = self.pid_file.read_text().strip().partition(" ")
            pid = int(pid_text)
        except (OSError, ValueError):
            return None
        state, started = _look(pid)
        if state in {"Z", "X"}:
            _bury(pid)
            return None
        return pid if started and started == stamp.strip() else None

    @property
    def alive(self) -> bool:
        """Running or suspended."""
        return self.pid is not None

    @property
    def suspended(self) -> bool:
        pid = self.pid
        return pid is not None and _look(pid)[0] == "T"

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._end(signal.SIGKILL, timeout_s=_KILL_TIMEOUT_S)

    def stop(self, *, timeout_s: float) -> None:
        """SIGTERM, and wait for its end. Resumes it first, because a suspended process does not handle signals."""
        self._signal(signal.SIGCONT)
        self._end(signal.SIGTERM, timeout_s=timeout_s)

    def suspend(self) -> None:
        """SIGSTOP, and wait until it is suspended: the signal is delivered asynchronously."""
        self._signal(signal.SIGSTOP)
        self._wait("suspension", lambda: self.suspended or not self.alive, _KILL_TIMEOUT_S)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self._wait("resumption", lambda: not self.suspended, _KILL_TIMEOUT_S)

    def _end(self, number: signal.Signals, *, timeout_s: float) -> None:
        self._signal(number)
        self._wait("end", lambda: not self.alive, timeout_s)

    def _wait(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        wait_for(f"{what} of process {self.pid_file.parent.name}", condition, timeout_s=timeout_s)

    def _signal(self, number: signal.Signals) -> None:
        if (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def launch(
    command: Sequence[str],
    *,
    home: Path,
    output: Path,
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start a program in its own session with `home/pid` as its pid file, and its output appended to a file.

    `home` is a folder directly in the folder of the sandbox: the reaper looks for pid files there.
    """
    process = Process(home / "pid")
    process.pid_file.unlink(missing_ok=True)
    with output.open("ab") as sink:
        child = subprocess.Popen(
            ["/bin/sh", "-c", _LAUNCHER, "launch", process.pid_file, home.parent / CLOSING, *command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal is for the owner, not for the brokers.
            close_fds=True,  # Above all the reaper's pipe: a broker that held it would hide its owner's death.
        )
    _children[child.pid] = child
    wait_for(
        f"start of {home.name}",
        lambda: process.pid_file.exists() or child.poll() is not None,
        timeout_s=_KILL_TIMEOUT_S,
    )
    return process


def _bury(pid: int) -> None:
    if (child := _children.pop(pid, None)) is not None:
        child.wait()


@atexit.register
def _leave_children() -> None:
    for child in _children.values():
        # Those that still run are meant to outlive us; Popen would warn that nobody waited for them.
        child.returncode = 0


def _look(pid: int) -> tuple[str, str]:
    """The state of a process (Z: zombie, T: suspended) and its start time, as this platform gives them."""
    if not _LINUX:
        return _look_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", ""
    # The name of the program is in parentheses, and may contain spaces and parentheses itself.
    fields = stat.rpartition(") ")[2].split()
    return fields[0], fields[19]


def _look_by_ps(pid: int) -> tuple[str, str]:
    command = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    state, _, stamp = ran.stdout.strip().partition(" ")
    return state[:1], stamp.strip()


def wait_for(what: str, condition: Callable[[], T | None], *, timeout_s: float) -> T:
    """Return the first value of `condition` that is true; UnavailableError when time is up."""
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise UnavailableError(f"{what}: not within {timeout_s:g} s", operation="wait")
        time.sleep(pause_s)
        # Most things take a few milliseconds; what takes long is not asked more often for it.
        pause_s = min(2 * pause_s, _PAUSE_S)


@dataclass(frozen=True, slots=True)
class Reaper:
    """The owner's end of the pipe, which stays open as long as the owner lives."""

    _watcher: subprocess.Popen[bytes]

    @classmethod
    def start(cls, folder: Path, *, keep: bool = False) -> Reaper:
        root = str(Path(maxbrod.__file__).parents[1])
        # -P and our own path: no file in the current folder can be imported instead.
        command = [sys.executable, "-P", "-m", __name__, str(folder), *((_KEEP,) if keep else ())]
        watcher = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # Otherwise a reader of a killed owner's output would wait for us.
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))},
        )
        return cls(watcher)

    def close(self) -> None:
        """Start the reaper's work, and wait for it."""
        assert self._watcher.stdin is not None  # noqa: S101 - asked for above
        self._watcher.stdin.close()
        self._watcher.wait()


def reap(folder: Path, *, keep: bool = False) -> None:
    """Kill every process of the folder, then remove the folder unless `keep`."""
    if not folder.is_dir():
        return
    # From here on nothing new can start: a launched process checks for this file after it wrote its pid file.
    (folder / CLOSING).touch()
    for pid_file in sorted(folder.glob("*/pid")):
        Process(pid_file).kill()
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
