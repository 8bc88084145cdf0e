"""A program that backs up, for tests that kill it or stand a proxy before it: `python -m backup.program`

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
from typing import TYPE_CHECKING, Any

from backup.engine import back_up
from maxbrod.backup import run as engine
from maxbrod.backup.plan.tasks import plan_tasks
from maxbrod.catalog import catalog as catalog_module
from maxbrod.config import Config
from maxbrod.errors import MaxbrodError
from maxbrod.storage.local import _LocalWriter
from maxbrod.storage.remote import RemoteStorage, Upload

if TYPE_CHECKING:
    from collections.abc import Callable

PACK_BYTES_MAX = 4000
"""Small enough for the tests' topics to have both segments of their own and packs."""
POINTS: tuple[tuple[Any, str], ...] = (
    (catalog_module, "create_table"),
    (_LocalWriter, "commit"),
    (RemoteStorage, "put"),
    (Upload, "commit"),
    (catalog_module, "write_commit"),
)
"""All that changes what is stored; a local `put` is a writer's commit."""


def say(out: int, **what: Any) -> None:
    os.write(out, f"{json.dumps(what)}\n".encode())


class Fate:
    """Counts the moments before and after each call, and ends the process at one of them."""

    def __init__(self, point: int, out: int) -> None:
        self._left = point
        self._out = out

    def meet(self, moment: str) -> None:
        self._left -= 1
        if self._left < 0:
            say(self._out, killed=moment)
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.meet(f"before {name}")
            result = function(*arguments, **options)
            self.meet(f"after {name}")
            return result

        return call


def run(config: Config, point: int, out: int) -> None:
    """In a process of its own; without a point (below 0), to the end."""
    setattr(engine, "plan_tasks", partial(plan_tasks, pack_bytes_max=PACK_BYTES_MAX))  # noqa: B010 - not its to export
    if point >= 0:
        fate = Fate(point, out)
        for owner, name in POINTS:
            setattr(owner, name, fate.around(name, getattr(owner, name)))
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
