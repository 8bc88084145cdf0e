"""Files and folders below a root, opened one part of the name after the other, and never through a symbolic link.

Whoever can write into an archive, or hands one over, could lead a reader or a deletion elsewhere by a link. The kernel
decides at each part (O_NOFOLLOW), so that a link put in between a look and the use is met as well. The root itself may
be a link: that is the choice of whoever named it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINK_HINT: Final = (
    "maxbrod follows no links below the folder that it is given; put the files themselves there, or mount their disk"
)
_PASS: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def refused_link(name: str) -> RefusedError:
    return RefusedError(
        "this is a symbolic link, which could lead out of the archive", object_name=name, hint=_LINK_HINT
    )


class Root:
    """One folder, and what is below it. Names are `/`-separated and checked by the caller (`names.check_name`)."""

    def __init__(self, path: Path, *, folder_mode: int = 0o700) -> None:
        self.path = path
        self._folder_mode = folder_mode

    @contextmanager
    def folder(self, name: str, *, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder, to be used as `dir_fd`, listed or synced; FileNotFoundError if there is none.

        `make`: it is made, with those above it, each durable in its parent; others may be making the same ones.
        """
        if make:
            make_folder(self.path, self._folder_mode)
        parts = name.split("/") if name else []
        # Only the last one is read: a folder on the way may be one that this user can pass but not list.
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
        """A descriptor of a regular file, for reading; FileNotFoundError if there is none."""
        above, _, last = name.rpartition("/")
        with self.folder(above) as parent:
            return self._open_regular(parent, last, name)

    def stat_file(self, name: str) -> os.stat_result:
        above, _, last = name.rpartition("/")
        with self.folder(above) as parent:
            found = os.stat(last, dir_fd=parent, follow_symlinks=False)
        self._refuse_odd(found, name)
        return found

    def remove_file(self, name: str) -> None:
        """Remove a regular file, or a link itself; FileNotFoundError if there is none."""
        above, _, last = name.rpartition("/")
        with self.folder(above) as parent:
            found = os.stat(last, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
                os.unlink(last, dir_fd=parent)

    def leads_out(self, name: str) -> bool:
        """Whether a link leads to something that is there and not below this root.

        One that leads nowhere, or to what is below the root anyway, names nothing of its own.
        """
        try:
            target = (self.path / name).resolve(strict=True)
        except (OSError, RuntimeError):
            return False
        return not target.is_relative_to(self.path.resolve())

    def _open_regular(self, parent: int, last: str, name: str) -> int:
        # A pipe that nobody writes to would block the opening for good.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(last, flags, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise refused_link(str(self.path / name)) from None
            raise
        try:
            self._refuse_odd(os.fstat(descriptor), name)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _refuse_odd(self, found: os.stat_result, name: str) -> None:
        """A folder is no object, here as in a cloud; neither is a pipe or a device."""
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
            # Linux says ENOTDIR of a link where a folder was asked for, others say ELOOP.
            if error.errno in {errno.ENOTDIR, errno.ELOOP} and _is_link(part, parent):
                raise refused_link(str(self.path / name)) from None
            raise

    def _make(self, parent: int, part: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(part, self._folder_mode, dir_fd=parent)
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
    """RefusedError if the folder, or anything below it, is a symbolic link; one that is not there has none.

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
    """Make a folder and those above it, each durable in its parent; others may be making the same ones."""
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
