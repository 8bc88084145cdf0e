"""Reads ranges of partitions from their leaders: one through elections and lost connections, or many small at once.

A batch belongs to the range that contains its base offset, so ranges read by several tasks yield each batch once. The
output is whole batches with checked CRCs, as the broker stores them. The next request is sent before the batches at
hand are checked and returned, so that broker and network work in the meantime.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.cuts import begin_at, may_begin_before
from maxbrod.batch.headers import BatchHeaders, walk
from maxbrod.errors import (
    CorruptDataError,
    LogTruncatedError,
    StoppedError,
    TopicGoneError,
    UnavailableError,
    UnsupportedFormatError,
    UsageError,
)
from maxbrod.kafka.fetch.offsets import EARLIEST, list_offsets
from maxbrod.kafka.fetch.request import (
    Chunk,
    FetchedPartition,
    PartitionFetch,
    Selection,
    announced_bytes,
    by_name,
    empty_chunk,
    fetch_request,
    read_answer,
    select,
)
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient, Leader, gave_up
from maxbrod.kafka.wire.connection import Connection
from maxbrod.kafka.wire.deadline import Backoff, Deadline
from maxbrod.kafka.wire.error_codes import Code, answered_with
from maxbrod.model import TopicPartition

ANSWER_BYTES: Final = 32 << 20
"""The limit of one response. A range that the broker cut there is left out; one without bytes is requested again."""
_RANGE_BYTES_MIN: Final = 64 << 10
FETCH_BYTES: Final = 8 << 20
_FETCH_BYTES_MIN: Final = 64 << 10
_FETCH_BYTES_MAX: Final = 1 << 30
_OPERATION: Final = "fetch"
# How often a broker must repeat that a topic is gone, that a log ends too early or that it has a hole, before that is
# accepted as true: a broker that has just become leader says each of them for a moment.
_REPORTS_TO_CONFIRM: Final = 3
_TOPIC_CODES: Final = frozenset({Code.UNKNOWN_TOPIC_ID, Code.INCONSISTENT_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION})


def read_range(
    client: KafkaClient,
    where: TopicPartition,
    start: int,
    end: int,
    *,
    topic_id: UUID | None = None,
    floor: int | None = None,
    fetch_bytes: int = FETCH_BYTES,
    read_committed: bool = True,
    patience_s: float = PATIENCE_S,
) -> Iterator[Chunk]:
    """Yield every batch whose base offset lies in [start, end), in order. `end` is at most the last stable offset.

    With a `floor` below `start`, for the first range, the batch that contains `start` is included if it does not begin
    before the floor. If the log start offset lies within a batch, after retention or DeleteRecords, the records before
    it are dropped: no consumer sees them. `topic_id` is the incarnation to read; by default the one that exists at the
    first request.

    Raises TopicGoneError if the topic is deleted or recreated; LogTruncatedError; CorruptDataError for a batch that is
    damaged in two consecutive fetches (the batches before it have been yielded, and reading can resume at the offset
    after the error's); and UnavailableError if nothing new arrives for `patience_s` seconds.
    """
    reader = _RangeReader(
        client,
        where,
        (start, end),
        topic_id=topic_id,
        floor=floor,
        fetch_bytes=fetch_bytes,
        read_committed=read_committed,
        patience_s=patience_s,
    )
    try:
        while reader.position < end:
            chunk = reader.next_chunk()
            if client.seat is not None:
                client.seat.check()
                client.seat.count(chunk.data.size)
            yield chunk
            reader.renew_patience()
    finally:
        reader.abandon()


class _InFlight(NamedTuple):
    connection: Connection
    ticket: int
    topic_id: UUID
    names: Mapping[str, UUID] | None


class _RangeReader:
    def __init__(
        self,
        client: KafkaClient,
        where: TopicPartition,
        offsets: tuple[int, int],
        *,
        topic_id: UUID | None,
        floor: int | None = None,
        fetch_bytes: int,
        read_committed: bool,
        patience_s: float,
    ) -> None:
        self.position, self._end = offsets
        # The end of the last batch. Batches from here on belong to this range, even if the log start has moved past it.
        self._floor = self.position if floor is None else min(floor, self.position)
        self._client = client
        self._where = where
        self._topic_id = topic_id
        self._fetch_bytes = fetch_bytes
        self._read_committed = read_committed
        self._patience_s = patience_s
        self._last_epoch = -1
        self._in_flight: _InFlight | None = None
        self._suspected_at = -1
        self.renew_patience()

    def renew_patience(self) -> None:
        """Restart the deadline: after progress, and after the caller has used its own time."""
        self._deadline = Deadline.after(self._patience_s)
        self._backoff = Backoff()
        self._reports: dict[str, int] = {}
        self._waits_for = "the leader"

    def abandon(self) -> None:
        """Drop the request in flight. Its response would block the connection, so the connection is closed."""
        if self._in_flight is not None:
            self._in_flight.connection.close()
            self._in_flight = None

    def next_chunk(self) -> Chunk:
        while True:
            try:
                chunk = self._attempt()
            except UnavailableError as error:
                self._recover(error)
            except (CorruptDataError, UnsupportedFormatError) as error:
                self._suspect(error)
            else:
                if chunk is not None:
                    self.position = chunk.end
                    return chunk

    def _attempt(self) -> Chunk | None:
        """Receive one response; None if it has nothing new."""
        flight = self._in_flight or self._send(self.position, self._last_epoch)
        frame = flight.connection.receive(flight.ticket, self._request_deadline())
        self._in_flight = None
        answer = read_answer(frame, flight.names)
        flight.connection.throttle(answer.throttle_ms)
        if answer.error_code:
            raise answered_with(answer.error_code, operation=_OPERATION, object_name=str(self._where))
        found = answer.partitions.get((flight.topic_id, self._where.partition))
        if found is None:
            self._wait_for("a response that is not throttled")
            return None
        if found.error_code:
            return self._react(found.error_code)
        if flight.names is not None and not self._is_same_topic():
            return None
        if found.diverging is not None:
            epoch, offset = found.diverging
            # The broker compared the epoch of our last batch with its own history (KIP-595): they differ.
            raise self._truncated(f"it matches what was read only up to offset {offset} of leader epoch {epoch}")
        return self._accept(found, flight.connection)

    def _accept(self, found: FetchedPartition, connection: Connection) -> Chunk | None:
        found, headers = self._walked(found)
        if headers.tail and not len(headers):
            self._grow(found.records)
            return None
        if not len(headers):
            return self._nothing(found)
        selection = select(found, headers, self.position, self._end, floor=self._floor)
        log_start = self._log_start(selection)
        if selection.end < self._end and not connection.throttled:
            try:
                self._send(selection.end, selection.last_epoch)
            except UnavailableError:
                # The batches at hand are valid; the next request is repeated when it is needed.
                self._client.forget(self._where.topic)
        chunk = self._checked(selection)
        if log_start is not None:
            data, headers = begin_at(chunk.data, chunk.headers, log_start)
            chunk = replace(chunk, data=data, headers=headers)
        if len(chunk.headers):
            self._last_epoch = int(chunk.headers["leader_epoch"][-1])
            self._floor = int(chunk.headers.last_offset[-1]) + 1
        return chunk

    def _log_start(self, selection: Selection) -> int | None:
        """The log start offset, if it lies within the first batch.

        It is requested once more: it decides which records are dropped, and no checksum protects it in the response.
        """
        reported = selection.found.log_start_offset
        if reported <= self._floor or not may_begin_before(selection.headers, reported):
            return None
        earliest = list_offsets(self._client, {self._where: EARLIEST}, deadline=self._deadline)[self._where].offset
        return min(reported, earliest)

    def _walked(self, found: FetchedPartition) -> tuple[FetchedPartition, BatchHeaders]:
        try:
            return found, walk(found.records, check_crc=False)
        except (CorruptDataError, UnsupportedFormatError) as error:
            if self._suspected_at != self.position or not error.position:
                raise
            sound = replace(found, records=found.records[: error.position])
            return sound, walk(sound.records, check_crc=False)

    def _checked(self, selection: Selection) -> Chunk:
        try:
            return selection.checked(str(self._where))
        except CorruptDataError as error:
            sound = selection.sound_before(error, str(self._where)) if self._suspected_at == self.position else None
            if sound is None:
                raise
            # The damaged batch is the first one of the next response, which reports it.
            self.abandon()
            return sound

    def _grow(self, records: NDArray[np.uint8]) -> None:
        """Request as much as the batch needs. Kafka sends the first batch whole; other servers may not."""
        needed = announced_bytes(records) or self._fetch_bytes * 2
        if not self._fetch_bytes < needed <= _FETCH_BYTES_MAX:
            message = f"a batch claims to have {needed} bytes, but only {len(records)} of them arrived"
            raise CorruptDataError(message, offset=self.position)
        self._fetch_bytes = needed
        self._wait_for("a whole batch")

    def _nothing(self, found: FetchedPartition) -> Chunk | None:
        # `read_committed` returns batches below the last stable offset only: above it a transaction is still open, and
        # its records may yet be aborted. An election can move that offset back for a moment, so this waits for it.
        reached = found.last_stable_offset if self._read_committed else found.high_watermark
        if reached < self._end:
            name = "last stable offset" if self._read_committed else "high watermark"
            self._wait_for(f"the {name}, which is {reached}, to reach {self._end}")
            return None
        if not self._confirm("there is a hole"):
            self._wait_for("data")
            return None
        return empty_chunk(self.position, self._end, log_start_offset=found.log_start_offset)

    # Requests

    def _send(self, offset: int, last_epoch: int) -> _InFlight:
        leader = self._leader()
        self._topic_id = self._topic_id or leader.topic.topic_id
        if leader.topic.topic_id != self._topic_id:
            raise self._recreated()
        deadline = self._request_deadline()
        connection = self._client.connection(leader.node_id, deadline=deadline)
        # The current leader epoch fences a broker that no longer leads, or does not know yet that it leads. The epoch
        # of the last batch lets the leader notice that its log has diverged from what was read.
        target = PartitionFetch(
            topic=self._where.topic,
            topic_id=self._topic_id,
            partition=self._where.partition,
            offset=offset,
            leader_epoch=leader.leader_epoch,
            last_fetched_epoch=last_epoch,
            bytes_max=self._fetch_bytes,
        )
        request = fetch_request([target], bytes_max=self._fetch_bytes, read_committed=self._read_committed)
        ticket = connection.send(request, deadline)
        self._in_flight = _InFlight(connection, ticket, self._topic_id, by_name(request))
        return self._in_flight

    def _leader(self) -> Leader:
        try:
            return self._client.leader(self._where, deadline=self._deadline)
        except UsageError as error:
            if self._topic_id is None:
                raise
            # It existed before, so it was deleted, unless this broker has just started.
            self._check_topic()
            raise self._unavailable(error.message) from error

    def _request_deadline(self) -> Deadline:
        return self._deadline.within(self._client.request_timeout_s)

    # Failures

    def _react(self, code: int) -> Chunk:
        if code == Code.OFFSET_OUT_OF_RANGE:
            return self._out_of_range()
        if code in _TOPIC_CODES:
            self._check_topic()
        raise answered_with(code, operation=_OPERATION, object_name=str(self._where), offset=self.position)

    def _out_of_range(self) -> Chunk:
        earliest = list_offsets(self._client, {self._where: EARLIEST}, deadline=self._deadline)[self._where].offset
        if earliest > self.position:
            return empty_chunk(self.position, min(earliest, self._end), log_start_offset=earliest)
        if self._confirm("the log ends before"):
            raise self._truncated("it now ends before this offset")
        raise self._unavailable("the broker reports that its log ends before this offset")

    def _is_same_topic(self) -> bool:
        """True if the topic still has its id, so that it had it when the broker sent records by its name.

        TopicGoneError if it has another one, or none; False if the broker that was asked does not know it yet.
        """
        topic = self._client.metadata([self._where.topic], deadline=self._deadline).topics.get(self._where.topic)
        if topic is not None and topic.topic_id == self._topic_id:
            return True
        self._check_topic()
        self._wait_for("the id of the topic")
        return False

    def _check_topic(self) -> None:
        topic = self._client.metadata([self._where.topic], deadline=self._deadline).topics.get(self._where.topic)
        if topic is not None and topic.topic_id != self._topic_id:
            raise self._recreated()
        if topic is None and self._confirm("there is no such topic"):
            hint = "what was read before is valid; plan again"
            raise TopicGoneError("the topic was deleted", hint=hint, **self._place())

    def _recover(self, error: UnavailableError) -> None:
        self.abandon()
        self._client.forget(self._where.topic)
        if isinstance(error.__cause__, TimeoutError):
            # On a slow link a smaller response may arrive in time.
            self._fetch_bytes = max(self._fetch_bytes // 2, _FETCH_BYTES_MIN)
        self._check_patience(error)
        self._backoff.pause(self._deadline)

    def _suspect(self, error: CorruptDataError | UnsupportedFormatError) -> None:
        """Fetch once more after damage: damage from the network is gone then, damage in the log is not."""
        self.abandon()
        if self._suspected_at == self.position:
            error.operation = error.operation or _OPERATION
            error.object_name = str(self._where)
            error.offset = self.position if error.offset is None else error.offset
            raise error
        self._suspected_at = self.position

    def _wait_for(self, what: str) -> None:
        """The broker responds, but without what is needed."""
        self._waits_for = what
        self._check_patience(self._unavailable("nothing new arrived"))

    def _check_patience(self, error: UnavailableError) -> None:
        stop = self._client.stop
        if stop is not None and stop.is_set():
            raise StoppedError("stopped on request", hint="run it again", **self._place()) from error
        if self._deadline.passed:
            error.offset = self.position
            raise gave_up(error, f"{self._waits_for} of {self._where}", self._patience_s) from error

    def _confirm(self, what: str) -> bool:
        """Count one more report of this; whether it was repeated often enough to be true."""
        self._reports[what] = self._reports.get(what, 0) + 1
        return self._reports[what] >= _REPORTS_TO_CONFIRM

    def _unavailable(self, message: str) -> UnavailableError:
        return UnavailableError(message, **self._place())

    def _truncated(self, what: str) -> LogTruncatedError:
        hint = "compare epochs with the archive, and plan again"
        return LogTruncatedError(f"the log was truncated: {what}", hint=hint, **self._place())

    def _recreated(self) -> TopicGoneError:
        hint = "it is another topic now; plan again"
        return TopicGoneError("the topic was deleted and created again", hint=hint, **self._place())

    def _place(self) -> dict[str, Any]:
        return {"operation": _OPERATION, "object_name": str(self._where), "offset": self.position}


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallRange:
    """Offsets [start, end) of a partition, about `bytes_estimate` of them."""

    where: TopicPartition
    topic_id: UUID
    start: int
    end: int
    bytes_estimate: int
    floor: int | None = None
    """See `read_range`."""


def read_small_ranges(client: KafkaClient, ranges: Sequence[SmallRange]) -> Iterator[tuple[SmallRange, Chunk]]:
    """Yield the ranges that arrived whole, each as one chunk, in no particular order.

    A thousand quiet partitions would otherwise take a thousand round trips. This is the fast path only: a range that
    does not arrive whole, whose leader has moved, whose log starts within a batch, or whose bytes are damaged is left
    out, and `read_range` reads it with retries.
    """
    for node_id, asked in _by_leader(client, ranges).items():
        waiting = asked
        while waiting:
            answered = dict(_ask(client, node_id, waiting))
            for wanted, chunk in answered.items():
                if chunk is not None:
                    if client.seat is not None:
                        client.seat.count(chunk.data.size)
                    yield wanted, chunk
            if not answered or (client.stop is not None and client.stop.is_set()):
                break
            waiting = [pair for pair in waiting if pair[0] not in answered]


def _by_leader(client: KafkaClient, ranges: Iterable[SmallRange]) -> dict[int, list[tuple[SmallRange, int]]]:
    """Ranges by leader. A request can name a partition only once, so only its first range is included."""
    groups: dict[int, list[tuple[SmallRange, int]]] = defaultdict(list)
    named: set[TopicPartition] = set()
    for wanted in ranges:
        if wanted.where in named:
            continue
        named.add(wanted.where)
        try:
            leader = client.leader(wanted.where, deadline=Deadline.after(client.request_timeout_s))
        except (UnavailableError, UsageError):
            continue
        if leader.topic.topic_id == wanted.topic_id:
            groups[leader.node_id].append((wanted, leader.leader_epoch))
    return groups


def _ask(
    client: KafkaClient, node_id: int, asked: Iterable[tuple[SmallRange, int]]
) -> Iterator[tuple[SmallRange, Chunk | None]]:
    """The content of one response: a chunk, or None for a range to be read alone. Without a response, nothing."""
    wanted = [
        PartitionFetch(
            topic=small.where.topic,
            topic_id=small.topic_id,
            partition=small.where.partition,
            offset=small.start,
            leader_epoch=epoch,
            bytes_max=max(4 * small.bytes_estimate, _RANGE_BYTES_MIN),
        )
        for small, epoch in asked
    ]
    request = fetch_request(wanted, bytes_max=ANSWER_BYTES)
    limit = Deadline.after(client.request_timeout_s)
    try:
        connection = client.connection(node_id, deadline=limit)
        ticket = connection.send(request, limit)
        names = by_name(request)
        answer = read_answer(connection.receive(ticket, limit), names)
        known = None if names is None else client.metadata(sorted(names), deadline=limit).topics
    except (UnavailableError, CorruptDataError):
        return
    connection.throttle(answer.throttle_ms)
    for small, _ in asked:
        found = answer.partitions.get((small.topic_id, small.where.partition))
        now = None if known is None else known.get(small.where.topic)
        if known is not None and (now is None or now.topic_id != small.topic_id):
            yield small, None
        elif found is not None and (found.error_code or found.diverging or len(found.records)):
            yield small, _whole(small, found)


def _whole(wanted: SmallRange, found: FetchedPartition) -> Chunk | None:
    if found.error_code or found.diverging:
        return None
    try:
        headers = walk(found.records, check_crc=False)
        if not len(headers):
            return None
        selection = select(found, headers, wanted.start, wanted.end, floor=wanted.floor)
        if selection.end != wanted.end or may_begin_before(selection.headers, found.log_start_offset):
            return None
        return selection.checked(str(wanted.where))
    except (CorruptDataError, UnsupportedFormatError):
        return None
