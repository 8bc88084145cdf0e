"""Appends the records of one source partition to its destination, together with the checkpoint.

Exactly once: a batch of records and its checkpoint are one transaction. Each partition has a transactional id. Opening
it fences the owner before, and the checkpoint is read only then. So no two instances ever append the same record,
however long one of them was stopped. Consumers must read committed records.

At least once, as the original does it: the records first, then the checkpoint. After a crash in between, the batch is
appended again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import number_array
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.errors import TopicGoneError, UsageError
from maxbrod.kafka.produce.appends import Batch, Feed, sequence_after, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import ProducerIdentity, new_producer_id
from maxbrod.kafka.produce.transactions import Transaction, add_partitions, begin, end
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import Codec, TopicPartition
from maxbrod.replicate.seed.control_topics import Checkpoints, TreeSource, checkpoint_partition, feed_of, record_batch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.metadata import Topic
    from maxbrod.layouts.parquet.events import Checkpoint

_COLUMNS: Final = ("timestamp_ms", "key", "value", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationSettings:
    checkpoint_topic: str
    group: str
    exactly_once: bool
    codec: Codec
    patience_s: float
    transaction_timeout_ms: int = 60_000


class Destination:
    """The destination of one source partition. Each call may come from another thread, with that thread's client."""

    def __init__(self, source: TreeSource, topic: str, settings: DestinationSettings) -> None:
        self.source = source
        self.where = TopicPartition(topic=topic, partition=source.partition)
        self._settings = settings
        self._transaction: Transaction | None = None
        self._identity: ProducerIdentity | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._topics: tuple[Topic, Topic] | None = None
        self._topic_id: UUID | None = None

    @property
    def is_open(self) -> bool:
        return self._identity is not None

    def open(self, client: KafkaClient, checkpoints: Checkpoints) -> int | None:
        """Take the partition over, then read how far it is. What the owner before has not committed is aborted."""
        settings = self._settings
        deadline = Deadline.after(settings.patience_s)
        target = self.demand(client.topic(self.where.topic, deadline=deadline))
        self._topics = target, client.topic(settings.checkpoint_topic, deadline=deadline)
        self._sequences = {}
        if settings.exactly_once:
            name = f"{settings.group}.{self.source.region}:{self.source.topic}:{self.source.partition}"
            self._transaction = begin(client, name, timeout_ms=settings.transaction_timeout_ms)
            self._identity = self._transaction.identity
        else:
            self._identity = new_producer_id(client, deadline=deadline)
        try:
            checkpoints.refresh(settled=settings.exactly_once)
        except BaseException:
            self.close()
            raise
        return checkpoints.offset(self.source)

    def demand(self, target: Topic | None) -> Topic:
        """The destination topic, as the cluster has it now. UsageError, TopicGoneError: it cannot be that."""
        name, partition = self.where.topic, self.where.partition
        if target is None:
            raise UsageError(
                "the destination topic does not exist",
                object_name=name,
                hint=f"create it with at least {partition + 1} partitions; or this user may not Describe it",
            )
        if partition not in target.partitions:
            raise UsageError(
                f"the destination has {len(target.partitions)} partitions, and the source has at least {partition + 1}",
                object_name=name,
                hint=f"kafka-topics --alter --topic {name} --partitions {partition + 1}",
            )
        if self._topic_id not in {None, target.topic_id}:
            raise TopicGoneError(
                "the destination topic was deleted and created again: it lacks what was produced before",
                object_name=name,
                hint="restart with another --checkpoint-topic to produce everything again, or with this one to go on",
            )
        self._topic_id = target.topic_id
        return target

    def close(self) -> None:
        """Forget the producer: the next append needs another `open`."""
        self._identity = self._transaction = None

    def append(self, client: KafkaClient, records: pa.RecordBatch, checkpoint: Checkpoint) -> None:
        """Append records and checkpoint. When this returns, both are durable; if it raises, `open` tells what is.

        ProducerFencedError: another instance has taken the partition over, or this one was stopped for longer than a
        transaction lasts.
        """
        try:
            if self._transaction is None:
                self._produce(client, self._records(records))
                self._produce(client, self._checkpoint(checkpoint))
            else:
                feeds = [*self._records(records), *self._checkpoint(checkpoint)]
                add_partitions(client, self._transaction, [feed.where for feed in feeds])
                self._produce(client, feeds)
                end(client, self._transaction, commit=True, patience_s=self._settings.patience_s)
        except BaseException:
            self.close()
            raise

    def _records(self, records: pa.RecordBatch) -> list[Feed]:
        """Offsets without holes, as a broker demands of a client, and create times whatever they were."""
        offsets = number_array(np.arange(records.num_rows, dtype=np.int64))
        columns = [offsets, *(records.column(name) for name in _COLUMNS)]
        data = encode(pa.RecordBatch.from_arrays(columns, names=["offset", *_COLUMNS]), codec=self._settings.codec)
        target, identity, transactional = self._opened()
        batches = stamped(
            data,
            walk(data),
            identity,
            first_sequence=self._sequences.get(self.where, 0),
            transactional=transactional,
        )
        first = records.column("offset")[0].as_py()
        appends = [Batch(batch.data, batch.count, first + batch.source_offset) for batch in batches]
        return [Feed(where=self.where, topic_id=target[0].topic_id, first_offset=None, appends=appends)]

    def _checkpoint(self, checkpoint: Checkpoint) -> list[Feed]:
        topics, identity, transactional = self._opened()
        partition = checkpoint_partition(checkpoint.key, len(topics[1].partitions))
        where = TopicPartition(topic=topics[1].name, partition=partition)
        batch = record_batch(checkpoint.key, checkpoint.encode())
        first = self._sequences.get(where, 0)
        return [feed_of(topics[1], partition, [batch], identity, first_sequence=first, transactional=transactional)]

    def _opened(self) -> tuple[tuple[Topic, Topic], ProducerIdentity, bool]:
        if self._topics is None or self._identity is None:
            raise RuntimeError("the destination is not open")
        return self._topics, self._identity, self._transaction is not None

    def _produce(self, client: KafkaClient, feeds: Sequence[Feed]) -> None:
        name = None if self._transaction is None else self._transaction.transactional_id
        for done in produce_all(client, feeds, transactional_id=name, patience_s=self._settings.patience_s):
            self._sequences[done.where] = sequence_after(self._sequences.get(done.where, 0), done.count)
