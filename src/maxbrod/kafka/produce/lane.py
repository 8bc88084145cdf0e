"""One connection to a broker with several produce requests in flight, answered in the order sent, and their bytes.

A broker handles one request of a connection at a time, which keeps the batches of a partition in order; the next ones
have already arrived there. Requests that are put together are sent by one system call.

Produce and WriteTxnMarkers requests, and Produce responses, are encoded and decoded by hand. kafka-python would join
all records into one frame, and they are most of the bytes; and ten thousand equal markers are one marker, repeated. Its
decoder of responses took a fifth of the processor time of producing. It still decodes the few responses with more than
codes and offsets, such as which record was refused and why. Produce versions 9 to 13 and WriteTxnMarkers versions 1 and
2 have this layout.
"""

from __future__ import annotations

import struct
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import numpy as np
from kafka.protocol.producer import ProduceRequest, ProduceResponse, WriteTxnMarkersRequest, WriteTxnMarkersResponse
from numpy.typing import NDArray

from maxbrod.errors import CorruptDataError, UnavailableError
from maxbrod.kafka.produce.appends import Batch
from maxbrod.kafka.wire.connection import Connection, Message, Piece, compact_length, read_compact_length
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from maxbrod.kafka.produce.append_queue import AppendQueue, QueuedAppend
    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.kafka.wire.deadline import Deadline

TOPIC_IDS_SINCE: Final = 13
"""The first version of Produce that names topics by id."""
TRANSACTIONS_MAX: Final = 11
"""The last version of Produce in which the producer itself adds partitions to its transaction."""
TRANSACTION_VERSION_SINCE: Final = 2
"""The first version of WriteTxnMarkers in which a marker has the version of its transaction."""
_ALL_IN_SYNC: Final = -1
_START: Final = struct.Struct(">hi")  # acks, timeout
_INDEX: Final = struct.Struct(">i")
_PRODUCER: Final = struct.Struct(">qhb")  # producer id, producer epoch, whether it is a commit
_NO_TAGS: Final = b"\0"
_NULL: Final = b"\0"

_ANSWER_START: Final = 5  # after the correlation id, and no tagged fields
_TOPIC_ID_BYTES: Final = 16
# Index, code, base offset, log-append time, log start; then, one byte each where there are none: errors of single
# records, a message, tagged fields (a new leader).
_ANSWER_PARTITION: Final = struct.Struct(">ihqq8xBBB")
_NO_RECORD_ERRORS: Final = 1  # an empty list, which is not the same as none
_ANSWER_END: Final = struct.Struct(">iB")  # throttling, and no tagged fields
MARKERS_MAX: Final = 10_000
"""The limit of one request. A broker took 0.5 s for this many."""

_PRODUCE: Final = int(ProduceRequest.API_KEY)
_MARKERS: Final = int(WriteTxnMarkersRequest.API_KEY)


class Answer(NamedTuple):
    """The response for one partition of a request."""

    code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    details: str | None = None


class ProduceAnswer(NamedTuple):
    """Answers by topic (the bytes of its id or its name, depending on the version) and partition."""

    throttle_ms: int
    partitions: dict[tuple[bytes, int], Answer]


_UNANSWERED: Final = Answer(Code.NETWORK_EXCEPTION)


@dataclass(frozen=True, slots=True)
class Flight:
    """A request in flight. For holes, `counts` has the number of offsets that each entry asks to fill."""

    ticket: int
    version: int
    sent_at: float
    entries: Sequence[tuple[AppendQueue, QueuedAppend]]
    counts: Sequence[int] = ()


class Lane:
    def __init__(
        self,
        connection: Connection,
        node_id: int,
        *,
        in_flight_max: int,
        timeout_ms: int,
        transactional_id: str | None = None,
    ) -> None:
        self.connection = connection
        self.node_id = node_id
        self.flights: deque[Flight] = deque()
        self._in_flight_max = in_flight_max
        self._timeout_ms = timeout_ms
        self._transactional_id = transactional_id
        newest = connection.versions.choose(ProduceRequest)
        self._produce_version = newest if transactional_id is None else min(newest, TRANSACTIONS_MAX)

    @property
    def room(self) -> bool:
        """True if another request may be sent. Before a login expires, the connection drains and is then replaced."""
        return self.connection.usable and len(self.flights) < self._in_flight_max

    @property
    def at_hand(self) -> bool:
        return bool(self.flights) and self.connection.at_hand

    def put_batches(self, entries: Sequence[tuple[AppendQueue, QueuedAppend]], deadline: Deadline) -> None:
        """Add a request with one batch for each partition. `flush` sends it."""
        version = self._produce_version
        records = [
            RecordsTo(queue.where, queue.feed.topic_id, entry.append.data)
            for queue, entry in entries
            if isinstance(entry.append, Batch)
        ]
        body = produce_body(
            records, version=version, timeout_ms=self._timeout_ms, transactional_id=self._transactional_id
        )
        ticket = self.connection.put_pieces(_PRODUCE, version, body, deadline)
        self.flights.append(Flight(ticket, version, time.monotonic(), entries))

    def put_holes(
        self,
        entries: Sequence[tuple[AppendQueue, QueuedAppend]],
        identity: ProducerIdentity,
        coordinator_epoch: int,
        deadline: Deadline,
    ) -> None:
        version = self.connection.versions.choose(WriteTxnMarkersRequest)
        share = max(1, MARKERS_MAX // len(entries))
        # The first marker fences: what it has kept out is known only after it.
        counts = [min(entry.append.count - entry.landed, share if queue.fenced else 1) for queue, entry in entries]
        places = zip((queue.where for queue, _ in entries), counts, strict=True)
        body = markers_body(places, identity, version=version, coordinator_epoch=coordinator_epoch)
        ticket = self.connection.put_pieces(_MARKERS, version, body, deadline)
        self.flights.append(Flight(ticket, version, time.monotonic(), entries, counts))

    def receive(self, deadline: Deadline) -> tuple[Flight, list[Answer]]:
        """The oldest request, and the answer for each of its entries.

        UnavailableError if no response arrives, or none that can be decoded.
        """
        flight = self.flights[0]
        frame = self.connection.receive(flight.ticket, deadline)
        try:
            found = self._read(flight, frame)
        except CorruptDataError as error:
            self.connection.close()
            raise UnavailableError(error.message, object_name=self.connection.name) from error
        self.flights.popleft()
        by_id = not flight.counts and flight.version >= TOPIC_IDS_SINCE
        return flight, [
            found.get((queue.topic_id if by_id else queue.topic, queue.where.partition), _UNANSWERED)
            for queue, _ in flight.entries
        ]

    def _read(self, flight: Flight, frame: NDArray[np.uint8]) -> dict[tuple[bytes, int], Answer]:
        if flight.counts:
            return dict(_marker_answers(self.connection.decode(frame, WriteTxnMarkersResponse, flight.version)))
        quick = read_produce_answer(frame, flight.version)
        if quick is not None:
            self.connection.throttle(quick.throttle_ms)
            return quick.partitions
        return dict(_produce_answers(self.connection.decode(frame, ProduceResponse, flight.version), flight.version))


class RecordsTo(NamedTuple):
    """One batch for one partition. A broker refuses a second one for it in the same request."""

    where: TopicPartition
    topic_id: UUID
    records: NDArray[np.uint8]


def produce_body(
    entries: Iterable[RecordsTo], *, version: int, timeout_ms: int, transactional_id: str | None = None
) -> list[Piece]:
    """A request to be acknowledged by all in-sync replicas. The records are pieces of their own, uncopied."""
    topics: dict[int, list[RecordsTo]] = defaultdict(list)
    for entry in entries:
        topics[entry.topic_id.int].append(entry)
    pieces: list[Piece] = []
    small = _NULL if transactional_id is None else _string(transactional_id)
    small += _START.pack(_ALL_IN_SYNC, timeout_ms) + compact_length(len(topics))
    for topic in topics.values():
        where, topic_id, _ = topic[0]
        small += (topic_id.bytes if version >= TOPIC_IDS_SINCE else _string(where.topic)) + compact_length(len(topic))
        for where, _, records in topic:
            pieces.append(small + _INDEX.pack(where.partition) + compact_length(len(records)))
            pieces.append(records)
            small = _NO_TAGS
        small += _NO_TAGS
    return [*pieces, small + _NO_TAGS]


def markers_body(
    counts: Iterable[tuple[TopicPartition, int]], identity: ProducerIdentity, *, version: int, coordinator_epoch: int
) -> list[Piece]:
    """A request for this many commit markers in each partition, of a producer without records there."""
    markers: list[Piece] = []
    total = 0
    end = _INDEX.pack(coordinator_epoch) + (b"\0" if version >= TRANSACTION_VERSION_SINCE else b"") + _NO_TAGS
    producer = _PRODUCER.pack(identity.producer_id, identity.epoch, 1)
    for where, count in counts:
        partitions = compact_length(1) + _INDEX.pack(where.partition)
        markers.append((producer + compact_length(1) + _string(where.topic) + partitions + _NO_TAGS + end) * count)
        total += count
    return [compact_length(total), *markers, _NO_TAGS]


def _string(text: str) -> bytes:
    encoded = text.encode()
    return compact_length(len(encoded)) + encoded


def read_produce_answer(frame: NDArray[np.uint8], version: int) -> ProduceAnswer | None:
    """Read a response of versions 9 to 13 from its correlation id on. None if only kafka-python can decode it."""
    try:
        return _read_answer(frame.tobytes(), version)
    except (struct.error, IndexError):
        return None


def _read_answer(data: bytes, version: int) -> ProduceAnswer | None:
    if data[_ANSWER_START - 1]:
        return None
    partitions: dict[tuple[bytes, int], Answer] = {}
    topics, place = read_compact_length(data, _ANSWER_START)
    for _ in range(topics):
        size = _TOPIC_ID_BYTES
        if version < TOPIC_IDS_SINCE:
            size, place = read_compact_length(data, place)
        topic = data[place : place + size]
        count, place = read_compact_length(data, place + size)
        for _ in range(count):
            index, code, base_offset, time_ms, record_errors, message, tags = _ANSWER_PARTITION.unpack_from(data, place)
            if record_errors != _NO_RECORD_ERRORS or message or tags:
                return None
            partitions[topic, index] = Answer(code, base_offset, time_ms)
            place += _ANSWER_PARTITION.size
        if data[place]:
            return None
        place += 1
    throttle_ms, tags = _ANSWER_END.unpack_from(data, place)
    return None if tags or place + _ANSWER_END.size != len(data) else ProduceAnswer(throttle_ms, partitions)


def _produce_answers(answer: Message, version: int) -> Iterator[tuple[tuple[bytes, int], Answer]]:
    for topic in answer.responses:
        name = topic.topic_id.bytes if version >= TOPIC_IDS_SINCE else topic.name.encode()
        for response in topic.partition_responses:
            words = [
                response.error_message,
                *(f"record {one.batch_index}: {one.batch_index_error_message}" for one in response.record_errors or ()),
            ]
            details = "; ".join(filter(None, words[:3])) or None if response.error_code else None
            found = Answer(response.error_code, response.base_offset, response.log_append_time_ms, details)
            yield (name, response.index), found


def _marker_answers(answer: Message) -> Iterator[tuple[tuple[bytes, int], Answer]]:
    for marker in answer.markers:
        for topic in marker.topics:
            for partition in topic.partitions:
                yield (topic.name.encode(), partition.partition_index), Answer(partition.error_code)
