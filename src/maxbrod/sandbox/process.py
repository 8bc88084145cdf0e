"""Starts processes that outlive their starter, and finds them again by a pid file, from this process or another.

A process writes its own pid file before it executes the program, so that it never runs without one. The file also has
the start time: a pid that the system has given to another process since is never signalled.

A reaper ends everything in a sandbox's folder when its owner has ended, in whatever way: `python
-m maxbrod.sandbox.process FOLDER` waits for the end of its standard input, a pipe whose other end only it holds. The
kernel closes it even after `kill -9`. Then it kills every process with a pid file in the folder and removes the folder.
It knows only the folder, because an owner that was killed while it started brokers could pass nothing else. This module
imports little, because the reaper must run before the first broker.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

import maxbrod
from maxbrod.errors import EnvironmentMissingError, RefusedError, UnavailableError

HOST: Final = "127.0.0.1"
CLOSING: Final = "closing"
"""The file in a sandbox's folder that forbids further starts."""

_LINUX: Final = sys.platform == "linux"
_STAMP: Final = "sed 's/.*) //' /proc/$$/stat | cut -d ' ' -f 20" if _LINUX else "ps -o lstart= -p $$"
# The launcher writes the pid file first and then checks for `closing`. The reaper does the reverse, so either the
# reaper sees the pid, or the process sees that it must not continue.
_LAUNCHER: Final = (
    f'printf "%s %s\\n" $$ "$({_STAMP})" >"$1.new" && mv "$1.new" "$1" && [ ! -e "$2" ] || exit 1; shift 2; exec "$@"'
)

# Below the range that Linux (32768) and macOS (49152) use for outgoing connections. Port 0 would pick inside it: any
# client could then hold the port of a broker that is down, and a client that retries can even connect to itself, so
# that the broker never gets its port back.
_PORTS: Final = range(12_000, 32_000)
_RANDOM_TRIES: Final = 1000

_KILL_TIMEOUT_S: Final = 30
_PORT_TRIES: Final = 5

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
            if (child := _children.pop(pid, None)) is not None:
                child.wait()
            return None
        return pid if started and started == stamp.strip() else None

    @property
    def alive(self) -> bool:
        return self.pid is not None

    @property
    def suspended(self) -> bool:
        pid = self.pid
        return pid is not None and _look(pid)[0] == "T"

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._signal(signal.SIGKILL)
        self._wait("end", lambda: not self.alive, _KILL_TIMEOUT_S)

    def stop(self, *, timeout_s: float) -> None:
        """SIGTERM, and wait for its end. Resumes it first, because a suspended process does not handle signals."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._wait("end", lambda: not self.alive, timeout_s)

    def suspend(self) -> None:
        """SIGSTOP, and wait until it is suspended: the signal is delivered asynchronously."""
        self._signal(signal.SIGSTOP)
        self._wait("suspension", lambda: self.suspended or not self.alive, _KILL_TIMEOUT_S)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self._wait("resumption", lambda: not self.suspended, _KILL_TIMEOUT_S)

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


@atexit.register
def _leave_children() -> None:
    for child in _children.values():
        # Those that still run are meant to outlive us; Popen would warn that nobody waited for them.
        child.returncode = 0


def _look(pid: int) -> tuple[str, str]:
    """The state of a process (Z: zombie, T: suspended) and its start time, as this platform gives them."""
    if not _LINUX:
        command = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        state, _, stamp = ran.stdout.strip().partition(" ")
        return state[:1], stamp.strip()
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", ""
    # The name of the program is in parentheses, and may contain spaces and parentheses itself.
    fields = stat.rpartition(") ")[2].split()
    return fields[0], fields[19]


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


def free_ports(count: int) -> list[int]:
    """Return distinct ports on loopback that are free now, and likely still free when a killed broker is restarted."""
    generator = random.Random()  # noqa: S311 - no secret; its own state, so that a test's seed is not used up
    with ExitStack() as held:
        ports: list[int] = []
        for port in (generator.choice(_PORTS) for _ in range(_RANDOM_TRIES)):
            if len(ports) == count:
                return ports
            # Stays bound until all are picked, so that none is picked twice.
            candidate = held.enter_context(socket.socket())
            try:
                candidate.bind((HOST, port))
            except OSError:
                continue
            ports.append(port)
    raise EnvironmentMissingError(f"no {count} free ports on {HOST} between {_PORTS.start} and {_PORTS.stop}")


class PortTakenError(Exception):
    """Another process took a port before ours could bind it."""


def retry_ports(start: Callable[[], None], otherwise: Callable[[], str], *, operation: str) -> None:
    """Start something until it gets its ports. UnavailableError, with the words of `otherwise`: it never does."""
    for _ in range(_PORT_TRIES):
        with suppress(PortTakenError):
            return start()
    raise UnavailableError(otherwise(), operation=operation)


class Box:
    """A folder with processes that end with this one, even by SIGKILL, unless they are `detached`.

    Use it as a context manager: leaving it ends all of them and removes the folder, unless it is kept.
    """

    def __init__(self, directory: Path, *, keep: bool = False) -> None:
        self.directory = directory
        self._keep = keep
        self._reaper: subprocess.Popen[bytes] | None = None

    def claim(self, *, detached: bool = False) -> None:
        """Claim the folder, which is new or empty: it is removed in the end with all that is in it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if any(self.directory.iterdir()):
            hint = "name a folder that does not exist yet"
            raise RefusedError("the folder is not empty", object_name=str(self.directory), hint=hint)
        self.directory.chmod(0o700)
        self.directory = self.directory.resolve()
        self._reaper = None if detached else start_reaper(self.directory, keep=self._keep)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process at once, and remove the folder unless it was to be kept."""
        reap(self.directory, keep=self._keep)
        if self._reaper is not None:
            self._reaper.communicate()


def write_private(path: Path, text: str) -> None:
    """Write a file atomically that only its owner can read, from its first byte on."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def start_reaper(folder: Path, *, keep: bool = False) -> subprocess.Popen[bytes]:
    """Start a reaper. Our end of its input stays open as long as we live; `communicate` lets it work, and waits."""
    root = str(Path(maxbrod.__file__).parents[1])
    return subprocess.Popen(
        # -P and our own path: no file in the current folder can be imported instead.
        [sys.executable, "-P", "-m", __name__, str(folder), *((_KEEP,) if keep else ())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # Otherwise a reader of a killed owner's output would wait for us.
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))},
    )


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
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != CLOSING:
            path.unlink()
    return all(path.name == CLOSING for path in folder.iterdir())


def main() -> None:
    # Signals of the terminal and the session manager are for the owner, whose end we wait for.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder, *options = sys.argv[1:]
    sys.stdin.buffer.read()
    reap(Path(folder), keep=_KEEP in options)


if __name__ == "__main__":
    main()
