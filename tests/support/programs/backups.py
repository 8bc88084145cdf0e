"""A program that backs up, for tests that kill it or stand a proxy before it: `python -m support.programs.backups`

A line comes in for each run: a configuration as JSON without spaces, the archive's name and n. With n of 0 or more the
run dies by SIGKILL at the n-th point where a crash could matter. Says for each, in JSON, how it ended. Forks for each
run, so it does nothing by itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from typing import Any

from maxbrod.backup import run as engine
from maxbrod.backup.plan.ranges import plan_tasks
from maxbrod.catalog import catalog as catalog_module
from maxbrod.config import Config
from maxbrod.errors import MaxbrodError
from maxbrod.storage.local import _LocalWriter
from maxbrod.storage.remote import RemoteStorage
from maxbrod.storage.uploads import Upload
from support.backups import back_up
from support.kill_sweeps import Fate

PACK_BYTES_MAX = 4000
"""Small enough for the tests' topics to have both segments of their own and packs."""
POINTS: tuple[tuple[Any, str, str], ...] = (
    (catalog_module.Catalog, "create", "create_table"),
    (_LocalWriter, "commit", "commit"),
    (RemoteStorage, "put", "put"),
    (Upload, "commit", "commit"),
    (catalog_module, "write_commit", "write_commit"),
)
"""All that changes what is stored, and what a test calls it; a local `put` is a writer's commit."""


def say(out: int, **what: Any) -> None:
    os.write(out, f"{json.dumps(what)}\n".encode())


class DeadlyFate(Fate):
    """Ends the process at its moment, by SIGKILL."""

    def __init__(self, point: int, out: int) -> None:
        super().__init__(point)
        self._out = out

    def end(self, moment: str) -> None:
        say(self._out, killed=moment)
        os.kill(os.getpid(), signal.SIGKILL)


def run(config: Config, point: int, out: int) -> None:
    """In a process of its own; without a point (below 0), to the end."""
    setattr(engine, "plan_tasks", partial(plan_tasks, pack_bytes_max=PACK_BYTES_MAX))  # noqa: B010 - not its to export
    if point >= 0:
        fate = DeadlyFate(point, out)
        for owner, name, called in POINTS:
            setattr(owner, name, fate.around(called, getattr(owner, name)))
    try:
        report = back_up(config)
    except MaxbrodError as error:
        say(out, **error.as_dict())
    else:
        say(out, exit_code=report.exit_code, report=report.as_dict())


def main() -> None:
    out = sys.stdout.fileno()
    for line in sys.stdin:
        settings, archive, point = line.split()
        child = os.fork()
        if child == 0:
            try:
                run(Config.model_validate({**json.loads(settings), "archive": archive}), int(point), out)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.write(out, b".\n")


if __name__ == "__main__":
    main()
