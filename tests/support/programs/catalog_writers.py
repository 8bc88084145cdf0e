"""Writers of a catalog, each in a process of its own.

python -m support.programs.catalog_writers VERB URL OPTIONS ARGUMENT
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from maxbrod.catalog import catalog as catalog_module
from maxbrod.catalog.files import DataFiles
from maxbrod.errors import MaxbrodError, RefusedError
from support.catalog_places import Archive
from support.catalog_rows import run, segment

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS_PER_COMMIT = 5


def append(archive: Archive, name: str) -> None:
    """Commit whenever a line comes in, say how it went, and go on from what is then there."""
    catalog = archive.open()
    print("ready", flush=True)
    for line in sys.stdin:
        number = line.strip()
        base = max((position.end_offset for position in catalog.positions().values()), default=0)
        rows = [segment(base + each, base + each + 1, run_id=f"{name}-{number}") for each in range(ROWS_PER_COMMIT)]
        print("go", flush=True)
        sys.stdin.readline()
        try:
            catalog.commit([*rows, run(f"{name}-{number}")])
            print("committed", flush=True)
        except MaxbrodError as error:
            print("refused" if isinstance(error, RefusedError) else repr(error), flush=True)
        catalog.refresh()


def pour(archive: Archive, _: str) -> None:
    """Commit as fast as possible until killed, and say so after each."""
    catalog = archive.open()
    number = catalog.version
    while True:
        base = number * ROWS_PER_COMMIT
        rows = [segment(base + each, base + each + 1, run_id=f"run-{number}") for each in range(ROWS_PER_COMMIT)]
        catalog.commit([*rows, run(f"run-{number}")])
        print(number, flush=True)
        number += 1


def die(archive: Archive, point: str) -> None:
    """Be killed at one point of a commit that replaces and folds."""
    catalog = archive.open()
    owner, name = {
        "before the files": (DataFiles, "write"),
        "after the files": (DataFiles, "write"),
        "after the commit": (catalog_module, "write_commit"),
    }[point]
    setattr(owner, name, killing(getattr(owner, name), first=point.startswith("before")))
    catalog.commit([segment(0, 5), segment(5, 10), run("last")], replaced=[segment(0, 10)])


def killing(function: Callable[..., Any], *, first: bool) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> None:
        if not first:
            function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    return wrapper


if __name__ == "__main__":
    verb, url, options, argument = sys.argv[1:]
    {"append": append, "pour": pour, "die": die}[verb](Archive(url, json.loads(options)), argument)
