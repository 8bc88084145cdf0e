"""Storages made of others: with our own objects laid over it, several directories joined to one, one that only creates,
one that counts for a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import quote, unquote

from maxbrod.errors import ForbiddenError, ObjectExistsError, ObjectNotFoundError, RefusedError
from maxbrod.storage.interface import ByteRange, HeldObject, ObjectInfo, Storage, Writer
from maxbrod.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Buffer

    from maxbrod.board import Seat

OWN_FOLDER: Final = ".maxbrod"
"""The folder of our own objects in another tool's archive."""
SCHEDULE_FOLDER: Final = f"{OWN_FOLDER}/schedule"
"""The folder of the schedule's state, in any archive. It may be there before the archive is."""

_SCHEME: Final = "joined://"


class OverlaidStorage(Storage):
    """A storage with a few additional objects in memory and some folders moved elsewhere.

    So another tool's archive can be used as one of ours, and our own objects in it stay hidden from that tool.
    """

    def __init__(
        self, base: Storage, *, objects: Mapping[str, bytes], moved: Sequence[str], read_only: bool = False
    ) -> None:
        """`objects` are served from memory; objects in the folders `moved` are stored under OWN_FOLDER.

        `read_only`: nothing may be written, not even our own objects.
        """
        super().__init__(base.url)
        self._base = base
        self._objects = dict(objects)
        self._moved = tuple(f"{folder}/" for folder in moved)
        self._read_only = read_only
        self.distant, self.creates_only = base.distant, base.creates_only

    def put(self, path: str, data: Buffer) -> None:
        self._base.put(self._target(path), data)

    def replace(self, path: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        self._base.replace(self._target(path), data, metadata=metadata)

    def create(self, path: str) -> Writer:
        return self._base.create(self._target(path))

    def get(self, path: str, *, size: int | None = None) -> memoryview:
        if path in self._objects:
            return memoryview(self._objects[path])
        return self._base.get(self._place(path), size=size)

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        return self._base.get_ranges(self._place(path), ranges)

    def head(self, path: str) -> ObjectInfo:
        if path in self._objects:
            return ObjectInfo(path=path, size=len(self._objects[path]), modified_ms=0, etag=None)
        return replace(self._base.head(self._place(path)), path=path)

    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        if f"{folder.rstrip('/')}/".startswith(self._moved):
            listed = self._base.list(f"{OWN_FOLDER}/{folder}")
            return (replace(info, path=info.path.removeprefix(f"{OWN_FOLDER}/")) for info in listed)
        return (info for info in self._base.list(folder) if not info.path.startswith(f"{OWN_FOLDER}/"))

    def delete(self, paths: Iterable[str]) -> Sequence[HeldObject]:
        held = self._base.delete([self._target(path) for path in paths])
        return [replace(item, path=item.path.removeprefix(f"{OWN_FOLDER}/")) for item in held]

    def held_back(self) -> Sequence[HeldObject]:
        return self._base.held_back()

    def stored_name(self, path: str) -> str:
        return self._base.stored_name(self._place(path))

    def _place(self, path: str) -> str:
        return f"{OWN_FOLDER}/{path}" if path.startswith(self._moved) else path

    def _target(self, path: str) -> str:
        if self._read_only:
            raise RefusedError(
                "this place is read-only and never written: nothing can be stored there",
                object_name=self.url,
                hint="back it up into an archive first (maxbrod backup --from-logdir), and work from that",
            )
        return self._place(path)


def without_own(storage: Storage) -> Storage:
    """The storage as the other tool sees it."""
    return OverlaidStorage(storage, objects={}, moved=())


def joined_url(directories: Iterable[Path]) -> str:
    return _SCHEME + ",".join(quote(str(directory.resolve()), safe="/") for directory in directories)


def is_joined(url: str) -> bool:
    return url.startswith(_SCHEME)


class JoinedStorage(Storage):
    """Several directories, read-only, each a folder of it. Its URL is for our own processes.

    Links in a folder would do the same, but no storage follows links. The first component of a name is the number and
    the name of a directory: `0-data`, `1-data`.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        paths = [Path(unquote(path)) for path in url.removeprefix(_SCHEME).split(",")]
        self._parts: Final = {f"{number}-{path.name}": LocalStorage(path) for number, path in enumerate(paths)}

    def name_of(self, path: str) -> str:
        part, _, rest = path.partition("/")
        return self._parts[part].name_of(rest) if part in self._parts else super().name_of(path)

    def get(self, path: str, *, size: int | None = None) -> memoryview:
        storage, rest = self._place(path)
        return storage.get(rest, size=size)

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        storage, rest = self._place(path)
        return storage.get_ranges(rest, ranges)

    def head(self, path: str) -> ObjectInfo:
        storage, rest = self._place(path)
        return replace(storage.head(rest), path=path)

    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        first, _, rest = folder.partition("/")
        for part in sorted(self._parts, key=lambda name: f"{name}/".encode()):
            if first in {"", part}:
                for info in self._parts[part].list(rest):
                    yield replace(info, path=f"{part}/{info.path}")

    def put(self, path: str, data: Buffer) -> None:  # noqa: ARG002 - the interface's
        self._refuse("put", path)

    def replace(self, path: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:  # noqa: ARG002
        self._refuse("replace", path)

    def create(self, path: str) -> Writer:
        self._refuse("create", path)

    def delete(self, paths: Iterable[str]) -> Sequence[HeldObject]:
        for path in paths:
            self._refuse("delete", path)
        return ()

    def _place(self, path: str) -> tuple[Storage, str]:
        part, _, rest = path.partition("/")
        if part not in self._parts or not rest:
            raise ObjectNotFoundError("there is no such object", object_name=self.name_of(path))
        return self._parts[part], rest

    def _refuse(self, operation: str, path: str) -> NoReturn:
        raise RefusedError("log directories are read-only", operation=operation, object_name=self.name_of(path))


class CreateOnlyStorage(Storage):
    """A storage that creates objects, and neither overwrites nor deletes one, as its user may not either.

    What should be overwritten stays as it is, and what should be deleted stays behind: each is said, and neither fails
    a run. Somebody else, who may delete, looks after the archive.
    """

    def __init__(self, base: Storage) -> None:
        super().__init__(base.url)
        self._base = base
        self.distant = base.distant
        self.creates_only = True
        self._held: dict[str, HeldObject] = {}

    def name_of(self, path: str) -> str:
        return self._base.name_of(path)

    def at_hand(self) -> Storage:
        hot = CreateOnlyStorage(self._base.at_hand())
        hot._held = self._held
        return hot

    def held_back(self) -> Sequence[HeldObject]:
        return tuple(self._held.values())

    def put(self, path: str, data: Buffer) -> None:
        self._base.put(path, data)

    def replace(self, path: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        if metadata:
            raise _create_only("replace", self.name_of(path))
        try:
            self._base.put(path, data)
        except ObjectExistsError:
            raise _create_only("replace", self.name_of(path)) from None

    def create(self, path: str) -> Writer:
        return self._base.create(path)

    def get(self, path: str, *, size: int | None = None) -> memoryview:
        return self._base.get(path, size=size)

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        return self._base.get_ranges(path, ranges)

    def head(self, path: str) -> ObjectInfo:
        return self._base.head(path)

    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        return self._base.list(folder)

    def delete(self, paths: Iterable[str]) -> Sequence[HeldObject]:
        error = _create_only("delete", self.url)
        held = [HeldObject(path=path, reason=error.message, hint=error.hint) for path in paths]
        self._held |= {item.path: item for item in held}
        return held


def _create_only(operation: str, name: str) -> ForbiddenError:
    return ForbiddenError(
        "storage.create_only: nothing is overwritten or deleted",
        operation=operation,
        object_name=name,
        hint="somebody who may delete runs 'maxbrod gc --delete' and 'maxbrod compact'",
    )


class CountedStorage(Storage):
    """A storage that a task has opened: what is read through it counts as the progress of the task.

    After a stop it reads nothing any more, and still writes: what a task has read by then may be kept.
    """

    def __init__(self, base: Storage, seat: Seat) -> None:
        super().__init__(base.url)
        self._base, self._seat = base, seat
        self.distant, self.creates_only = base.distant, base.creates_only

    def name_of(self, path: str) -> str:
        return self._base.name_of(path)

    def at_hand(self) -> Storage:
        return CountedStorage(self._base.at_hand(), self._seat)

    def put(self, path: str, data: Buffer) -> None:
        self._base.put(path, data)

    def replace(self, path: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        self._base.replace(path, data, metadata=metadata)

    def create(self, path: str) -> Writer:
        return self._base.create(path)

    def get(self, path: str, *, size: int | None = None) -> memoryview:
        self._seat.check()
        data = self._base.get(path, size=size)
        self._seat.count(data.nbytes)
        return data

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        self._seat.check()
        found = self._base.get_ranges(path, ranges)
        self._seat.count(sum(data.nbytes for data in found))
        return found

    def head(self, path: str) -> ObjectInfo:
        self._seat.check()
        return self._base.head(path)

    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        self._seat.check()
        return self._base.list(folder)

    def delete(self, paths: Iterable[str]) -> Sequence[HeldObject]:
        return self._base.delete(paths)

    def held_back(self) -> Sequence[HeldObject]:
        return self._base.held_back()

    def stored_name(self, path: str) -> str:
        return self._base.stored_name(path)
