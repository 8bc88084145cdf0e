"""Drafts: files that are not objects yet, and how one becomes an object.

The order is: sync the file, link it to its name, sync the folder. So a name never exists without its bytes, and an
object that was reported as written survives a power failure. The writer of a draft holds a lock on it while it lives,
which distinguishes a draft that a `kill -9` left behind from one that is being written.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError
from maxbrod.storage.writeback import Writeback

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.storage.beneath import Root


STALE_AFTER_S: Final = 3600.0
"""Younger drafts are kept: there is a moment between the creation of a file and its lock."""


class Draft:
    """A file in a folder of drafts below a root. Folders are opened again each time, so new links are refused."""

    def __init__(self, root: Root, folder: str, name: str, descriptor: int) -> None:
        self._root = root
        self._folder = folder
        self._name = name
        self._descriptor = descriptor
        self._writeback = Writeback(descriptor)

    @classmethod
    def open(cls, root: Root, folder: str, mode: int = 0o600) -> Draft:
        name = uuid.uuid4().hex
        while True:
            # A process that ends removes the folder if it is empty, as it is until this file exists. So try again.
            with suppress(FileNotFoundError), root.folder(folder, make=True) as drafts:
                descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=drafts)
                break
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(root, folder, name, descriptor)

    def write(self, view: memoryview) -> None:
        self._writeback.wrote(len(view))
        while view:
            view = view[os.write(self._descriptor, view) :]

    def publish(self, target: str) -> None:
        """Give the file its name; FileExistsError if it is taken. When this returns, a power failure cannot undo it."""
        self._sync()
        above, _, last = target.rpartition("/")
        with self._root.folder(self._folder) as drafts, self._root.folder(above, make=True) as parent:
            os.link(self._name, last, src_dir_fd=drafts, dst_dir_fd=parent, follow_symlinks=False)
            try:
                os.fsync(parent)
            except OSError:
                # The caller is told that nothing was written, so nothing may be visible.
                os.unlink(last, dir_fd=parent)
                raise

    def replace(self, target: str) -> None:
        """Give the file its name, replacing any file of that name. The draft has no other name afterwards."""
        self._sync()
        above, _, last = target.rpartition("/")
        with self._root.folder(self._folder) as drafts, self._root.folder(above, make=True) as parent:
            os.replace(self._name, last, src_dir_fd=drafts, dst_dir_fd=parent)
            os.fsync(parent)

    def discard(self) -> None:
        """Remove the draft. Never raises. After `publish` this removes only the draft's name, not the object's."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        # Wait for the sync in the background: after close, the descriptor's number may belong to another file.
        with suppress(OSError):
            self._writeback.settle()
        with suppress(OSError, MaxbrodError), self._root.folder(self._folder) as drafts:
            os.unlink(self._name, dir_fd=drafts)
        with suppress(OSError):
            os.close(descriptor)

    def _sync(self) -> None:
        self._writeback.settle()
        os.fsync(self._descriptor)


def remove_stale_drafts(root: Root, folder: str) -> None:
    """Remove drafts of dead writers. Never raises: they only take space."""
    with suppress(OSError, MaxbrodError), root.folder(folder) as drafts, os.scandir(drafts) as entries:
        for entry in entries:
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_AFTER_S:
                _remove_if_dead(drafts, entry.name)


def _remove_if_dead(drafts: int, name: str) -> None:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=drafts)
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=drafts)
    finally:
        os.close(descriptor)


_FOLDERS: Final[set[Path]] = set()


def tidy_at_exit(folder: Path) -> None:
    """Remove `folder` when the process ends, if it is empty. Other writers that need it create it again."""
    if not _FOLDERS:
        atexit.register(_tidy)
    _FOLDERS.add(folder)


def _tidy() -> None:
    for folder in _FOLDERS:
        with suppress(OSError):
            folder.rmdir()
