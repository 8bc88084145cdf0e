"""A store that is full, or that does not answer any more, in this process and without waiting for deadlines."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.errors import MaxbrodError, StorageFullError, UnavailableError
from maxbrod.storage.local import LocalStorage, _LocalWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHANGES = ("put", "replace", "delete")
READS = ("get", "get_ranges", "head", "list")


class Store:
    """Every storage in this process, which fails from its n-th change on."""

    def __init__(self, point: int, error: Callable[[], MaxbrodError], *, everything: bool) -> None:
        self.met = False
        self.changes = 0
        self._left, self._error, self._everything = point, error, everything

    @contextmanager
    def failing(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched:
            for name in CHANGES:
                # A full disk lets go of what is on it.
                if self._everything or name != "delete":
                    patched.setattr(LocalStorage, name, self._change(getattr(LocalStorage, name)))
            patched.setattr(_LocalWriter, "commit", self._change(_LocalWriter.commit))
            for name in READS if self._everything else ():
                patched.setattr(LocalStorage, name, self._read(getattr(LocalStorage, name)))
            yield

    def _change(self, original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.changes += 1
            if self.changes > self._left:
                self.met = True
                raise self._error()
            return original(*arguments, **options)

        return call

    def _read(self, original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.met:
                raise self._error()
            return original(*arguments, **options)

        return call


def full() -> MaxbrodError:
    return StorageFullError("the disk is full: No space left on device", hint="make room, then try again")


def gone() -> MaxbrodError:
    return UnavailableError("the store answers 503", hint="try again")
