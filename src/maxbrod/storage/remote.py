"""Objects in a cloud, through obstore with our own retries and errors.

Every object carries the random id of the write that created it as metadata. If the answer to a write is lost, the id
tells our object from another writer's. If a store drops the metadata, the bytes are compared.

What obstore cannot send to S3 (a lock, a condition on the end of an upload) goes through `bucket`.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import obstore
from obstore.exceptions import BaseError

from maxbrod.board import is_process_stopped, waited_for
from maxbrod.bounds import check_object
from maxbrod.errors import (
    ForbiddenError,
    MaxbrodError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoppedError,
    UnavailableError,
)
from maxbrod.storage.failures import too_short, translate
from maxbrod.storage.interface import ByteRange, HeldObject, ObjectInfo, Storage, Writer
from maxbrod.storage.uploads import PART_BYTES, PARTS_IN_FLIGHT, GuardedUpload, Upload
from maxbrod.storage.urls import RESERVED, check_folder, check_name

if TYPE_CHECKING:
    from collections.abc import Buffer

    from obstore import ObjectMeta, WritableFile
    from obstore.store import ObjectStore

    from maxbrod.board import TaskStop
    from maxbrod.storage.bucket import WriteGuard


T = TypeVar("T")

WRITE_ID: Final = "maxbrodwrite"  # Azure wants an identifier, and HTTP knows no capitals
GAP_BYTES_MAX: Final = 1024 * 1024
"""Reading this many unneeded bytes takes about as long as another request."""
_DELETERS: Final = 10
_HELD_MAX: Final = 1_000_000
_READS: Final = 3
"""Reads before an object counts as too short: a single short answer may be a broken connection."""

_AFTER_STOP_S: Final = 5.0
WARN_FIRST_S: Final = 3.0
WARN_EVERY_S: Final = 60.0
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Two clients of one store. `once` never retries by itself: a repeated conditional put would meet its own object.

    `patient` retries the parts of an upload, which may be sent any number of times.
    """

    once: ObjectStore
    patient: ObjectStore


class RemoteStorage(Storage):
    def __init__(
        self,
        url: str,
        clients: Clients,
        *,
        retries: RetryPolicy,
        attributes: Mapping[str, str],
        guard: WriteGuard | None = None,
    ) -> None:
        super().__init__(url)
        self._clients = clients
        self.retries = retries
        self._attributes = attributes
        self._guard = guard
        self._held: dict[str, HeldObject] = {}

    def at_hand(self) -> Storage:
        hot = RemoteStorage(self.url, self._clients, retries=self.retries, attributes={}, guard=self._guard)
        hot._held = self._held
        return hot

    def held_back(self) -> Sequence[HeldObject]:
        return tuple(self._held.values())

    def put(self, path: str, data: Buffer) -> None:
        body, write_id = memoryview(data).cast("B"), uuid.uuid4().hex
        create = self._put(check_name(path), body, self.marked(write_id), conditional=True)
        in_doubt = False

        def attempt() -> None:
            nonlocal in_doubt
            try:
                self.run_once("put", path, create)
            except UnavailableError:
                in_doubt = True
                raise
            except ObjectExistsError:
                # The object can be our own only if the answer to an earlier attempt was lost. Without that condition a
                # store that drops our metadata would make equal bytes of another writer look like ours.
                if not (in_doubt and self._is_own(path, write_id, body)):
                    raise

        self.retries.run(attempt)

    def replace(self, path: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        body = memoryview(data).cast("B")
        attributes = {**self.marked(uuid.uuid4().hex), **(metadata or {})}
        self._retried("replace", path, self._put(check_name(path), body, attributes, conditional=False))

    def _put(
        self, path: str, body: memoryview, attributes: Mapping[str, str], *, conditional: bool
    ) -> Callable[[], object]:
        """One attempt to put an object."""
        guard = self._guard
        mode: Literal["create", "overwrite"] = "create" if conditional else "overwrite"
        put: Callable[[], object] = partial(
            obstore.put,
            self._clients.once,
            path,
            body,
            use_multipart=False,
            mode=mode,
            attributes=dict(attributes),
        )
        if guard is None:
            return put

        def attempt() -> None:
            lock = guard.lock()
            if lock is None:
                put()
            else:
                guard.bucket.put(path, bytes(body), metadata=attributes, lock=lock, conditional=conditional)

        return attempt

    def create(self, path: str) -> Writer:
        check_name(path)
        return Upload(self, path) if self._guard is None else GuardedUpload(self, path, self._guard)

    def get(self, path: str, *, size: int | None = None) -> memoryview:
        check_name(path)

        def read() -> Sequence[memoryview]:
            found = obstore.get(self._clients.once, path)
            check_object(found.meta["size"], self.name_of(path))
            return [memoryview(found.bytes())]

        return self._read("get", path, read, None if size is None else [size])[0]

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        check_name(path)
        spans = join_ranges(ranges)
        starts, sizes = [span.start for span in spans], [span.size for span in spans]

        def read() -> Sequence[memoryview]:
            answers = obstore.get_ranges(self._clients.once, path, starts=starts, lengths=sizes, coalesce=0)
            return [memoryview(answer) for answer in answers]

        return cut_ranges(ranges, spans, self._read("get_ranges", path, read, sizes))

    def head(self, path: str) -> ObjectInfo:
        return self._retried("head", path, lambda: _info(obstore.head(self._clients.once, check_name(path))))

    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        prefix = check_folder(folder)

        def collect() -> Sequence[ObjectInfo]:
            chunks = obstore.list(self._clients.once, prefix=prefix or None)
            return [_info(meta) for chunk in chunks for meta in chunk]

        # All pages are read before the first object is returned: a retry in between would repeat or skip objects. Not
        # every S3-compatible store sorts as S3 does.
        listed = self._retried("list", folder, collect)
        ours = (info for info in listed if not info.path.startswith(f"{RESERVED}/"))
        return iter(sorted(ours, key=lambda info: info.path.encode()))

    def delete(self, paths: Iterable[str]) -> Sequence[HeldObject]:
        names = [check_name(path) for path in paths]
        # Whoever may delete nothing is asked to again and again, for more and more objects: each is tried once.
        new = [name for name in names if name not in self._held]
        try:
            if new:
                self._retried("delete", "", lambda: obstore.delete(self._clients.once, new))
        except (ObjectNotFoundError, ForbiddenError):
            # Google and Azure report a missing name as an error, and no store says how far it has come.
            with ThreadPoolExecutor(_DELETERS) as pool:
                list(pool.map(self._delete_one, new))
        return [self._held[name] for name in names if name in self._held]

    def _delete_one(self, name: str) -> None:
        try:
            self._retried("delete", name, partial(obstore.delete, self._clients.once, name))
        except ObjectNotFoundError:
            return
        except ForbiddenError as error:
            if len(self._held) < _HELD_MAX:
                self._held[name] = HeldObject(path=name, reason=error.message, hint=error.hint)

    def run_once(self, operation: str, path: str, action: Callable[[], T]) -> T:
        try:
            return waited_for(action, _AFTER_STOP_S)
        except (BaseError, OSError, ValueError, NotImplementedError) as error:
            raise translate(error, operation, self.name_of(path)) from None

    def _retried(self, operation: str, path: str, action: Callable[[], T]) -> T:
        return self.retries.run(lambda: self.run_once(operation, path, action))

    def _read(
        self, operation: str, path: str, action: Callable[[], Sequence[memoryview]], sizes: Sequence[int] | None
    ) -> Sequence[memoryview]:
        """Read until the answers have the expected sizes: a short answer may be complete the next time."""
        for _ in range(_READS):
            answers = self._retried(operation, path, action)
            if sizes is None or [len(answer) for answer in answers] == sizes:
                return answers
        there = sum(map(len, answers))
        raise too_short(operation, self.name_of(path), there=there, expected=sum(sizes or ()))

    def marked(self, write_id: str) -> dict[str, str]:
        return {**self._attributes, WRITE_ID: write_id}

    def _is_own(self, path: str, write_id: str, body: memoryview) -> bool:
        try:
            found = self.run_once("get", path, lambda: obstore.get(self._clients.once, path))
            mark = found.attributes.get(WRITE_ID)
            return mark == write_id if mark is not None else self.run_once("get", path, found.bytes) == body
        except ObjectNotFoundError:
            raise UnavailableError(
                "the object appeared and disappeared while it was created",
                operation="put",
                object_name=self.name_of(path),
            ) from None

    def start_upload(self, path: str, write_id: str) -> WritableFile:
        return obstore.open_writer(
            self._clients.patient,
            path,
            attributes=self.marked(write_id),
            buffer_size=PART_BYTES,
            max_concurrency=PARTS_IN_FLIGHT,
        )

    def has_landed(self, path: str, write_id: str) -> bool:
        """True if this very write created the object, if there is one."""
        try:
            found = self._retried("create", path, lambda: obstore.get(self._clients.once, path, options={"head": True}))
        except ObjectNotFoundError:
            return False
        return found.attributes.get(WRITE_ID) == write_id

    def refuse_taken(self, path: str) -> None:
        with suppress(ObjectNotFoundError):
            self.head(path)
            raise ObjectExistsError(
                "the object already exists",
                operation="create",
                object_name=self.name_of(path),
                hint="objects are never overwritten",
            )


def _info(meta: ObjectMeta) -> ObjectInfo:
    # A listing and a HEAD must tell the same of one object: Google counts milliseconds in listings only, and Azure puts
    # no quotes around the etag there.
    modified_ms = int(meta["last_modified"].timestamp()) * 1000
    etag = None if meta["e_tag"] is None else meta["e_tag"].strip('"')
    return ObjectInfo(path=meta["path"], size=meta["size"], modified_ms=modified_ms, etag=etag)


def join_ranges(ranges: Sequence[ByteRange]) -> list[ByteRange]:
    """Spans that cover all non-empty ranges, in ascending order, more than GAP_BYTES_MAX apart.

    One request fetches ranges that are close together. obstore can join ranges itself, but panics if an object is
    too short: exactly the case that must be reported.
    """
    spans: list[ByteRange] = []
    for span in sorted((span for span in ranges if span.size), key=lambda span: span.start):
        end = span.start + span.size
        if spans and span.start - (spans[-1].start + spans[-1].size) <= GAP_BYTES_MAX:
            last = spans.pop()
            span = ByteRange(start=last.start, size=max(end, last.start + last.size) - last.start)  # noqa: PLW2901
        spans.append(span)
    return spans


def cut_ranges(
    ranges: Sequence[ByteRange], spans: Sequence[ByteRange], answers: Sequence[memoryview]
) -> list[memoryview]:
    """The bytes of each range, from the answers for the spans of `join_ranges`."""
    starts = [span.start for span in spans]
    pieces: list[memoryview] = []
    for wanted in ranges:
        if not wanted.size:
            pieces.append(memoryview(b""))
            continue
        span = bisect_right(starts, wanted.start) - 1
        position = wanted.start - starts[span]
        pieces.append(answers[span][position : position + wanted.size])
    return pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Retries transient errors with growing, randomised pauses until a deadline."""

    deadline_s: float
    pause_first_s: float = 0.1
    pause_max_s: float = 5.0
    stop: TaskStop | None = None
    """When it is set, nothing is retried."""

    def run(self, attempt: Callable[[], T]) -> T:
        """The first success. Raises an error that is not retryable, or the last one before the deadline.

        After a signal to this process, that is soon: what ends the work, such as a commit, gets a few seconds.
        """
        started = time.monotonic()
        end = started + self.deadline_s
        warn_at = started + WARN_FIRST_S
        pause = self.pause_first_s
        stopped_at: float | None = None
        while True:
            try:
                return attempt()
            except StoppedError:
                raise
            except MaxbrodError as error:
                # Random pauses keep a thousand tasks that failed together from retrying together.
                wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
                now = time.monotonic()
                if not error.retryable:
                    raise
                if stopped_at is None and is_process_stopped():
                    stopped_at = now
                ended = self.stop is not None and self.stop.is_set()
                if ended or (stopped_at is not None and now + wait > stopped_at + _AFTER_STOP_S):
                    raise StoppedError(
                        f"stopped while it waited for the store: {error.message}",
                        operation=error.operation,
                        object_name=error.object_name,
                        hint="run it again",
                    ) from error
                if now + wait > end:
                    raise
                if now >= warn_at:
                    # Tell the user why nothing happens.
                    _LOG.warning("waiting for the store: %s; giving up in %.0f s", error, end - now)
                    warn_at = now + WARN_EVERY_S
            (time.sleep if self.stop is None else self.stop.wait)(wait)
            pause = min(pause * 2, self.pause_max_s)
