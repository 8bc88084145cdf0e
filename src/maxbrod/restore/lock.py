"""Prevents two processes of one machine from carrying out the same restore at the same time.

Brokers would recognize records that both send, by their sequence numbers, but not the markers in holes, which have
none. The kernel releases a lock when its process ends, so a restore that was killed blocks nobody. Processes on other
machines do not see the lock: the object of the plan, which is created once, keeps them from starting the same restore.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from maxbrod.cache import cache_dir
from maxbrod.errors import RefusedError
from maxbrod.private_files import make_private, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def alone(restore_id: str) -> Iterator[None]:
    """RefusedError: another process is carrying out this restore. Without a cache folder there is no lock."""
    path = _path(restore_id)
    if path is None:
        yield
        return
    with opened(path, create=True) as file:
        if not _is_free(file):
            raise RefusedError(
                "another process on this machine is carrying out the same restore",
                operation="restore",
                object_name=restore_id,
                hint="wait until it has ended, or stop it; then run the same command again",
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _is_free(file: int) -> bool:
    """Take the lock. A file that the last holder has just removed is not the lock any more: others create a new one."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(file).st_nlink > 0


def _path(restore_id: str) -> Path | None:
    try:
        folder = cache_dir() / "restores"
        make_private(folder)
    except OSError:
        return None
    return folder / f"{restore_id}.lock"
