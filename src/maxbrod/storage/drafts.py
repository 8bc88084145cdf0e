"""Files that are not objects yet, and how one becomes an object: synced, linked, its folder synced.

The writer of a draft holds a lock on it for as long as it lives, so that what a `kill -9` left behind can be told
from what is being written.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from maxbrod.storage.writeback import Writeback

if TYPE_CHECKING:
    from pathlib import Path

STALE_AFTER_S: Final = 3600.0
"""Younger drafts are left alone: there is a moment between making a file and locking it."""


class Draft:
    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._writeback = Writeback(descriptor)

    @classmethod
    def open(cls, folder: Path) -> Draft:
        path = folder / uuid.uuid4().hex
        while True:
            make_folder(folder)
            # A process that ends removes the folder if it is empty, which it is until the file is there.
            with suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                break
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(path, descriptor)

    def write(self, view: memoryview) -> None:
        self._writeback.wrote(len(view))
        while view:
            view = view[os.write(self._descriptor, view) :]

    def publish(self, target: Path) -> None:
        """Give it its name; FileExistsError if that is taken. When this returns, a power failure cannot undo it."""
        self._writeback.settle()
        os.fsync(self._descriptor)
        make_folder(target.parent)
        os.link(self._path, target)
        try:
            sync_folder(target.parent)
        except OSError:
            target.unlink()
            raise

    def supplant(self, target: Path) -> None:
        """Give it its name, whoever has that now. The draft has no other name from then on."""
        self._writeback.settle()
        os.fsync(self._descriptor)
        make_folder(target.parent)
        self._path.replace(target)
        sync_folder(target.parent)

    def discard(self) -> None:
        """Never raises. After `publish` only the first of the file's two names goes."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        # A thread must not sync a number that belongs to another file by then.
        with suppress(OSError):
            self._writeback.settle()
        with suppress(OSError):
            self._path.unlink()
        with suppress(OSError):
            os.close(descriptor)


def remove_stale_drafts(folder: Path) -> None:
    """Remove what writers left that died. Never raises: it is only space."""
    with suppress(OSError):
        for path in folder.iterdir():
            if time.time() - path.stat().st_mtime > STALE_AFTER_S:
                _remove_if_dead(path)


def _remove_if_dead(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each durable in its parent; others may be making the same ones."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
