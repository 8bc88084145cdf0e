"""Keeps two processes of one machine from carrying out the same restore at once.

Brokers would tell the records of both apart, but not the markers in holes. The kernel drops a lock with its process, so
that a restore that was killed is in nobody's way.
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
    """RefusedError: another process has this restore under way. Where there is no cache folder, nobody is asked."""
    path = _path(restore_id)
    if path is None:
        yield
        return
    with opened(path, create=True) as file:
        if not _is_free(file):
            raise RefusedError(
                "another process on this machine has the same restore under way",
                operation="restore",
                object_name=restore_id,
                hint="wait until it has ended, or end it; then run the same command again",
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _is_free(file: int) -> bool:
    """Takes the lock. A file that its last holder has just removed is nobody's lock any more."""
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
