"""Documents with ascending numbers, of which a store creates each once: the newest is the one that counts.

Whoever writes the next number first has written it, and everyone else finds out by failing. So one document is a state
that changes as a whole, and at the same time the lease of its writer: one that was stopped for long, and continues
after another has written, can write nothing more.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from maxbrod.errors import ObjectExistsError, ObjectNotFoundError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Buffer

    from maxbrod.storage.interface import Storage

_READS: Final = 20
"""The number of attempts to read a document that its writer deletes because it has written the next one."""


class NumberedDocuments:
    """The documents in one folder of a storage."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder

    def newest(self) -> tuple[int, memoryview] | None:
        """Return the highest number and its document; None: there is none."""
        for _ in range(_READS):
            numbers = self._numbers()
            if not numbers:
                return None
            with suppress(ObjectNotFoundError):  # its writer has written the next one meanwhile
                return numbers[-1], self._storage.get(self._path(numbers[-1]))
        raise UnavailableError(
            "the document cannot be read: it changes all the time", object_name=self._storage.name_of(self._folder)
        )

    def put(self, number: int, data: Buffer) -> bool:
        """Create the document of a number, and delete those before it. False: another one has this number or a later.

        No two documents may have the same bytes. UnavailableError: it may exist, or still appear.
        """
        path = self._path(number)
        try:
            self._storage.put(path, data)
        except ObjectExistsError:
            if not self._is(path, data):
                return False  # or it is ours, and the answer was lost
        numbers = self._numbers()
        if numbers[-1:] != [number]:  # another writer has deleted the document that this one would have met
            self._storage.delete([path])
            return False
        self._storage.delete([self._path(older) for older in numbers if older < number])
        return True

    def _is(self, path: str, data: Buffer) -> bool:
        try:
            return bytes(self._storage.get(path)) == bytes(data)
        except ObjectNotFoundError:
            return False  # its writer has written the next one

    def _numbers(self) -> list[int]:
        names = (info.path.rpartition("/")[2].partition(".")[0] for info in self._storage.list(self._folder))
        return sorted(int(name) for name in names if name.isdigit())

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:012d}.json"
