"""Several directories as one read-only storage, each a folder of it. Its URL is for our own processes.

Links in a folder would do the same, but no storage follows links.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import quote, unquote

from maxbrod.errors import ObjectNotFoundError, RefusedError
from maxbrod.storage.interface import ByteRange, ObjectInfo, Storage, Writer
from maxbrod.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterable, Iterator, Mapping, Sequence

_SCHEME: Final = "joined://"


def joined_url(directories: Iterable[Path]) -> str:
    return _SCHEME + ",".join(quote(str(directory.resolve()), safe="/") for directory in directories)


def is_joined(url: str) -> bool:
    return url.startswith(_SCHEME)


class JoinedStorage(Storage):
    """The first component of a name is the number and the name of a directory: `0-data`, `1-data`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        paths = [Path(unquote(each)) for each in url.removeprefix(_SCHEME).split(",")]
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

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._refuse("delete", path)

    def _place(self, path: str) -> tuple[Storage, str]:
        part, _, rest = path.partition("/")
        if part not in self._parts or not rest:
            raise ObjectNotFoundError("there is no such object", object_name=self.name_of(path))
        return self._parts[part], rest

    def _refuse(self, operation: str, path: str) -> NoReturn:
        raise RefusedError("log directories are read-only", operation=operation, object_name=self.name_of(path))
