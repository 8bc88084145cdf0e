"""The topic of segment events: what an instance hears about the tree, all instances hear.

An event counts when its record is durable; only then does memory know it, and only then may a notification be
acknowledged. Of several events about a segment the newest counts. Old events count like others: a segment that an
instance hears of late is no less there.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.produce.appends import sequence_after
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import ProducerIdentity, new_producer_id
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.parquet.events import EventSegment, SegmentEvent, decode_segment_event
from maxbrod.model import TopicPartition
from maxbrod.replicate.seed.control_topics import ControlTopic, feed_of, record_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maxbrod.kafka.wire.client import KafkaClient

_LOG: Final = logging.getLogger(__name__)


class EventPublisher:
    """Appends events to the topic. Belongs to one thread, with its client."""

    def __init__(self, client: KafkaClient, topic: str, *, patience_s: float) -> None:
        self._client = client
        self._topic = topic
        self._patience_s = patience_s
        self._identity: ProducerIdentity | None = None
        self._sequence = 0
        self._partition = 0

    def publish(self, events: Sequence[SegmentEvent]) -> None:
        """When this returns, the events are durable. If it raises, they may be, or some of them."""
        topic = self._client.topic(self._topic, deadline=Deadline.after(self._patience_s))
        if self._identity is None:
            self._identity, self._sequence = new_producer_id(self._client), 0
            self._partition = self._identity.producer_id % len(topic.partitions)
        records = [record_batch(None, event.encode()) for event in events]
        try:
            feed = feed_of(
                topic,
                self._partition,
                records,
                self._identity,
                first_sequence=self._sequence,
                transactional=False,
            )
            for done in produce_all(self._client, [feed], patience_s=self._patience_s):
                self._sequence = sequence_after(self._sequence, done.count)
        except BaseException:
            self._identity = None  # an unknown number of records has arrived
            raise

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(topic=self._topic, partition=self._partition)


class SegmentEvents:
    """What is known about segments by events. May be used by several threads."""

    def __init__(self, topic: ControlTopic, publisher: EventPublisher, *, retention_ns: int) -> None:
        self._topic = topic
        self._publisher = publisher
        self._retention_ns = retention_ns
        self._known: dict[EventSegment, int] = {}
        self._inbox: list[SegmentEvent] = []
        self._lock = threading.Lock()

    def keep(self, events: Iterable[SegmentEvent]) -> None:
        """Publish what is new. If that fails, nothing is known: the same events are new when they come again."""
        new = [event for event in events if self._is_new(event)]
        if new:
            self._publisher.publish(new)
            self._learn(new)

    def poll(self, *, now_ns: int) -> list[SegmentEvent]:
        """The events since the last call: those kept here, and those that others have published."""
        found: list[SegmentEvent] = []
        for record in self._topic.new_records():
            try:
                found.append(decode_segment_event(record.value or b""))
            except MaxbrodError as error:
                _LOG.warning("a record of %s is not a segment event: %s", self._topic.name, error)
        self._learn(found)
        with self._lock:
            events, self._inbox = self._inbox, []
            # A segment whose events have left the topic needs no memory: an event that comes again does no harm.
            oldest = now_ns - self._retention_ns
            if any(time_ns < oldest for time_ns in self._known.values()):
                self._known = {each: time_ns for each, time_ns in self._known.items() if time_ns >= oldest}
        return events

    def _is_new(self, event: SegmentEvent) -> bool:
        known = self._known.get(event.segment)
        return known is None or known < event.time_ns

    def _learn(self, events: Iterable[SegmentEvent]) -> None:
        with self._lock:
            for event in events:
                if self._is_new(event):
                    self._known[event.segment] = event.time_ns
                    self._inbox.append(event)
