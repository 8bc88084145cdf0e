"""Starts `support.programs.backups` and talks to it: backups in processes of their own."""

from __future__ import annotations

import atexit
import json
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from support.processes import environment, program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.cluster import Cluster


class Driver:
    """Runs one backup at a time. `prefix` stands before every line that asks for one."""

    def __init__(self, process: subprocess.Popen[str], prefix: str = "") -> None:
        self._process = process
        self._prefix = prefix
        self.busy = False

    def run(self, archive: object, point: int = -1) -> dict[str, Any]:
        self.start(archive, point)
        return self.wait()

    def start(self, archive: object, point: int = -1) -> None:
        assert self._process.stdin is not None
        self.busy = True
        self._process.stdin.write(f"{self._prefix}{archive} {point}\n")
        self._process.stdin.flush()

    def wait(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        said: dict[str, Any] = {}
        while (line := self._process.stdout.readline().strip()) != ".":
            assert line, "the program has died"
            said = json.loads(line)
        self.busy = False
        return said


@contextmanager
def driver(cluster: Cluster, topic: str, storage: dict[str, Any] | None = None, **request: Any) -> Iterator[Driver]:
    """`request` is the section `backup`."""
    config = {
        "kafka": {"bootstrap": cluster.bootstrap},
        "storage": storage or {},
        "backup": {"topics": [topic], **request},
    }
    process = _idle.pop() if _idle else _start()
    started = Driver(process, f"{json.dumps(config, separators=(',', ':'))} ")
    try:
        yield started
    finally:
        # In the middle of a run, its answer is not for the next test.
        if started.busy:
            _end(process)
        else:
            _idle.append(process)


_idle: list[subprocess.Popen[str]] = []
"""A program takes longer to load than a backup: it serves one test after the other."""


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        program("backups"),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


@atexit.register
def _end_all() -> None:
    for process in _idle:
        _end(process)
