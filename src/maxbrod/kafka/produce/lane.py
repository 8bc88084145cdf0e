"""One connection to a broker with several produce requests in flight, answered in the order sent.

A broker handles one request of a connection at a time, which keeps the batches of a partition in order; the next ones
have already arrived there. Requests that are put together are sent by one system call.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.producer import ProduceRequest, ProduceResponse, WriteTxnMarkersRequest, WriteTxnMarkersResponse

from maxbrod.errors import CorruptDataError, UnavailableError
from maxbrod.kafka.produce.appends import Batch
from maxbrod.kafka.produce.request import (
    TOPIC_IDS_SINCE,
    TRANSACTIONS_MAX,
    Answer,
    RecordsTo,
    markers_body,
    produce_body,
    read_produce_answer,
)
from maxbrod.kafka.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from maxbrod.kafka.produce.append_queue import AppendQueue, QueuedAppend
    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.kafka.wire.connection import Connection, Message
    from maxbrod.kafka.wire.deadline import Deadline

MARKERS_MAX: Final = 10_000
"""The limit of one request. A broker took 0.5 s for this many."""


_UNANSWERED: Final = Answer(Code.NETWORK_EXCEPTION)
_PRODUCE: Final = int(ProduceRequest.API_KEY)
_MARKERS: Final = int(WriteTxnMarkersRequest.API_KEY)


@dataclass(frozen=True, slots=True)
class Flight:
    """A request in flight. For holes, `counts` has the number of offsets that each entry asks to fill."""

    ticket: int
    version: int
    sent_at: float
    entries: Sequence[tuple[AppendQueue, QueuedAppend]]
    counts: Sequence[int] = ()

    def asked(self, place: int) -> int:
        return self.counts[place] if self.counts else 0


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
        """True if a response has already arrived."""
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

    def flush(self, deadline: Deadline) -> None:
        self.connection.flush(deadline)

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

    def close(self) -> None:
        self.connection.close()


def _produce_answers(
    answer: Message,
    version: int,
) -> Iterator[tuple[tuple[bytes, int], Answer]]:
    for topic in answer.responses:
        name = topic.topic_id.bytes if version >= TOPIC_IDS_SINCE else topic.name.encode()
        for response in topic.partition_responses:
            details = _details(response.error_message, response.record_errors) if response.error_code else None
            yield (
                (name, response.index),
                Answer(response.error_code, response.base_offset, response.log_append_time_ms, details),
            )


def _details(message: str | None, records: Iterable[Any] | None) -> str | None:
    words = [message, *(f"record {record.batch_index}: {record.batch_index_error_message}" for record in records or ())]
    return "; ".join(filter(None, words[:3])) or None


def _marker_answers(
    answer: Message,
) -> Iterator[tuple[tuple[bytes, int], Answer]]:
    for marker in answer.markers:
        for topic in marker.topics:
            for partition in topic.partitions:
                yield (topic.name.encode(), partition.partition_index), Answer(partition.error_code)
