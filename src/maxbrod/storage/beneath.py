"""Files and folders below a root, opened one path component at a time and never through a symbolic link.

Anyone who can write into an archive, or supplies one, could use a link to redirect a read or a deletion to other files.
The kernel checks each component as it opens it (O_NOFOLLOW), so a link that is created between a check and the use is
refused as well. The root itself may be a link: whoever named it chose that.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from maxbrod.errors import RefusedError

_LINK_HINT: Final = (
    "maxbrod follows no links below the given folder; put the files themselves there, or mount their disk"
)
_PASS: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def refused_link(name: str) -> RefusedError:
    return RefusedError(
        "this is a symbolic link, which could lead out of the archive", object_name=name, hint=_LINK_HINT
    )


class Root:
    """A folder and everything below it. Names are `/`-separated and checked by the caller (`urls.check_name`)."""

    def __init__(self, path: Path, *, folder_mode: int = 0o700) -> None:
        self.path = path
        self._folder_mode = folder_mode

    @contextmanager
    def folder(self, name: str, *, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder, to use as `dir_fd`, to list or to sync; FileNotFoundError if there is none.

        `make` creates it and its parents, each durable in its own parent; other processes may be doing the same.
        """
        if make:
            make_folder(self.path, self._folder_mode)
        parts = name.split("/") if name else []
        # Only the last folder is opened for reading: the user may be allowed to traverse the others but not to list
        # them.
        descriptor = os.open(self.path, (_PASS if parts else _LIST) & ~os.O_NOFOLLOW)
        try:
            for depth, part in enumerate(parts, 1):
                flags = _LIST if depth == len(parts) else _PASS
                below = self._step(descriptor, part, flags, "/".join(parts[:depth]), make=make)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def open_file(self, name: str) -> int:
        """A descriptor of a regular file, open for reading; FileNotFoundError if there is none."""
        above, _, last = name.rpartition("/")
        with self.folder(above) as parent:
            return self._open_regular(parent, last, name)

    def stat_file(self, name: str) -> os.stat_result:
        above, _, last = name.rpartition("/")
        with self.folder(above) as parent:
            found = os.stat(last, dir_fd=parent, follow_symlinks=False)
        self._require_regular(found, name)
        return found

    def remove_file(self, name: str) -> None:
        """Remove a regular file, or a link but not its target; FileNotFoundError if there is none."""
        above, _, last = name.rpartition("/")
        with self.folder(above) as parent:
            found = os.stat(last, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
                os.unlink(last, dir_fd=parent)

    def leads_out(self, name: str) -> bool:
        """True if a link leads to something that exists outside this root.

        A dangling link, or one to something below the root, hides no data.
        """
        try:
            target = (self.path / name).resolve(strict=True)
        except (OSError, RuntimeError):
            return False
        return not target.is_relative_to(self.path.resolve())

    def _open_regular(self, parent: int, last: str, name: str) -> int:
        # O_NONBLOCK: opening a pipe without a writer would block forever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(last, flags, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise refused_link(str(self.path / name)) from None
            raise
        try:
            self._require_regular(os.fstat(descriptor), name)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _require_regular(self, found: os.stat_result, name: str) -> None:
        """Refuse a link. Folders, pipes and devices are not objects and count as missing."""
        if stat.S_ISLNK(found.st_mode):
            raise refused_link(str(self.path / name))
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def _step(self, parent: int, part: str, flags: int, name: str, *, make: bool) -> int:
        try:
            return os.open(part, flags, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
            self._make(parent, part)
            return self._step(parent, part, flags, name, make=False)
        except OSError as error:
            # For a link instead of a folder, Linux reports ENOTDIR and other systems ELOOP.
            if error.errno in {errno.ENOTDIR, errno.ELOOP} and _is_link(part, parent):
                raise refused_link(str(self.path / name)) from None
            raise

    def _make(self, parent: int, part: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(part, self._folder_mode, dir_fd=parent)
        # Without this a power failure could lose the folder, and with it the files that are synced inside it. `parent`
        # may be an O_PATH descriptor, which cannot be synced.
        readable = os.open(".", _LIST, dir_fd=parent)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)


def _is_link(name: str, parent: int) -> bool:
    with suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    return False


def refuse_links(folder: Path) -> None:
    """RefusedError if the folder or anything below it is a symbolic link; a missing folder has none.

    For clients that open paths themselves and follow links.
    """
    if folder.is_symlink():
        raise refused_link(str(folder))
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise refused_link(entry.path)
            if entry.is_dir(follow_symlinks=False):
                refuse_links(Path(entry.path))


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """Create a folder and its parents, each durable in its own parent; other processes may be doing the same."""
    if folder.is_dir():
        return
    make_folder(folder.parent, mode)
    with suppress(FileExistsError):
        folder.mkdir(mode)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
