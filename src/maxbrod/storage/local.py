"""Objects as files of a local directory, durable when an operation returns.

A file is written under `RESERVED`, synced, then linked to its name. A link fails if the name is taken, which makes
`put` conditional, and it appears whole or not at all, whatever process dies. Nothing is retried: a failing disk does
not recover within a deadline.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.bounds import check_object
from maxbrod.errors import ForbiddenError, MaxbrodError
from maxbrod.storage.beneath import Root, refused_link
from maxbrod.storage.failures import too_short, translate_os
from maxbrod.storage.interface import ByteRange, HeldObject, ObjectInfo, Storage, Writer
from maxbrod.storage.urls import RESERVED, check_folder, check_name

if TYPE_CHECKING:
    from collections.abc import Buffer

STALE_AFTER_S: Final = 3600.0
"""Younger drafts are kept: there is a moment between the creation of a file and its lock."""
_FOLDERS: Final[set[Path]] = set()
"""Folders of drafts to remove when the process ends."""

WRITE_BYTES: Final = 128 << 10
"""The most that is written with one call. For more, ext4 looks for as much memory in one piece: 512 MiB took 1.6 s in
calls of 8 MiB, and 0.4 s in calls of 128 KiB (medians of six, Linux 6.18)."""
WRITEBACK_BYTES: Final = 8 << 20
"""Dirty bytes that are worth a system call; fewer are synced quickly at the end."""
_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE
_UNABLE: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP, errno.EPERM})
"""The kernel, the file system or a sandbox does not offer it."""


class Draft:
    """A file that is not an object yet, in a folder of drafts below a root.

    To become an object, the file is synced, linked to its name, and the folder is synced, in this order. So a name
    never exists without its bytes, and an object that was reported as written survives a power failure. The writer
    holds a lock on its draft while it lives, which distinguishes a draft that a `kill -9` left behind from one that is
    being written. Folders are opened again each time, so links that appear in between are refused.
    """

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
        while view:
            count = os.write(self._descriptor, view[:WRITE_BYTES])
            self._writeback.wrote(count)
            view = view[count:]

    def publish(self, target: str) -> None:
        """Give the file its name; FileExistsError if it is taken. When this returns, a power failure cannot undo it."""
        os.fsync(self._descriptor)
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
        os.fsync(self._descriptor)
        above, _, last = target.rpartition("/")
        with self._root.folder(self._folder) as drafts, self._root.folder(above, make=True) as parent:
            os.replace(self._name, last, src_dir_fd=drafts, dst_dir_fd=parent)
            os.fsync(parent)

    def discard(self) -> None:
        """Remove the draft. Never raises. After `publish` this removes only the draft's name, not the object's."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        with suppress(OSError, MaxbrodError), self._root.folder(self._folder) as drafts:
            os.unlink(self._name, dir_fd=drafts)
        with suppress(OSError):
            os.close(descriptor)


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


def tidy_at_exit(folder: Path) -> None:
    """Remove `folder` when the process ends, if it is empty. Other writers that need it create it again."""
    if not _FOLDERS:
        atexit.register(_tidy)
    _FOLDERS.add(folder)


def _tidy() -> None:
    for folder in _FOLDERS:
        with suppress(OSError):
            folder.rmdir()


class LocalStorage(Storage):
    distant = False

    def __init__(self, path: Path, *, url: str | None = None, shared: bool = False) -> None:
        """`shared`: other users may read and write as far as the umask allows; otherwise only this user."""
        super().__init__(url or str(path))
        self._root = Root(path, folder_mode=0o777 if shared else 0o700)
        self._file_mode = 0o666 if shared else 0o600
        self._tidied = False
        self._held: dict[str, HeldObject] = {}

    def put(self, path: str, data: Buffer) -> None:
        with self.create(path) as writer:
            writer.write(data)

    def replace(self, path: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:  # noqa: ARG002
        check_name(path)
        with self._errors("replace", path):
            draft = self._draft()
            try:
                draft.write(memoryview(data).cast("B"))
                draft.replace(path)
            finally:
                draft.discard()

    def create(self, path: str) -> Writer:
        check_name(path)
        with self._errors("create", path):
            return _LocalWriter(self.name_of(path), path, self._draft())

    def get(self, path: str, *, size: int | None = None) -> memoryview:
        with self._errors("get", path), self._open(path) as file:
            check_object(os.fstat(file.fileno()).st_size, self.name_of(path))
            data = file.readall()
        if size is not None and len(data) != size:
            raise too_short("get", self.name_of(path), there=len(data), expected=size)
        return memoryview(data)

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        with self._errors("get_ranges", path), self._open(path) as file:
            return [self._range(path, file.fileno(), part) for part in ranges]

    def head(self, path: str) -> ObjectInfo:
        check_name(path)
        with self._errors("head", path), _no_folder_is_no_object():
            return _info(path, self._root.stat_file(path))

    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        return self._listed(check_folder(folder))

    def delete(self, paths: Iterable[str]) -> Sequence[HeldObject]:
        held = []
        for name in [check_name(path) for path in paths]:
            try:
                with self._errors("delete", name), suppress(FileNotFoundError, NotADirectoryError):
                    self._root.remove_file(name)
            except ForbiddenError as error:
                held.append(HeldObject(path=name, reason=error.message, hint=error.hint))
        self._held |= {item.path: item for item in held}
        return held

    def held_back(self) -> Sequence[HeldObject]:
        return tuple(self._held.values())

    def make_folder(self, folder: str) -> None:
        """Create a folder with the mode of our own, for clients that write into it themselves."""
        with self._errors("create", folder), self._root.folder(check_folder(folder), make=True):
            pass

    def _listed(self, folder: str) -> Iterator[ObjectInfo]:
        """The objects of a folder, depth first, which is the order of their names."""
        with (
            self._errors("list", folder),
            suppress(FileNotFoundError, NotADirectoryError),
            self._root.folder(folder) as descriptor,
        ):
            for entry in _sorted_entries(descriptor):
                yield from self._entry(entry, f"{folder}/{entry.name}" if folder else entry.name)

    def _entry(self, entry: os.DirEntry[str], name: str) -> Iterator[ObjectInfo]:
        if entry.is_dir(follow_symlinks=False):
            if name != RESERVED:
                yield from self._listed(name)
        elif entry.is_file(follow_symlinks=False):
            # Deleted since the folder was read: a listing need not show it.
            with suppress(FileNotFoundError):
                yield _info(name, entry.stat(follow_symlinks=False))
        elif entry.is_symlink() and self._root.leads_out(name):
            # Ignoring it could make an archive look smaller than its owner believes.
            raise refused_link(self.name_of(name))

    def _draft(self) -> Draft:
        if not self._tidied:
            remove_stale_drafts(self._root, RESERVED)
            tidy_at_exit(self._root.path / RESERVED)
            self._tidied = True
        return Draft.open(self._root, RESERVED, self._file_mode)

    def _open(self, path: str) -> FileIO:
        check_name(path)
        with _no_folder_is_no_object():
            return FileIO(self._root.open_file(path))

    def _range(self, path: str, descriptor: int, part: ByteRange) -> memoryview:
        there = os.fstat(descriptor).st_size - part.start
        # Checked before memory is allocated: the size may come from a hostile catalog.
        if there < part.size:
            raise too_short("get_ranges", self.name_of(path), there=max(there, 0), expected=part.size)
        data = os.pread(descriptor, part.size, part.start)
        # The kernel returns at most 2 GiB at once.
        while len(data) < part.size:
            more = os.pread(descriptor, part.size - len(data), part.start + len(data))
            if not more:
                raise too_short("get_ranges", self.name_of(path), there=len(data), expected=part.size)
            data += more
        return memoryview(data)

    def _errors(self, operation: str, path: str) -> AbstractContextManager[None]:
        return _translated(operation, self.name_of(path))


class _LocalWriter(Writer):
    def __init__(self, name: str, target: str, draft: Draft) -> None:
        self._name = name
        self._target = target
        self._draft = draft

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        with _translated("write", self._name):
            self._draft.write(view)
        self.size += len(view)

    def commit(self) -> None:
        try:
            with _translated("commit", self._name):
                self._draft.publish(self._target)
        finally:
            self._draft.discard()

    def abort(self) -> None:
        self._draft.discard()


@contextmanager
def _translated(operation: str, object_name: str) -> Iterator[None]:
    try:
        yield
    except MaxbrodError as error:
        error.operation = error.operation or operation
        raise
    except OSError as error:
        raise translate_os(error, operation, object_name) from error


@contextmanager
def _no_folder_is_no_object() -> Iterator[None]:
    """A name below a file is a missing object, as in a cloud, and not an error of its own."""
    try:
        yield
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error


def _sorted_entries(descriptor: int) -> list[os.DirEntry[str]]:
    """A folder's entries in the order of object names: a subfolder sorts as its name with a slash."""
    with os.scandir(descriptor) as entries:
        return sorted(entries, key=lambda entry: os.fsencode(entry.name) + b"/" * entry.is_dir(follow_symlinks=False))


def _info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        path=path,
        size=status.st_size,
        modified_ms=status.st_mtime_ns // 1_000_000,
        etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}",
    )


class Writeback:
    """Starts to write a growing file to its disk early, so that the sync at its end has little left to do.

    `sync_file_range` only starts the writing and makes nothing durable: the sync at the end does that. Measured with
    512 MiB on a busy machine, it took 0.12 to 0.16 s of processor time; syncs in a second thread took 0.15 to 0.26 s.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._started = self._written = 0
        self._able = True

    def wrote(self, size: int) -> None:
        """Count bytes that were written to the end of the file, and start to write them to the disk if it is time.

        OSError: the disk has failed, or is full. The sync at the end would say so too, after more was written.
        """
        self._written += size
        if self._able and self._written - self._started >= WRITEBACK_BYTES:
            self._able = start_writing(self._descriptor, self._started, self._written - self._started)
            self._started = self._written


def start_writing(descriptor: int, start: int, size: int) -> bool:
    """False if the file system cannot do so."""
    function = _sync_file_range()
    if function is None:
        return False
    if function(descriptor, start, size, _WRITE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNABLE:
        return False
    raise OSError(code, os.strerror(code))


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Python has no name for this call, and only Linux has it."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
        function.restype = ctypes.c_int
    return function
