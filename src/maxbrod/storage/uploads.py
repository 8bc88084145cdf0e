"""Large objects, written in parts. Invisible until they are complete."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from maxbrod.errors import MaxbrodError, ObjectNotFoundError, UnavailableError, UsageError
from maxbrod.storage.interface import Writer

if TYPE_CHECKING:
    from collections.abc import Buffer

    from obstore import WritableFile

    from maxbrod.storage.bucket import WriteGuard
    from maxbrod.storage.remote import RemoteStorage

T = TypeVar("T")

PART_BYTES: Final = 8 * 1024 * 1024
PARTS_IN_FLIGHT: Final = 4
_PARTS_MAX: Final = 10_000  # of S3 and Google; Azure takes 50,000 blocks


def _unknown_upload(error: ObjectNotFoundError) -> UnavailableError:
    """The store no longer knows the upload: it has completed it, or lost it."""
    return UnavailableError(
        "it is unknown whether the upload was completed",
        operation=error.operation,
        object_name=error.object_name,
        hint="write the object again under another name",
    )


class _Aborted(Exception):  # noqa: N818 - never raised
    """The error that tells obstore to abort an upload."""


class Upload(Writer):
    """A large object in parts.

    An object that fits into one part is one conditional put. A larger one is a multipart upload, which is invisible
    until it is complete. obstore cannot complete it conditionally, so the name is checked before it starts. Holds at
    most `PARTS_IN_FLIGHT + 1` parts in memory.
    """

    def __init__(self, storage: RemoteStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._write_id = uuid.uuid4().hex
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
                f"an object of more than {PART_BYTES * _PARTS_MAX} bytes cannot be written",
                object_name=self._storage.name_of(self._path),
            )
        file = self._opened()
        for start in range(0, len(view), PART_BYTES):
            # A copy: obstore keeps the buffer until its part is sent, and the caller may reuse it before.
            part = bytes(view[start : start + PART_BYTES])
            self._run(partial(file.write, part))

    def commit(self) -> None:
        if self._file is None:
            self._storage.put(self._path, self._first)
            return
        try:
            self._run(self._file.close)
        except MaxbrodError as error:
            self._resolve(error)

    def abort(self) -> None:
        self._first = bytearray()
        if self._file is not None:
            # If the block ends in an error, obstore aborts the upload, and the store deletes the parts.
            leave = partial(self._file.__exit__, _Aborted, _Aborted(), None)
            with suppress(MaxbrodError):
                self._run(leave)

    def _opened(self) -> WritableFile:
        if self._file is None:
            self._storage.refuse_taken(self._path)
            file = self._run(partial(self._storage.start_upload, self._path, self._write_id))
            self._file = file
            self._run(lambda: file.write(self._first))
            self._first = bytearray()
        return self._file

    def _resolve(self, error: MaxbrodError) -> None:
        """Completing the upload failed, or its answer was lost: the object's write id shows which."""
        if self._storage.has_landed(self._path, self._write_id):
            return
        raise _unknown_upload(error) if isinstance(error, ObjectNotFoundError) else error

    def _run(self, action: Callable[[], T]) -> T:
        return self._storage.run_once("create", self._path, action)


class GuardedUpload(Writer):
    """A large object in parts, as `Upload`, but locked if the archive is, and completed only if its name is free."""

    def __init__(self, storage: RemoteStorage, path: str, guard: WriteGuard) -> None:
        self._storage, self._path, self._bucket, self._guard = storage, path, guard.bucket, guard
        self._write_id = uuid.uuid4().hex
        self._pending = bytearray()
        self._upload: str | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._parts: list[Future[dict[str, Any]]] = []

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self.size += len(view)
        if self.size > PART_BYTES * _PARTS_MAX:
            raise UsageError(
                f"an object of more than {PART_BYTES * _PARTS_MAX} bytes cannot be written",
                object_name=self._storage.name_of(self._path),
            )
        while view:
            room = PART_BYTES - len(self._pending)
            if not room:
                self._send()
                room = PART_BYTES
            self._pending += view[:room]
            view = view[room:]

    def commit(self) -> None:
        if self._upload is None:
            self._storage.put(self._path, self._pending)
            return
        if self._pending:
            self._send()
        upload = self._upload
        parts = [part.result() for part in self._parts]
        try:
            self._retried(lambda: self._bucket.complete_upload(self._path, upload, parts))
        except MaxbrodError as error:
            # Our own object, if the answer to an attempt was lost: then the name is taken, or the upload unknown.
            if not self._storage.has_landed(self._path, self._write_id):
                raise (_unknown_upload(error) if isinstance(error, ObjectNotFoundError) else error) from None
        self._end()

    def abort(self) -> None:
        self._pending = bytearray()
        for part in self._parts:
            part.cancel()
        self._end()
        if self._upload is not None:
            upload = self._upload
            with suppress(MaxbrodError):
                self._once(lambda: self._bucket.abort_upload(self._path, upload))

    def _send(self) -> None:
        """Send what is pending as the next part, with at most `PARTS_IN_FLIGHT` under way."""
        if self._upload is None:
            self._storage.refuse_taken(self._path)
            self._upload = self._retried(
                lambda: self._bucket.begin_upload(
                    self._path, metadata=self._storage.marked(self._write_id), lock=self._guard.lock()
                )
            )
            self._pool = ThreadPoolExecutor(PARTS_IN_FLIGHT, thread_name_prefix="upload")
        assert self._pool is not None  # noqa: S101 - made with the upload
        if len(self._parts) >= PARTS_IN_FLIGHT:
            self._parts[-PARTS_IN_FLIGHT].result()
        upload, number, data = self._upload, len(self._parts) + 1, bytes(self._pending)
        self._pending = bytearray()
        put = partial(self._bucket.put_part, self._path, upload, number, data)
        self._parts.append(self._pool.submit(self._retried, put))

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _once(self, action: Callable[[], T]) -> T:
        return self._storage.run_once("create", self._path, action)

    def _retried(self, action: Callable[[], T]) -> T:
        return self._storage.retries.run(lambda: self._once(action))
