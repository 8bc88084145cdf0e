"""Brings chunks into the cache: each once, however many ask for it; and ahead of readers that read on.

Runs in the event loop; the store is read in threads. A load is never cancelled: at the end of its wait a client gets an
empty answer, and what it asked for is in the cache when it asks again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectNotFoundError
from maxbrod.model import TopicPartition
from maxbrod.mount.chunks import CHUNK_BYTES, ChunkPlace, Loaded, ServedChunk

if TYPE_CHECKING:
    from maxbrod.mount.cache import ChunkCache, ChunkKey
    from maxbrod.mount.logs import ExploredSlice, PartitionLog
    from maxbrod.mount.view import ServedTopic

_LOG: Final = logging.getLogger(__name__)
_SLOW_S: Final = 300.0
RETRY_S: Final = 5.0
"""How long an error stands before the store is asked again."""
_AHEAD: Final = 4
"""Chunks that are loaded ahead of a reader from a store that is far away."""
_COPIES: Final = 3
"""What a load holds at most of its bytes at once: as the store sent them, joined, and cut into chunks."""


@dataclass(frozen=True, slots=True)
class AtHand:
    """A chunk at hand, and the batch in it to begin with."""

    explored: ExploredSlice
    number: int
    chunk: ServedChunk
    first: int


@dataclass(frozen=True, slots=True)
class ToLoad:
    """A chunk that must be loaded first."""

    explored: ExploredSlice
    place: ChunkPlace


class LoadBudget:
    """The bytes that loads under way may hold together. A load that is larger than all of it runs alone."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._room = asyncio.Condition()

    @asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[None]:
        async with self._room:
            await self._room.wait_for(lambda: not self._bytes or self._bytes + size <= self._bytes_max)
            self._bytes += size
        try:
            yield
        finally:
            async with self._room:
                self._bytes -= size
                self._room.notify_all()


class ChunkLoader:
    def __init__(self, cache: ChunkCache, *, threads: int) -> None:
        self.cache = cache
        # Readers at many places would otherwise fill a thread each with the way from the start of a log to theirs.
        self._budget = LoadBudget(cache.bytes_max // 2)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="mount")
        self._loads: dict[ChunkKey, asyncio.Task[None]] = {}
        self._topics: dict[str, asyncio.Future[Any]] = {}
        self._unread: dict[str, tuple[MaxbrodError, float]] = {}
        """Topics whose rows could not be read, and when that was."""
        self.hits = self.misses = self.errors = 0
        self.requests = self.loaded_bytes = 0
        """What the store was asked for: the requests, and the bytes of their records."""
        self.on_lost: Callable[[int], None] = lambda _: None
        """Called with the number of an archive of which an object is gone."""
        self._slowest: tuple[float, float, TopicPartition] | None = None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def slowest(self) -> tuple[TopicPartition, float] | None:
        """The partition that last waited longest, and the seconds; None if nobody waited lately."""
        if self._slowest is None or time.monotonic() - self._slowest[0] > _SLOW_S:
            return None
        return self._slowest[2], self._slowest[1]

    def look(self, log: PartitionLog, offset: int, reader: Hashable) -> AtHand | ToLoad | None:
        """Where the batches from an offset on are; None at the end of the log. Raises what is wrong there."""
        while (explored := log.slice_from(offset)) is not None:
            number = explored.number_of(offset)
            place = explored.place_at(number)
            if place is None:
                # Nothing but a hole is left of it.
                offset = max(offset + 1, explored.stored.end_offset)
                continue
            chunk = self.cache.get(explored.key(place), reader)
            if chunk is None:
                self._raise_known(explored, place)
                return ToLoad(explored, place)
            self.hits += 1
            first = chunk.first_from(offset)
            if first < len(chunk.ends):
                return AtHand(explored, number, chunk, first)
            offset = explored.ends[number]
        return None

    def start(self, missing: ToLoad, offset: int, reader: Hashable, *, count: int = 1) -> asyncio.Task[None]:
        """Load a chunk, or join the load that is under way. `offset` is what its reader wants."""
        explored, place = missing.explored, missing.place
        key = explored.key(place)
        task = self._loads.get(key)
        self.misses += reader is not None
        if task is None:
            if place == explored.frontier and offset - explored.reached > explored.stored.end_offset - offset:
                count = max(count, _AHEAD)  # far from the start, which the way leads from
            task = asyncio.create_task(self._load(explored, place, offset, reader, count))
            self._loads[key] = task
            task.add_done_callback(lambda _: self._loads.pop(key, None))
        return task

    async def chunk_at(self, log: PartitionLog, offset: int, reader: Hashable) -> AtHand | None:
        """As `look`, but waits for what is missing."""
        while isinstance(found := self.look(log, offset, reader), ToLoad):
            await self.start(found, offset, reader)
        return found

    def load_topic(self, topic: ServedTopic) -> asyncio.Future[Any]:
        """Load the rows of a topic, once. Raises what went wrong a moment ago."""
        error, seen = self._unread.get(topic.name, (None, 0.0))
        if error is not None and time.monotonic() - seen < RETRY_S:
            raise error
        task = self._topics.get(topic.name)
        if task is None:
            loop = asyncio.get_running_loop()
            task = self._topics[topic.name] = asyncio.ensure_future(loop.run_in_executor(self._pool, topic.load))
            task.add_done_callback(lambda done: self._topic_loaded(topic.name, done))
        return task

    def _topic_loaded(self, name: str, done: asyncio.Future[Any]) -> None:
        self._topics.pop(name, None)
        error = None if done.cancelled() else done.exception()
        if error is None:
            self._unread.pop(name, None)
            return
        failure = error if isinstance(error, MaxbrodError) else CorruptDataError(f"{type(error).__name__}: {error}")
        self.errors += 1
        if name not in self._unread:
            _LOG.error("the catalog's rows of %s cannot be read: %s", name, failure)
        self._unread[name] = failure, time.monotonic()

    def load_ahead(self, log: PartitionLog, found: AtHand) -> None:
        """Load what a reader that reads on will want next."""
        distant = log.distant
        explored, number = found.explored, found.number
        for _ in range(_AHEAD if distant else 1):
            number += 1
            if explored.place_at(number) is None:
                following = log.slice_from(explored.stored.end_offset)
                if following is None:
                    return
                explored, number = following, 0
            place = explored.place_at(number)
            if place is None or place in explored.failures:
                return
            key = explored.key(place)
            if key not in self.cache:
                if key not in self._loads and len(self._loads) * CHUNK_BYTES < self.cache.bytes_max // 4:
                    self.start(ToLoad(explored, place), 0, None, count=_AHEAD if distant else 1)
                return

    async def _load(
        self, explored: ExploredSlice, place: ChunkPlace, offset: int, reader: Hashable, count: int
    ) -> None:
        reached = explored.reached_before(place)
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        self.requests += count
        try:
            async with self._budget.of(_COPIES * count * CHUNK_BYTES):
                loaded: Loaded = await loop.run_in_executor(self._pool, explored.source.load, place, reached, count)
        except MaxbrodError as error:
            self._fail(explored, place, error)
            if isinstance(error, ObjectNotFoundError):
                self.on_lost(explored.archive)
            return
        except Exception as error:  # noqa: BLE001 - of any decoder: the partition has an error, and nothing else
            self._fail(explored, place, CorruptDataError(f"{type(error).__name__}: {error}"))
            return
        now = time.monotonic()
        if self.slowest is None or now - began > self.slowest[1]:
            self._slowest = now, now - began, explored.where
        explored.failures.pop(place, None)
        for chunk in loaded.chunks:
            self.loaded_bytes += chunk.bytes
            # What lies before the wanted offset was only on the way.
            if chunk.reach > offset:
                self.cache.put(explored.key(chunk.place), chunk, reader)
        explored.add(place, loaded)
        if loaded.failure is not None and loaded.following is not None:
            self._fail(explored, loaded.following, loaded.failure)

    def _fail(self, explored: ExploredSlice, place: ChunkPlace, error: MaxbrodError) -> None:
        self.errors += 1
        if place not in explored.failures:
            _LOG.error("%s cannot be served: %s", explored.where, error)
        explored.failures[place] = error, time.monotonic()

    def _raise_known(self, explored: ExploredSlice, place: ChunkPlace) -> None:
        known = explored.failures.get(place)
        if known is not None:
            error, seen = known
            if time.monotonic() - seen < RETRY_S:
                raise error
