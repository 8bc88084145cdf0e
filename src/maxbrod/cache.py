"""The user's cache folder, for files that are slow to create.

A cached folder is complete or absent, never partial, even after `kill -9`. Everything in it can be created again, so
deleting it is always safe. It must not contain secrets.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from maxbrod.private_files import make_private, opened, refuse_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def cache_dir() -> Path:
    """`$MAXBROD_CACHE`, or the platform's cache folder. Created if missing; OSError if that fails.

    RefusedError if others can write to it, because it holds classes and programs that are run: whatever they have put
    into it would run as this user.
    """
    folder = cache_path()
    make_private(folder)
    # Resolved, because a class archive is bound to the exact path of each jar.
    return folder.resolve()


def cache_path() -> Path:
    """The path of the cache folder, which may not exist."""
    if own := os.environ.get("MAXBROD_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maxbrod"


def filled(name: str, fill: Callable[[Path], None]) -> Path:
    """The cached folder `name`, which `fill` creates the first time. One process fills it, the others wait.

    RefusedError if anything in it belongs to another user, or can be written by one.
    """
    folder = cache_dir() / name
    if not folder.is_dir():
        with _locked(folder.with_name(f"{name}.lock")):
            if not folder.is_dir():
                _fill(folder, fill)
    refuse_foreign(folder)
    return folder


def _fill(folder: Path, fill: Callable[[Path], None]) -> None:
    # The lock makes this the only filler, so what exists was left by a killed one.
    for abandoned in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    # On the same file system as the result, or the rename would not be atomic.
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fill(building)
        building.chmod(0o755)
        # Installers and JVMs create files by the user's umask, which may let a group write.
        for path in building.rglob("*"):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o7755)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The kernel releases the lock with the process, so a killed filler blocks nobody.
    with opened(path, create=True) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
