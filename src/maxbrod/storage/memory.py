"""Where `memory://` lives: folders in the machine's memory file system, which every process of one user shares.

Spark's workers and delta-rs are other processes or other clients than the one that opened the archive, so a memory of
one process would be invisible to them. What is kept here is gone with the machine, or when its folder is removed.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError

if TYPE_CHECKING:
    from maxbrod.storage.urls import Location

_MEMORY_FILE_SYSTEM: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own in it, checked to be ours


def directory_of(location: Location) -> Path:
    """The folder of a location that is one. That of all memories, private to the user, is there when this returns."""
    if location.scheme == "memory":
        return _private_folder() / location.bucket / location.prefix
    return Path(location.prefix)


def _private_folder() -> Path:
    parent = _MEMORY_FILE_SYSTEM if _MEMORY_FILE_SYSTEM.is_dir() else Path(tempfile.gettempdir())
    folder = parent / f"maxbrod-memory-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # Anyone can make a folder or a link of this name, and would then read and change what is kept in it.
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RefusedError(
            "the folder for memory:// is not this user's alone",
            operation="open",
            object_name=str(folder),
            hint="remove it, or give it to the user with mode 0700",
        )
    return folder
