"""Uploads a large object to a cloud in parts.

An object that fits into one part is one conditional put. A larger one is a multipart upload, which is invisible until
it is complete. obstore cannot complete it conditionally, so the name is checked before it starts. Holds at most
`PARTS_IN_FLIGHT + 1` parts in memory.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from maxbrod.errors import MaxbrodError, ObjectNotFoundError, UnavailableError, UsageError
from maxbrod.storage.interface import Writer

if TYPE_CHECKING:
    from collections.abc import Buffer, Callable

    from obstore import WritableFile

T = TypeVar("T")

PART_BYTES: Final = 8 * 1024 * 1024
PARTS_IN_FLIGHT: Final = 4
_PARTS_MAX: Final = 10_000  # S3's


class _Aborted(Exception):  # noqa: N818 - never raised
    """The error that tells obstore to abort an upload."""


class _Once(Protocol):
    def __call__(self, action: Callable[[], T]) -> T: ...


class Upload(Writer):
    def __init__(
        self,
        name: str,
        *,
        start: Callable[..., WritableFile],
        put_whole: Callable[[Buffer], None],
        refuse_taken: Callable[[], None],
        landed: Callable[[], bool],
        once: _Once,
    ) -> None:
        self._name = name
        self._start = start
        self._put_whole = put_whole
        self._refuse_taken = refuse_taken
        self._landed = landed
        self._once = once
        self._first = bytearray()
        self._file: WritableFile | None = None

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self.size += len(view)
        if self._file is None and len(self._first) + len(view) <= PART_BYTES:
            self._first += view
            return
        if self.size > PART_BYTES * _PARTS_MAX:
            raise UsageError(
                f"an object of more than {PART_BYTES * _PARTS_MAX} bytes cannot be written", object_name=self._name
            )
        file = self._opened()
        for start in range(0, len(view), PART_BYTES):
            # A copy: obstore keeps the buffer until its part is sent, and the caller may reuse it before.
            part = bytes(view[start : start + PART_BYTES])
            self._once(partial(file.write, part))

    def commit(self) -> None:
        if self._file is None:
            self._put_whole(self._first)
            return
        try:
            self._once(self._file.close)
        except MaxbrodError as error:
            self._resolve(error)

    def abort(self) -> None:
        self._first = bytearray()
        if self._file is not None:
            # If the block ends in an error, obstore aborts the upload, and the store deletes the parts.
            leave = partial(self._file.__exit__, _Aborted, _Aborted(), None)
            with suppress(MaxbrodError):
                self._once(leave)

    def _opened(self) -> WritableFile:
        if self._file is None:
            self._refuse_taken()
            file = self._once(lambda: self._start(buffer_size=PART_BYTES, max_concurrency=PARTS_IN_FLIGHT))
            self._file = file
            self._once(lambda: file.write(self._first))
            self._first = bytearray()
        return self._file

    def _resolve(self, error: MaxbrodError) -> None:
        """Completing the upload failed, or its answer was lost: the object's write id shows which."""
        if self._landed():
            return
        if isinstance(error, ObjectNotFoundError):
            # The store no longer knows the upload: it has completed it, or lost it.
            raise UnavailableError(
                "it is unknown whether the upload was completed",
                operation=error.operation,
                object_name=error.object_name,
                hint="write the object again under another name",
            )
        raise error
