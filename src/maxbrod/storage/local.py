"""Objects as files of a local directory, durable when an operation returns.

A file is written under `RESERVED`, synced, then linked to its name: a link refuses a name that is taken, and appears
whole or not at all, whatever dies. Nothing is retried: a disk that fails does not get better within a deadline.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from maxbrod.errors import MaxbrodError, ObjectNotFoundError
from maxbrod.storage.drafts import Draft, remove_stale_drafts
from maxbrod.storage.failures import too_short, translate_os
from maxbrod.storage.interface import ByteRange, ObjectInfo, Storage, Writer
from maxbrod.storage.names import RESERVED, check_folder, check_name
from maxbrod.storage.tidying import tidy_at_exit

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path


class LocalStorage(Storage):
    def __init__(self, root: Path, *, url: str | None = None) -> None:
        super().__init__(url or str(root))
        self._root = root
        self._tidied = False

    def put(self, path: str, data: Buffer) -> None:
        with self.create(path) as writer:
            writer.write(data)

    def replace(self, path: str, data: Buffer) -> None:
        target = self._root / check_name(path)
        with self._errors("replace", path):
            draft = self._draft()
            try:
                draft.write(memoryview(data).cast("B"))
                draft.supplant(target)
            finally:
                draft.discard()

    def create(self, path: str) -> Writer:
        target = self._root / check_name(path)
        with self._errors("create", path):
            return _LocalWriter(self.name_of(path), target, self._draft())

    def get(self, path: str, *, size: int | None = None) -> memoryview:
        with self._errors("get", path), self._file(path).open("rb", buffering=0) as file:
            data = file.readall()
        if size is not None and len(data) != size:
            raise too_short("get", self.name_of(path), there=len(data), expected=size)
        return memoryview(data)

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        with self._errors("get_ranges", path), self._file(path).open("rb", buffering=0) as file:
            return [self._range(path, file.fileno(), each) for each in ranges]

    def head(self, path: str) -> ObjectInfo:
        with self._errors("head", path):
            return _info(path, self._file(path).stat())

    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        return self._listed(check_folder(folder))

    def delete(self, paths: Iterable[str]) -> None:
        for name in [check_name(path) for path in paths]:
            with self._errors("delete", name), suppress(ObjectNotFoundError, FileNotFoundError):
                self._file(name).unlink()

    def _listed(self, folder: str) -> Iterator[ObjectInfo]:
        with self._errors("list", folder):
            yield from _walk(self._root / folder, f"{folder}/" if folder else "")

    def _draft(self) -> Draft:
        folder = self._root / RESERVED
        if not self._tidied:
            remove_stale_drafts(folder)
            tidy_at_exit(folder)
            self._tidied = True
        return Draft.open(folder)

    def _file(self, path: str) -> Path:
        """A folder is no object, here as in a cloud."""
        file = self._root / check_name(path)
        if not file.is_file():
            raise ObjectNotFoundError("there is no such object", object_name=self.name_of(path))
        return file

    def _range(self, path: str, descriptor: int, wanted: ByteRange) -> memoryview:
        data = os.pread(descriptor, wanted.size, wanted.start)
        # The kernel gives at most 2 GiB at once.
        while len(data) < wanted.size:
            more = os.pread(descriptor, wanted.size - len(data), wanted.start + len(data))
            if not more:
                raise too_short("get_ranges", self.name_of(path), there=len(data), expected=wanted.size)
            data += more
        return memoryview(data)

    def _errors(self, operation: str, path: str) -> AbstractContextManager[None]:
        return _translated(operation, self.name_of(path))


class _LocalWriter(Writer):
    def __init__(self, name: str, target: Path, draft: Draft) -> None:
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


def _walk(directory: Path | str, prefix: str) -> Iterator[ObjectInfo]:
    """Depth first. A folder sorts as its name with a slash, as it does in the names of the objects below it."""
    try:
        with os.scandir(directory) as entries:
            found = sorted((os.fsencode(entry.name) + b"/" * entry.is_dir(), entry) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    for _, entry in found:
        name = prefix + entry.name
        if entry.is_dir():
            if name != RESERVED:
                yield from _walk(entry.path, f"{name}/")
        elif entry.is_file():
            with suppress(FileNotFoundError):
                yield _info(name, entry.stat())


def _info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        path=path,
        size=status.st_size,
        modified_ms=status.st_mtime_ns // 1_000_000,
        etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}",
    )
