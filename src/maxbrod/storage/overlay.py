"""A storage with a few additional objects in memory and some folders moved elsewhere.

So another tool's archive can be used as one of ours, and our own objects in it stay hidden from that tool.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError
from maxbrod.storage.interface import ByteRange, ObjectInfo, Storage, Writer

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterable, Iterator, Mapping, Sequence

OWN_FOLDER: Final = ".maxbrod"
"""The folder of our own objects in another tool's archive."""


class OverlaidStorage(Storage):
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
        self.distant = base.distant

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
            return (replace(each, path=each.path.removeprefix(f"{OWN_FOLDER}/")) for each in listed)
        return (each for each in self._base.list(folder) if not each.path.startswith(f"{OWN_FOLDER}/"))

    def delete(self, paths: Iterable[str]) -> None:
        self._base.delete([self._target(path) for path in paths])

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
