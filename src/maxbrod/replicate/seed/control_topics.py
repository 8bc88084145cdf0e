"""Small topics through which instances talk to each other: reads all of a topic and then what is new, and appends.

Only committed records are read. The topics hold a record for each batch or segment, not for each record of the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.batch.transactions import committed_batches, from_fetch
from maxbrod.errors import MaxbrodError, RefusedError, TopicGoneError
from maxbrod.kafka.admin.topics import NewTopic, create_topics
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, list_offsets
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.produce.appends import Batch, Feed, stamped
from maxbrod.kafka.state.topics import read_configs
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition, now_ms

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.kafka.wire.metadata import Topic

POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"


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
