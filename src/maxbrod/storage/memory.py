"""The directories of `memory://`: folders in the machine's memory file system, shared by all processes of a user.

Spark's workers are other processes than the one that opened the archive, so the memory of one process would be
invisible to them. The data lasts until the machine restarts or the folder is removed.
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
    """The folder of a `file` or `memory` location. For `memory` the private parent folder exists when this returns."""
    if location.scheme == "memory":
        return _private_folder() / location.bucket / location.prefix
    return Path(location.prefix)


def _private_folder() -> Path:
    parent = _MEMORY_FILE_SYSTEM if _MEMORY_FILE_SYSTEM.is_dir() else Path(tempfile.gettempdir())
    folder = parent / f"maxbrod-memory-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # Another user can create a folder or a link of this name, and could then read and change the data in it.
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RefusedError(
            "the folder for memory:// is not private to this user",
            operation="open",
            object_name=str(folder),
            hint="remove it, or give it to the user with mode 0700",
        )
    return folder
