"""Answers Fetch: whole batches from the cache, all partitions loaded at the same time, within the client's wait.

A partition whose chunk is not there yet is left empty if others have enough, or when the wait is over; its load goes
on. An offset in the middle of a batch gets the whole batch, and an offset in a hole the batch after it: clients skip
what they did not ask for. A partition whose object is damaged or lost has an error of its own, again and again, and is
never skipped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.mount.fetch_response import BY_ID, PartitionAnswer, encode_fetch
from maxbrod.mount.loads import AtHand, ToLoad
from maxbrod.mount.metadata import UNKNOWN_TOPIC_ID
from maxbrod.mount.sessions import FULL, LAST, NO_SESSION, FetchSession, FetchSessions, Wanted
from maxbrod.mount.view import NIL

if TYPE_CHECKING:
    from collections.abc import Buffer

    from maxbrod.mount.apis import Message
    from maxbrod.mount.loads import ChunkLoader
    from maxbrod.mount.logs import PartitionLog
    from maxbrod.mount.view import ClusterView, ServedTopic

_LOG: Final = logging.getLogger(__name__)
_SESSION_NOT_FOUND: Final = 70
_INVALID_SESSION_EPOCH: Final = 71
_BYTES_MAX: Final = 16 << 20
"""The bound of one answer: it stays in memory until the client has taken it."""
_WAIT_MAX_S: Final = 60.0
_CROWDED_BYTES: Final = 1 << 20
"""The bound of one answer while many are on their way."""
_READ_COMMITTED: Final = 1


class Fetcher:
    """One for a node. `node` is its own number among those of the view."""

    def __init__(self, view: ClusterView, loader: ChunkLoader, node_id: int) -> None:
        self._view, self._loader, self._node_id = view, loader, node_id
        self.sessions = FetchSessions()
        self.stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self.bytes = 0
        self._held: dict[Hashable, int] = {}
        self._held_bytes = 0

    def release(self, reader: Hashable) -> None:
        """The last answer of a reader was sent, or never will be."""
        self._held_bytes -= self._held.pop(reader, 0)

    def _hold(self, reader: Hashable, answers: Iterable[PartitionAnswer]) -> None:
        """Remember what an answer keeps in memory until it was sent."""
        self.release(reader)
        held = sum(answer.held_bytes for answer in answers)
        if held:
            self._held[reader] = held
            self._held_bytes += held

    @property
    def _crowded(self) -> bool:
        """True if answers on their way hold as much memory as they may.

        An answer keeps the chunks that it is a part of, also those that the cache has let go: with hundreds of slow
        readers many times its bound. From here on answers are small, and copies.
        """
        return self._held_bytes > self._loader.cache.bytes_max // 4

    async def fetch(self, request: Message, version: int, reader: Hashable) -> list[Buffer]:
        session, wanted, code = self._wanted(request, version)
        if code:
            return encode_fetch(version, [], code=code)
        deadline = time.monotonic() + min(max(request.max_wait_ms, 0) / 1000, _WAIT_MAX_S)
        answers = await self._collect(request, wanted, reader, deadline)
        incremental = session is not None and session.epoch != FULL
        shown = [
            answers[number]
            for number, partition in enumerate(wanted)
            if not incremental or _is_news(partition, answers[number])
        ]
        for partition, answer in zip(wanted, answers, strict=True):
            partition.seen = None if answer.code else (answer.high_watermark, answer.log_start)
            if session is not None and answer.pieces:
                # The others come first next time.
                session.partitions.move_to_end((partition.topic, partition.topic_id, partition.partition))
        if session is not None:
            session.advance()
        self.bytes += sum(answer.bytes for answer in shown)
        self._hold(reader, shown)
        return encode_fetch(version, shown, session_id=NO_SESSION if session is None else session.session_id)

    def _wanted(self, request: Message, version: int) -> tuple[FetchSession | None, list[Wanted], int]:
        """The partitions that a request means, by itself or together with its session."""
        named = list(self._named(request, version))
        if version < 7 or request.session_epoch == LAST:
            self.sessions.close(request.session_id if version >= 7 else NO_SESSION)
            return None, named, Code.NONE
        if request.session_epoch == FULL:
            self.sessions.close(request.session_id)
            session = self.sessions.open() if named else None
            if session is not None:
                session.partitions.update(((each.topic, each.topic_id, each.partition), each) for each in named)
            return session, named, Code.NONE
        session = self.sessions.find(request.session_id)
        if session is None:
            return None, [], _SESSION_NOT_FOUND
        if session.epoch != request.session_epoch:
            return None, [], _INVALID_SESSION_EPOCH
        for topic in request.forgotten_topics_data or ():
            served = self._topic(topic, version)
            name = None if served is None else served.name
            for partition in topic.partitions:
                session.partitions.pop((name, _id_of(topic, version), partition), None)
        for each in named:
            key = each.topic, each.topic_id, each.partition
            known = session.partitions.get(key)
            each.seen = None if known is None else known.seen
            session.partitions[key] = each
        return session, list(session.partitions.values()), Code.NONE

    def _named(self, request: Message, version: int) -> Iterable[Wanted]:
        for topic in request.topics or ():
            served = self._topic(topic, version)
            name = topic.topic if version < BY_ID else None if served is None else served.name
            for partition in topic.partitions:
                yield Wanted(
                    topic=name,
                    topic_id=_id_of(topic, version),
                    partition=partition.partition,
                    offset=partition.fetch_offset,
                    bytes_max=max(partition.partition_max_bytes, 0),
                )

    def _topic(self, topic: Message, version: int) -> ServedTopic | None:
        return self._view.topics.get(topic.topic) if version < BY_ID else self._view.by_id.get(topic.topic_id)

    async def _collect(
        self, request: Message, wanted: list[Wanted], reader: Hashable, deadline: float
    ) -> list[PartitionAnswer]:
        bytes_max = min(max(request.max_bytes, 0), _CROWDED_BYTES if self._crowded else _BYTES_MAX)
        committed = request.isolation_level == _READ_COMMITTED
        answers = [
            PartitionAnswer(topic=each.topic, topic_id=each.topic_id, partition=each.partition) for each in wanted
        ]
        left = list(range(len(wanted)))
        total, urgent = 0, False
        while True:
            pending: list[tuple[int, asyncio.Future[Any]]] = []
            for number in left:
                awaited = self._read(
                    wanted[number], answers[number], reader, bytes_max - total, committed=committed, first=total == 0
                )
                total += answers[number].bytes
                urgent |= answers[number].code not in {Code.NONE, Code.KAFKA_STORAGE_ERROR}
                if awaited is not None:
                    pending.append((number, awaited))
            enough = urgent or total >= max(request.min_bytes, 0) or total >= bytes_max
            wait_s = deadline - time.monotonic()
            if enough or wait_s <= 0 or self.stopping.is_set():
                return answers
            if not await self._await([future for _, future in pending], wait_s):
                return answers
            # If the log has grown, also what was at its end.
            left = [number for number in left if not answers[number].bytes]
            for number in left:
                answers[number].code = Code.NONE

    def changed(self) -> None:
        """Wake whoever waits at the end of a log."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _await(self, futures: list[asyncio.Future[Any]], wait_s: float) -> bool:
        """Wait until one of them is done or the view changes; False if the time is over before, or the node stops."""
        events = [asyncio.ensure_future(event.wait()) for event in (self.stopping, self._changed)]
        try:
            done, _ = await asyncio.wait([*futures, *events], timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for event in events:
                event.cancel()
        return bool(done) and not self.stopping.is_set()

    def _read(
        self,
        wanted: Wanted,
        answer: PartitionAnswer,
        reader: Hashable,
        room: int,
        *,
        committed: bool,
        first: bool,
    ) -> asyncio.Future[Any] | None:
        """Fill in the answer for one partition, or return what to wait for."""
        topic = None if wanted.topic is None else self._view.topics.get(wanted.topic)
        if topic is None:
            unknown = wanted.topic_id != NIL
            answer.code = UNKNOWN_TOPIC_ID if unknown else Code.UNKNOWN_TOPIC_OR_PARTITION
            return None
        if not 0 <= wanted.partition < topic.partition_count:
            answer.code = Code.UNKNOWN_TOPIC_OR_PARTITION
            return None
        if self._view.leader(topic.name, wanted.partition).node_id != self._node_id:
            answer.code = Code.NOT_LEADER_OR_FOLLOWER
            return None
        if topic.logs is None:
            try:
                return self._loader.load_topic(topic)
            except MaxbrodError:
                answer.code = Code.KAFKA_STORAGE_ERROR
                return None
        log = topic.logs[wanted.partition]
        answer.high_watermark, answer.log_start = log.end, log.start
        if not log.start <= wanted.offset <= log.archived_end:
            answer.code = Code.OFFSET_OUT_OF_RANGE
            return None
        answer.aborted = [] if committed else None
        try:
            return self._take(log, wanted, answer, reader, room, first=first)
        except MaxbrodError as error:
            _LOG.debug("%s: %s", log.where, error)
            answer.code, answer.aborted = Code.KAFKA_STORAGE_ERROR, None
            return None

    def _take(
        self, log: PartitionLog, wanted: Wanted, answer: PartitionAnswer, reader: Hashable, room: int, *, first: bool
    ) -> asyncio.Future[Any] | None:
        offset, size, held = wanted.offset, 0, 0
        pieces: list[memoryview] = []
        copied = self._crowded
        while True:
            found = self._loader.look(log, offset, reader) if not pieces else self._next(log, offset, reader)
            if not isinstance(found, AtHand):
                break
            limit = min(wanted.bytes_max, room) - size
            batch = int(found.chunk.headers.size[found.first])
            # At least one batch, however small the limits: a client could never go on without it.
            if batch > limit and (pieces or (batch > room and not first)):
                break
            piece, after = found.chunk.part(found.first, limit)
            pieces.append(memoryview(bytes(piece)) if copied else piece)
            size += len(piece)
            held += len(piece) if copied else found.chunk.bytes
            end = int(found.chunk.ends[after - 1])
            if answer.aborted is not None:
                known = {(each.producer_id, each.first_offset) for each in answer.aborted}
                new = log.aborted_in(found.explored, offset, end)
                answer.aborted = [
                    *answer.aborted,
                    *(each for each in new if (each.producer_id, each.first_offset) not in known),
                ]
            offset = end
            if after < len(found.chunk.ends):
                break
            self._loader.load_ahead(log, found)
        answer.pieces, answer.bytes, answer.held_bytes = pieces, size, held
        if pieces or not isinstance(found, ToLoad):
            return None
        return self._loader.start(found, offset, reader)

    def _next(self, log: PartitionLog, offset: int, reader: Hashable) -> AtHand | ToLoad | None:
        """As `look`, after something was found: what is wrong further on is the next request's error."""
        try:
            return self._loader.look(log, offset, reader)
        except MaxbrodError:
            return None


def _id_of(topic: Message, version: int) -> UUID:
    return NIL if version < BY_ID else topic.topic_id or NIL


def _is_news(wanted: Wanted, answer: PartitionAnswer) -> bool:
    """True if an incremental answer must have the partition."""
    return bool(answer.pieces) or answer.code != Code.NONE or wanted.seen != (answer.high_watermark, answer.log_start)
