"""A program: puts an object, dies by SIGKILL before its n-th call to the system, for every n, and looks what is left.

Forks, so it must be alone in its process.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from maxbrod.storage import local
from maxbrod.storage.stores import open_storage

CALLS = ("open", "write", "fsync", "link", "unlink", "close", "mkdir")
DATA = os.urandom(300_000)
PIECE = 100_000


def write_and_die(root: Path, call: int) -> None:
    """Never comes back, unless there were fewer calls than that."""
    left = call

    def dying(original: Any) -> Any:
        def act(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        return act

    for name in CALLS:
        setattr(os, name, dying(getattr(os, name)))
    local.WRITEBACK_BYTES = PIECE  # type: ignore[misc] # so that every piece is on its way before the next
    local.start_writing = dying(local.start_writing)
    with open_storage(str(root)).create("dir/x") as writer:
        for start in range(0, len(DATA), PIECE):
            writer.write(DATA[start : start + PIECE])
    os._exit(0)


def main(parent: Path) -> None:
    seen: list[int] = []
    for call in range(100):
        root = parent / str(call)
        child = os.fork()
        if child == 0:
            write_and_die(root, call)
        status = os.waitpid(child, 0)[1]
        storage = open_storage(str(root))
        found = [(info.path, info.size) for info in storage.list()]
        if found:
            assert found == [("dir/x", len(DATA))]
            assert bytes(storage.get("dir/x")) == DATA
        else:
            storage.put("dir/x", b"free")
        seen.append(len(found))
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    print("".join(map(str, seen)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
