"""Copies objects in a worker: range by range through bounded memory, every slice compared with its digest on the way.

Nothing of an object is visible at the target before all of it has passed. A damaged or missing object is an answer, not
an error: the others go on. An error of the target is one: it would be the same for all others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from maxbrod.archive.snapshot_document import decode, is_intact
from maxbrod.copy.plan import ObjectToCopy, SlicePlace
from maxbrod.errors import (
    CorruptDataError,
    FrozenObjectError,
    MaxbrodError,
    ObjectExistsError,
    ObjectNotFoundError,
    TruncatedDataError,
    UnsupportedFormatError,
)
from maxbrod.kafka.wire.deadline import Pace
from maxbrod.layouts.kafka.contents import Contents, encode_contents, read_contents
from maxbrod.layouts.kafka.format import is_framed
from maxbrod.layouts.kafka.frames import SliceDigest
from maxbrod.registry.stored import check_stored
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage
from maxbrod.text import counted

if TYPE_CHECKING:
    from maxbrod.config import StorageConfig
    from maxbrod.work.reach import Place

CHUNK_BYTES: Final = 8 << 20
_CHUNKS_AHEAD: Final = 2
"""Ranges of an object that are asked for before they are needed, where the source is distant."""
_AT_ONCE: Final = 8
_LARGE_AT_ONCE: Final = 3
"""Objects of one task that are under way at once, where a side is distant; each large one takes up to 60 MB."""
_READINGS: Final = 2
"""Damage on the way is gone when the object is read again; damage in the store is not."""
_DAMAGES: Final = (CorruptDataError, ObjectNotFoundError, FrozenObjectError)
_HINT: Final = "it was not copied; 'maxbrod check --deep' says what else is damaged, 'maxbrod repair' what can be done"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyContext:
    """The context that all tasks share. Contains secrets."""

    source: Place
    target: Place
    rate_bytes_per_s: float | None = None
    read_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutcome:
    path: str
    bytes: int = 0
    """The size of the object that was written; 0 if it was there already, or could not be copied."""
    there: int = 0
    """The size of the object that the target has now, if another copy has written it."""
    slices: int = 0
    """The slices whose digests were compared."""
    failure: MaxbrodError | None = None
    from_source: bool = True
    """False: the failure is not of the object at the source."""


def copy_objects(context: CopyContext, items: Sequence[ObjectToCopy]) -> list[CopyOutcome]:
    """Copy objects, several at once if a side is distant. After an error of the target the rest is not tried."""
    return _Copier(context).run(items)


@dataclass
class _Copier:
    context: CopyContext
    _targets: dict[str | None, Storage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        place = self.context.source
        self._source = open_storage(place.url, place.storage)
        self._pace = Pace(self.context.rate_bytes_per_s)
        self._pace_lock = threading.Lock()
        self._large = threading.Semaphore(_LARGE_AT_ONCE)
        self._ended = False

    def run(self, items: Sequence[ObjectToCopy]) -> list[CopyOutcome]:
        # Opened here: threads that a task starts have no seat, by which it is stopped.
        for name in {item.storage_class for item in items}:
            self._targets[name] = self._open(name)
        distant = self._source.distant or any(target.distant for target in self._targets.values())
        if not distant:
            return [outcome for item in items if (outcome := self._answer(item)) is not None]
        with ThreadPoolExecutor(_AT_ONCE, "copy") as pool:
            return [outcome for outcome in pool.map(self._answer, items) if outcome is not None]

    def _open(self, storage_class: str | None) -> Storage:
        place = self.context.target
        return open_storage(place.url, in_class(place.storage, storage_class))

    def _answer(self, item: ObjectToCopy) -> CopyOutcome | None:
        if self._ended:
            return None
        try:
            return self._copy(item)
        except _SourceError as error:
            return CopyOutcome(path=item.path, failure=error.cause)
        except MaxbrodError as error:
            self._ended = True
            return CopyOutcome(path=item.path, failure=error, from_source=False)

    def _copy(self, item: ObjectToCopy) -> CopyOutcome:
        target = self._targets[item.storage_class]
        return self._copy_slices(item, target) if item.slices else self._copy_document(item, target.at_hand())

    def _write(self, item: ObjectToCopy, size: int, target: Storage) -> tuple[int, int]:
        """Write an object; its size, and if it is to be read back the checksum of its bytes."""
        return self._send(item, size, target) if item.pack is None else self._send_cut(item, size, target)

    def _copy_document(self, item: ObjectToCopy, target: Storage) -> CopyOutcome:
        with _of_source():
            data = bytes(self._source.get(item.path))
            check_document(self._source, item.path, data)
        self._wait(len(data))
        try:
            target.put(item.path, data)
        except ObjectExistsError:
            return CopyOutcome(path=item.path)
        if self.context.read_back and bytes(target.get(item.path)) != data:
            raise _other_bytes(target, item.path)
        return CopyOutcome(path=item.path, bytes=len(data))

    def _copy_slices(self, item: ObjectToCopy, target: Storage) -> CopyOutcome:
        with _of_source():
            path = item.pack or item.path
            size, needed = self._source.head(path).size, max(place.end for place in item.slices)
            if size < needed:
                raise TruncatedDataError(
                    f"the object has {size} bytes, and the catalog names {needed}",
                    operation="copy",
                    object_name=self._source.name_of(path),
                    hint=_HINT,
                )
        if item.damaged_there:
            target.delete([item.path])
        with self._large if size > CHUNK_BYTES else nullcontext():
            for reading in range(_READINGS):
                try:
                    written, checksum = self._write(item, size, target)
                    break
                except _SourceError as error:
                    wrong = isinstance(error.cause, CorruptDataError)
                    if not wrong or reading == _READINGS - 1:
                        raise
                except ObjectExistsError:
                    # Another copy was faster.
                    return CopyOutcome(path=item.path, there=target.head(item.path).size)
            if self.context.read_back and _checksum(target, item.path, written) != checksum:
                target.delete([item.path])
                raise _other_bytes(target, item.path)
        return CopyOutcome(path=item.path, bytes=written, slices=len(item.slices))

    def _send(self, item: ObjectToCopy, size: int, target: Storage) -> tuple[int, int]:
        proof, checksum = SliceProof(item.slices), 0
        ahead = ThreadPoolExecutor(_CHUNKS_AHEAD, "read") if self._source.distant and size > CHUNK_BYTES else None
        with ahead or nullcontext(), target.create(item.path) as writer:
            chunks = _chunks(self._source, item.path, size, ahead)
            while (chunk := _next(chunks)) is not None:
                self._wait(len(chunk))
                proof.add(chunk)
                if self.context.read_back:
                    checksum = google_crc32c.extend(checksum, np.frombuffer(chunk, np.uint8))
                writer.write(chunk)
            self._demand_sound(item, proof.wrong)
        return size, checksum

    def _send_cut(self, item: ObjectToCopy, size: int, target: Storage) -> tuple[int, int]:
        """Write an object of its own that has these slices of a pack, and their part of its table of contents."""
        pack, checksum = item.pack or item.path, 0
        with _of_source():
            contents = read_contents(self._source, pack, size)
        with target.create(item.path) as writer:
            wrong, places = [], {}
            for place in item.slices:
                places[place.position] = writer.size
                digest = SliceDigest.like(place.digest)
                for start in range(place.position, place.end, CHUNK_BYTES):
                    with _of_source():
                        chunk = self._source.get_range(pack, start, min(CHUNK_BYTES, place.end - start))
                    self._wait(len(chunk))
                    data = np.frombuffer(chunk, np.uint8)
                    digest.add(data)
                    checksum = google_crc32c.extend(checksum, data)
                    writer.write(chunk)
                wrong += [place] if str(digest) != place.digest else []
            self._demand_sound(item, wrong)
            if contents is not None:
                end = encode_contents(_cut_contents(contents, item.path, places), framed=is_framed(item.path))
                checksum = google_crc32c.extend(checksum, end)
                writer.write(end)
            return writer.size, checksum

    def _demand_sound(self, item: ObjectToCopy, wrong: Sequence[SlicePlace]) -> None:
        if wrong:
            raise _SourceError(
                CorruptDataError(
                    f"{len(wrong)} of {counted(len(item.slices), 'slice')} do not have the digest of the catalog",
                    operation="copy",
                    object_name=self._source.name_of(item.pack or item.path),
                    position=wrong[0].position,
                    hint=_HINT,
                )
            )

    def _wait(self, size: int) -> None:
        with self._pace_lock:
            self._pace.wait(size)


class _SourceError(Exception):
    """An object of the source is damaged, missing or frozen."""

    def __init__(self, cause: MaxbrodError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextmanager
def _of_source() -> Iterator[None]:
    """Within the block, damage is the source's."""
    try:
        yield
    except _DAMAGES as error:
        raise _SourceError(error) from error


class SliceProof:
    """Compares slices with their digests while the object passes, in order."""

    def __init__(self, slices: Iterable[SlicePlace]) -> None:
        self._waiting = deque(sorted(slices, key=lambda place: place.position))
        self._begun: list[tuple[SlicePlace, SliceDigest]] = []
        self._position = 0
        self._wrong: list[SlicePlace] = []

    def add(self, chunk: memoryview) -> None:
        start, end = self._position, self._position + len(chunk)
        data = np.frombuffer(chunk, np.uint8)
        while self._waiting and self._waiting[0].position < end:
            place = self._waiting.popleft()
            self._begun.append((place, SliceDigest.like(place.digest)))
        left = []
        for place, digest in self._begun:
            digest.add(data[max(place.position - start, 0) : place.end - start])
            if place.end > end:
                left.append((place, digest))
            elif str(digest) != place.digest:
                self._wrong.append(place)
        self._begun, self._position = left, end

    @property
    def wrong(self) -> list[SlicePlace]:
        """The slices that differ, or did not pass completely."""
        return [*self._wrong, *(place for place, _ in self._begun), *self._waiting]


def _cut_contents(contents: Contents, path: str, places: Mapping[int, int]) -> Contents:
    """The table of contents of an object that has only the slices at these positions, at those where they are now."""
    kept = (entry for entry in contents.entries if entry.slice.position in places)
    entries = (
        replace(entry, slice=replace(entry.slice, path=path, position=places[entry.slice.position])) for entry in kept
    )
    return replace(contents, entries=tuple(entries))


def _chunks(storage: Storage, path: str, size: int, ahead: ThreadPoolExecutor | None) -> Iterator[memoryview]:
    starts = range(0, size, CHUNK_BYTES)
    reads = [partial(storage.get_range, path, start, min(CHUNK_BYTES, size - start)) for start in starts]
    if ahead is None:
        yield from (read() for read in reads)
        return
    waiting: deque[Future[memoryview]] = deque()
    for read in reads:
        waiting.append(ahead.submit(read))
        if len(waiting) > _CHUNKS_AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _next(chunks: Iterator[memoryview]) -> memoryview | None:
    with _of_source():
        return next(chunks, None)


def _checksum(storage: Storage, path: str, size: int) -> int:
    found = 0
    with suppress(TruncatedDataError, ObjectNotFoundError):
        for chunk in _chunks(storage, path, size, None):
            found = google_crc32c.extend(found, np.frombuffer(chunk, np.uint8))
        return found
    return -1


def _other_bytes(storage: Storage, path: str) -> MaxbrodError:
    return MaxbrodError(
        "the store returns other bytes than were written to it",
        operation="copy",
        object_name=storage.name_of(path),
        hint="nothing was published; the disk, the store or the network damages data: do not use it",
    )


def check_document(storage: Storage, path: str, data: bytes) -> None:
    """CorruptDataError: a document is damaged, as far as it has a checksum of its own."""
    checks: dict[str, Callable[[], object]] = {
        "snapshots": lambda: is_intact(data) or decode(data, object_name=storage.name_of(path)),
        "registry": lambda: check_stored(storage, path),
    }
    try:
        if path.endswith(".parquet"):
            pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        elif (check := checks.get(path.partition("/")[0])) is not None:
            check()
    except UnsupportedFormatError:
        # Of a newer release: it is copied as it is.
        return
    except (OSError, pa.ArrowException) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CorruptDataError(
            f"the document is damaged: {first}", operation="copy", object_name=storage.name_of(path), hint=_HINT
        ) from None


def in_class(storage: StorageConfig, storage_class: str | None) -> StorageConfig:
    """The same storage, with another class for new objects."""
    if storage_class is None:
        return storage
    return storage.model_copy(update={"s3": storage.s3.model_copy(update={"storage_class": storage_class})})
