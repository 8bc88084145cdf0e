"""One broker's connection with several requests that append under way, answered in the order they were sent in.

A broker works on one request of a connection at a time, which keeps the batches of a partition in order; those that
wait behind it are on its side already.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafka.protocol.producer import ProduceRequest, ProduceResponse, WriteTxnMarkersRequest, WriteTxnMarkersResponse

from maxbrod.errors import CorruptDataError, UnavailableError
from maxbrod.kafka.appends import Batch
from maxbrod.kafka.produce_request import TOPIC_IDS_SINCE, RecordsTo, markers_body, produce_body
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maxbrod.kafka.append_queue import AppendQueue, Entry
    from maxbrod.kafka.connection import Connection
    from maxbrod.kafka.deadline import Deadline
    from maxbrod.kafka.producer_ids import ProducerIdentity

MARKERS_MAX: Final = 10_000
"""In one request: a broker took 0.5 s for so many."""


class Answer(NamedTuple):
    """What a broker says about one partition of a request."""

    code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    details: str | None = None


@dataclass(frozen=True, slots=True)
class Flight:
    """A request under way. `counts` says of holes how many offsets each asks to fill."""

    ticket: int
    version: int
    sent_at: float
    entries: Sequence[tuple[AppendQueue, Entry]]
    counts: Sequence[int] = ()


class Lane:
    def __init__(self, connection: Connection, node_id: int, *, in_flight_max: int, timeout_ms: int) -> None:
        self.connection = connection
        self.node_id = node_id
        self.flights: deque[Flight] = deque()
        self._in_flight_max = in_flight_max
        self._timeout_ms = timeout_ms

    @property
    def room(self) -> bool:
        """A login that is about to end is let run out: a new connection follows when all is answered."""
        return self.connection.usable and len(self.flights) < self._in_flight_max

    def send_batches(self, entries: Sequence[tuple[AppendQueue, Entry]], deadline: Deadline) -> None:
        version = self.connection.versions.choose(ProduceRequest)
        records = (
            RecordsTo(queue.where, queue.feed.topic_id, entry.append.data)
            for queue, entry in entries
            if isinstance(entry.append, Batch)
        )
        body = produce_body(records, version=version, timeout_ms=self._timeout_ms)
        ticket = self.connection.send_pieces(int(ProduceRequest.API_KEY), version, body, deadline)
        self.flights.append(Flight(ticket, version, time.monotonic(), entries))

    def send_holes(
        self,
        entries: Sequence[tuple[AppendQueue, Entry]],
        identity: ProducerIdentity,
        coordinator_epoch: int,
        deadline: Deadline,
    ) -> None:
        version = self.connection.versions.choose(WriteTxnMarkersRequest)
        share = max(1, MARKERS_MAX // len(entries))
        counts = [min(entry.append.count - entry.landed, share) for _, entry in entries]
        places = zip((queue.where for queue, _ in entries), counts, strict=True)
        body = markers_body(places, identity, version=version, coordinator_epoch=coordinator_epoch)
        ticket = self.connection.send_pieces(int(WriteTxnMarkersRequest.API_KEY), version, body, deadline)
        self.flights.append(Flight(ticket, version, time.monotonic(), entries, counts))

    def receive(self, deadline: Deadline) -> tuple[Flight, dict[TopicPartition, Answer]]:
        """The oldest request and its answer. UnavailableError where none came, or none that can be understood."""
        flight = self.flights[0]
        frame = self.connection.receive(flight.ticket, deadline)
        kind = WriteTxnMarkersResponse if flight.counts else ProduceResponse
        try:
            answer = self.connection.decode(frame, kind, flight.version)
        except CorruptDataError as error:
            self.connection.close()
            raise UnavailableError(error.message, object_name=self.connection.name) from error
        self.flights.popleft()
        names = {queue.feed.topic_id: queue.where.topic for queue, _ in flight.entries}
        read = _marker_answers(answer) if flight.counts else _produce_answers(answer, names, flight.version)
        return flight, dict(read)

    def close(self) -> None:
        self.connection.close()


def _produce_answers(
    answer: Any,  # noqa: ANN401 - kafka-python is untyped
    names: dict[Any, str],
    version: int,
) -> Iterator[tuple[TopicPartition, Answer]]:
    for topic in answer.responses:
        name = names.get(topic.topic_id, "") if version >= TOPIC_IDS_SINCE else topic.name
        for each in topic.partition_responses:
            where = TopicPartition(topic=name, partition=each.index)
            details = _details(each.error_message, each.record_errors) if each.error_code else None
            yield where, Answer(each.error_code, each.base_offset, each.log_append_time_ms, details)


def _details(message: str | None, records: Iterable[Any] | None) -> str | None:
    words = [message, *(f"record {each.batch_index}: {each.batch_index_error_message}" for each in records or ())]
    return "; ".join(filter(None, words[:3])) or None


def _marker_answers(answer: Any) -> Iterator[tuple[TopicPartition, Answer]]:  # noqa: ANN401 - kafka-python is untyped
    for marker in answer.markers:
        for topic in marker.topics:
            for each in topic.partitions:
                yield TopicPartition(topic=topic.name, partition=each.partition_index), Answer(each.error_code)
