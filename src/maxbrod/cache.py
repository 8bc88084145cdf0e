"""Owns the user's cache folder: things that are slow to make and the same for everyone, made once.

A cached folder is complete or absent, never half made, also after `kill -9`. Everything in it can be
made again, so deleting it is always safe. Nothing secret may go in here.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from maxbrod.private_files import make_private, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def cache_dir() -> Path:
    """`$MAXBROD_CACHE`, else the platform's cache folder; made if it is missing. OSError where it cannot be.

    RefusedError: others can write to it. What is in it is run: classes, programs.
    """
    folder = cache_path()
    make_private(folder)
    # Resolved, because a class archive is bound to the very path of each jar.
    return folder.resolve()


def cache_path() -> Path:
    """Where the cache folder is or would be; for those who only look."""
    if own := os.environ.get("MAXBROD_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maxbrod"


def filled(name: str, fill: Callable[[Path], None]) -> Path:
    """The cached folder `name`, which `fill` makes the first time. One process fills, the others wait for it."""
    folder = cache_dir() / name
    if folder.is_dir():
        return folder
    with _locked(folder.with_name(f"{name}.lock")):
        if not folder.is_dir():
            _fill(folder, fill)
    return folder


def _fill(folder: Path, fill: Callable[[Path], None]) -> None:
    # Whoever holds the lock is the only filler: what lies there is of one that was killed.
    for abandoned in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    # On the same file system as the result, or the rename would not be atomic.
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fill(building)
        building.chmod(0o755)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The kernel drops the lock with the process, so that a killed filler blocks nobody.
    with opened(path, create=True) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
