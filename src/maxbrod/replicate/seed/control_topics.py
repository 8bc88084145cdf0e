"""Small topics through which instances talk to each other: reads all of a topic and then what is new, and appends.

Only committed records are read. The topics hold a record for each batch or segment, not for each record of the data.

Memory follows the topics, never the other way round: a checkpoint or a segment event counts when its record is durable,
and only then may a notification be acknowledged. Of several checkpoints of a partition the highest one counts, of
several events about a segment the newest, in whatever order they are read. An old event counts like others: a segment
that an instance hears of late is no less there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID
from zlib import crc32

import pyarrow as pa

from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.batch.transactions import committed_batches, from_fetch
from maxbrod.errors import MaxbrodError, RefusedError, TopicGoneError
from maxbrod.kafka.admin import NewTopic, create_topics
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, list_offsets
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.produce.appends import Batch, Feed, sequence_after, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import ProducerIdentity, new_producer_id
from maxbrod.kafka.state.topics import read_configs
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient, Topic
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.parquet.events import (
    Checkpoint,
    EventSegment,
    SegmentEvent,
    decode_checkpoint,
    decode_segment_event,
)
from maxbrod.model import TopicPartition, now_ms
from maxbrod.replicate.options import SourceTopic

POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"

_LOG: Final = logging.getLogger(__name__)


class KeyValue(NamedTuple):
    key: bytes | None
    value: bytes | None


class ControlTopic:
    """A reader of all partitions of a topic. It has one client, and belongs to one thread at a time."""

    def __init__(self, client: KafkaClient, name: str, *, patience_s: float = PATIENCE_S) -> None:
        self.name = name
        self._client = client
        self._patience_s = patience_s
        self._positions: dict[TopicPartition, int] = {}
        self._topic_id: UUID | None = None

    def new_records(self, *, settled: bool = False) -> list[KeyValue]:
        """The committed records since the last call, all of them at first.

        With `settled`, this waits for transactions that are open now: then nothing that was committed before the call
        is missing.
        """
        topic = self._topic()
        partitions = [TopicPartition(topic=self.name, partition=partition) for partition in topic.partitions]
        unknown = {where: EARLIEST for where in partitions if where not in self._positions}
        if unknown:
            starts = list_offsets(self._client, unknown, deadline=self._deadline())
            self._positions.update({where: each.offset for where, each in starts.items()})
        ends = list_offsets(
            self._client, dict.fromkeys(partitions, LATEST), read_committed=not settled, deadline=self._deadline()
        )
        return [record for where in partitions for record in self._read(where, ends[where].offset)]

    def _read(self, where: TopicPartition, end: int) -> list[KeyValue]:
        found: list[KeyValue] = []
        start = self._positions[where]
        if start < end:
            chunks = read_range(self._client, where, start, end, topic_id=self._topic_id, patience_s=self._patience_s)
            for chunk in chunks:
                aborted = from_fetch(chunk.data, chunk.headers, chunk.aborted) if len(chunk.headers) else ()
                headers = chunk.headers.take(committed_batches(chunk.headers, aborted))
                records = decode(chunk.data, headers, columns=["offset", "key", "value"], check_crc=False)
                rows = zip(*(records.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True)
                # A range that begins within a batch has the batch whole.
                found += [KeyValue(key, value) for offset, key, value in rows if start <= offset < end]
            self._positions[where] = end
        return found

    def _topic(self) -> Topic:
        self._client.forget(self.name)
        topic = self._client.topic(self.name, deadline=self._deadline())
        if self._topic_id not in {None, topic.topic_id}:
            raise TopicGoneError("the topic was deleted and created again", object_name=self.name, hint="start again")
        self._topic_id = topic.topic_id
        return topic

    def _deadline(self) -> Deadline:
        return Deadline.after(self._patience_s)


def record_batch(key: bytes | None, value: bytes) -> pa.RecordBatch:
    """One record of now."""
    columns = {
        "offset": pa.array([0], pa.int64()),
        "timestamp_ms": pa.array([now_ms()], pa.int64()),
        "key": pa.array([key], pa.binary()),
        "value": pa.array([value], pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


def feed_of(
    topic: Topic,
    partition: int,
    records: Sequence[pa.RecordBatch],
    identity: ProducerIdentity,
    *,
    first_sequence: int,
    transactional: bool,
) -> Feed:
    """Appends each of `records`, as a batch, to a partition that others may write to as well."""
    appends: list[Batch] = []
    for record in records:
        data = encode(record)
        first = first_sequence + sum(one.count for one in appends)
        appends += stamped(data, walk(data), identity, first_sequence=first, transactional=transactional)
    where = TopicPartition(topic=topic.name, partition=partition)
    return Feed(where=where, topic_id=topic.topic_id, first_offset=None, appends=appends)


def ensure_topic(client: KafkaClient, wanted: NewTopic, *, deadline: Deadline) -> None:
    """Create the topic unless it exists. RefusedError: it exists, and whether it is compacted is not as wanted."""
    if wanted.name not in client.metadata([wanted.name], deadline=deadline).topics:
        outcome = create_topics(client, [wanted], deadline=deadline)[wanted.name]
        if not outcome.done and wanted.name not in client.metadata([wanted.name], deadline=deadline).topics:
            raise MaxbrodError(f"the topic cannot be created: {outcome.reason}", object_name=wanted.name)
    found, _ = read_configs(client, [wanted.name], deadline=deadline)
    policy = found[wanted.name].effective.get(POLICY) if wanted.name in found else None
    if policy is not None and (policy == _COMPACT) != (wanted.configs[POLICY] == _COMPACT):
        raise RefusedError(
            f"the topic has {POLICY}={policy}, and {wanted.configs[POLICY]} is needed",
            object_name=wanted.name,
            hint=f"kafka-configs --alter --topic {wanted.name} --add-config {POLICY}={wanted.configs[POLICY]}",
        )


class TreeSource(NamedTuple):
    """A partition of a topic of a region."""

    region: str
    topic: str
    partition: int

    @property
    def of_topic(self) -> SourceTopic:
        return SourceTopic(self.region, self.topic)

    def __str__(self) -> str:
        return f"{self.region}/{self.topic}-{self.partition}"


def checkpoint_partition(key: bytes, partitions: int) -> int:
    """The partition of the checkpoint topic that librdkafka's default partitioner chooses for a key."""
    return crc32(key) % partitions


class Checkpoints:
    """The checkpoint topic: how far each partition of a source is at the destination. Safe for several threads."""

    def __init__(self, topic: ControlTopic) -> None:
        self._topic = topic
        self._reading = threading.Lock()
        self._offsets: dict[TreeSource, int] = {}
        self._changing = threading.Lock()

    def refresh(self, *, settled: bool = False) -> None:
        """Read what is new; with `settled`, also what transactions that are open now commit."""
        with self._reading:
            for record in self._topic.new_records(settled=settled):
                if not record.value:
                    continue  # a tombstone does not take a position back
                try:
                    checkpoint = decode_checkpoint(record.value)
                except MaxbrodError as error:
                    _LOG.warning("a record of %s is not a checkpoint: %s", self._topic.name, error)
                    continue
                self.saved(checkpoint)

    def saved(self, checkpoint: Checkpoint) -> None:
        """The record of this checkpoint is durable."""
        source = TreeSource(checkpoint.region, checkpoint.topic, checkpoint.partition)
        with self._changing:
            self._offsets[source] = max(checkpoint.offset, self._offsets.get(source, -1))

    def offset(self, source: TreeSource) -> int | None:
        """The last offset that is at the destination."""
        return self._offsets.get(source)


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
    """The topic of segment events: all instances hear what one hears about the tree. May be used by several threads."""

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
