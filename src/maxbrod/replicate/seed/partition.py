"""One partition of a source while an ingress runs: its worker, its destination, and the report of what happened.

Exactly once: a batch of records and its checkpoint are one transaction. Each partition has a transactional id. Opening
it fences the owner before, and the checkpoint is read only then. So no two instances ever append the same record,
however long one of them was stopped. Consumers must read committed records.

At least once, as the original does it: the records first, then the checkpoint. After a crash in between, the batch is
appended again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INCOMPLETE,
    CorruptDataError,
    MaxbrodError,
    ObjectNotFoundError,
    ProducerFencedError,
    TopicGoneError,
    UnsupportedFormatError,
    UsageError,
)
from maxbrod.kafka.produce.appends import Batch, Feed, sequence_after, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import ProducerIdentity, new_producer_id
from maxbrod.kafka.produce.transactions import Transaction, add_partitions, begin, end
from maxbrod.kafka.wire.client import KafkaClient, Topic
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.parquet.events import Checkpoint
from maxbrod.model import Codec, TopicPartition
from maxbrod.replicate.options import IngressTreeOptions
from maxbrod.replicate.seed import machine
from maxbrod.replicate.seed.control_topics import Checkpoints, TreeSource, checkpoint_partition, feed_of, record_batch
from maxbrod.replicate.seed.machine import Phase, Process, Settings, Worker
from maxbrod.work.report import Report

if TYPE_CHECKING:
    from maxbrod.replicate.seed.queue import QueueCounts
    from maxbrod.replicate.seed.tree import Tree

_LOG: Final = logging.getLogger(__name__)
_COLUMNS: Final = ("timestamp_ms", "key", "value", "headers")
_TRANSACTION_TIMEOUT_MS: Final = 60_000
_RETRY_FIRST_NS: Final = 1_000_000_000
_RETRY_MAX_NS: Final = 60_000_000_000
_STATES: Final = {
    Phase.INIT: "starting",
    Phase.IDLE: "in step",
    Phase.FIRST: "first segment",
    Phase.LATE: "late segment",
    Phase.PROCESS: "catching up",
}


@dataclass(slots=True, kw_only=True)
class TreePartition:
    """The state of a partition, and what this process has done for it."""

    region: str
    topic: str
    partition: int
    destination: str
    state: str = "starting"
    """`starting`, `first segment`, `catching up`, `in step`, `late segment`, `standby` or `faulted`."""
    fault: str | None = None
    checkpoint: int | None = None
    """The last source offset at the destination."""
    segments_waiting: int = 0
    segments_read: int = 0
    records: int = 0
    lost: tuple[tuple[int, int], ...] = ()
    """Ranges of offsets, both inclusive, that were given up, or that the source had deleted."""
    deleted: tuple[tuple[int, int], ...] = ()
    """Those of `lost` that the source had deleted before egress read them."""
    lag_ms: int | None = None
    """How old the oldest record of the last batch was when it was produced."""
    lag_offsets: int | None = None
    """How many offsets the source had, when its egress last said so, and the destination lacks; None: unknown."""
    checkpoints_saved: int = 0
    unreadable: int = 0
    """Attempts to read a segment that was gone or damaged."""
    faults: int = 0
    """Attempts that a broker or the store did not answer, or refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport(Report):
    published: ClassVar = ("records", "exit_code")
    archive: str
    delivery: str
    started_at_ms: int
    finished_at_ms: int
    partitions: tuple[TreePartition, ...]
    notifications: QueueCounts | None = None
    unmatched: tuple[str, ...] = ()
    """Sources of which the tree has no segment: nothing of them was produced."""

    @property
    def records(self) -> int:
        return sum(partition.records for partition in self.partitions)

    @property
    def exit_code(self) -> int:
        """Offsets that are lost or still waited for, and a source that the tree does not have, are incomplete."""
        if any(partition.fault is not None for partition in self.partitions):
            return EXIT_FAILED
        behind = {"first segment", "late segment", "standby"}
        if self.unmatched or any(partition.lost or partition.state in behind for partition in self.partitions):
            return EXIT_INCOMPLETE
        return EXIT_DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """The outcome of work on a segment: its last offset, and the error that ended it early, if any."""

    checkpoint: int | None
    error: MaxbrodError | None = None
    whole: bool = False


class Destination:
    """The destination of one source partition. Each call may come from another thread, with that thread's client."""

    def __init__(self, source: TreeSource, topic: str, options: IngressTreeOptions, *, patience_s: float) -> None:
        self.source = source
        self.where = TopicPartition(topic=topic, partition=source.partition)
        self._options, self._patience_s = options, patience_s
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
        options, deadline = self._options, Deadline.after(self._patience_s)
        exactly_once = options.delivery == "exactly-once"
        target = self.demand(client.topic(self.where.topic, deadline=deadline))
        self._topics = target, client.topic(options.checkpoint_topic, deadline=deadline)
        self._sequences = {}
        if exactly_once:
            name = f"{options.group}.{self.source.region}:{self.source.topic}:{self.source.partition}"
            self._transaction = begin(client, name, timeout_ms=_TRANSACTION_TIMEOUT_MS)
            self._identity = self._transaction.identity
        else:
            self._identity = new_producer_id(client, deadline=deadline)
        try:
            checkpoints.refresh(settled=exactly_once)
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
                end(client, self._transaction, commit=True, patience_s=self._patience_s)
        except BaseException:
            self.close()
            raise

    def _records(self, records: pa.RecordBatch) -> list[Feed]:
        """Offsets without holes, as a broker demands of a client, and create times whatever they were."""
        offsets = number_array(np.arange(records.num_rows, dtype=np.int64))
        columns = [offsets, *(records.column(name) for name in _COLUMNS)]
        named = pa.RecordBatch.from_arrays(columns, names=["offset", *_COLUMNS])
        data = encode(named, codec=Codec[self._options.codec.upper()])
        target, identity, transactional = self._opened()
        sequence = self._sequences.get(self.where, 0)
        batches = stamped(data, walk(data), identity, first_sequence=sequence, transactional=transactional)
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
        for done in produce_all(client, feeds, transactional_id=name, patience_s=self._patience_s):
            self._sequences[done.where] = sequence_after(self._sequences.get(done.where, 0), done.count)


@dataclass(slots=True)
class FollowedPartition:
    source: TreeSource
    destination: Destination
    worker: Worker
    due_ns: int = 0
    running: Future[PartitionOutcome] | None = None
    process: Process | None = None
    waits: bool = False
    """True if there was nothing to do when it was last asked."""
    fault: str | None = None
    unreachable: str | None = None
    """Why the tree or the checkpoints could not be read."""
    absent: str | None = None
    """Why the destination topic cannot be appended to, also while there is nothing to append."""
    gone: bool = False
    """The destination topic is not the one it was: nothing is appended any more."""
    failures: int = 0
    standby_until_ns: int = 0
    """When a partition that another instance has taken over is taken back, unless the other makes progress."""
    told: TreePartition = field(init=False)
    """What was done so far."""

    def __post_init__(self) -> None:
        region, topic, partition = self.source
        target = self.destination.where.topic
        self.told = TreePartition(region=region, topic=topic, partition=partition, destination=target)

    @property
    def settled(self) -> bool:
        """True if nothing can be done now but wait."""
        stuck = self.fault is not None or self.unreachable is not None or bool(self.standby_until_ns)
        begun = self.worker.phase is not Phase.INIT
        return self.running is None and (stuck or (begun and self.waits))

    def status(self) -> TreePartition:
        waiting = sum(segment.end >= self.worker.next for segment in self.worker.listing.segments)
        state = _STATES[self.worker.phase]
        if state == "in step" and waiting:
            state = "late segment" if self.worker.failures else "catching up"
        if self.standby_until_ns:
            state = "standby"
        fault, end = self.fault or self.unreachable or self.absent, self.worker.listing.source_end
        return replace(
            self.told,
            state="faulted" if fault is not None else state,
            fault=fault,
            checkpoint=self.worker.checkpoint,
            segments_waiting=waiting,
            lag_offsets=None if end is None else max(end - self.worker.next, 0),
        )

    def work(
        self,
        process: Process,
        client: KafkaClient,
        tree: Tree,
        checkpoints: Checkpoints,
        *,
        records_max: int,
        clock_ns: Callable[[], int],
        stop: threading.Event,
    ) -> PartitionOutcome:
        """Produce the records of a segment. Called in a thread of its own, one at a time for each partition."""
        checkpoint = self.worker.checkpoint
        try:
            if not self.destination.is_open:
                found = self.destination.open(client, checkpoints)
                if found is not None and (checkpoint is None or found > checkpoint):
                    return PartitionOutcome(checkpoint=found)  # another instance came further: choose again
            batches = tree.batches(self.source, process.segment, process.first, records_max=records_max)
            for batch in batches:
                if stop.is_set():
                    return PartitionOutcome(checkpoint=checkpoint)
                offsets = number_column(batch.column("offset"))
                reached = Checkpoint(
                    region=self.source.region,
                    topic=self.source.topic,
                    partition=self.source.partition,
                    offset=int(offsets[-1]),
                    time_ns=clock_ns(),
                )
                self.destination.append(client, batch, reached)
                checkpoints.saved(reached)
                checkpoint = reached.offset
                self.told.checkpoints_saved += 1
                self.told.records += batch.num_rows
                oldest_ms = int(np.min(number_column(batch.column("timestamp_ms"))))
                self.told.lag_ms = max(0, clock_ns() // 1_000_000 - oldest_ms)
        except MaxbrodError as error:
            return PartitionOutcome(checkpoint=checkpoint, error=error)
        # A segment ends at its name's end, also if its last records were removed.
        return PartitionOutcome(checkpoint=process.segment.end, whole=True)

    def settle(self, outcome: PartitionOutcome, now_ns: int, settings: Settings, *, takeover_ns: int) -> None:
        """Take the outcome of `work` into account."""
        process, error = self.process, outcome.error
        self.running = self.process = None
        self.waits = False
        if process is None:
            return
        progress = outcome.checkpoint is not None and outcome.checkpoint >= process.first
        if progress and process.lost is not None:
            self.told.lost += (process.lost,)
            if process.deleted:
                self.told.deleted += (process.lost,)
            why = ": the source had deleted them before egress read them" if process.deleted else ""
            _LOG.warning("%s: lost the offsets %d to %d%s", self.source, *process.lost, why)
        self.failures = 0 if progress or error is None else self.failures + 1
        self.fault, self.due_ns = None, now_ns
        if outcome.whole and outcome.checkpoint is not None:
            self.told.segments_read += 1
            self.worker = machine.processed(self.worker, outcome.checkpoint)
        elif isinstance(error, ObjectNotFoundError | CorruptDataError | UnsupportedFormatError):
            self.told.unreadable += 1
            _LOG.warning("%s cannot be read: %s", process.segment.path, error)
            self.worker = machine.unreadable(self.worker, process.segment, outcome.checkpoint, now_ns, settings)
        else:
            self.worker = machine.interrupted(self.worker, outcome.checkpoint)
            self._fail(error, now_ns, takeover_ns)

    def _fail(self, error: MaxbrodError | None, now_ns: int, takeover_ns: int) -> None:
        if error is None:
            return
        if isinstance(error, ProducerFencedError):
            _LOG.warning("%s: another instance has taken it over (%s)", self.source, error)
            self.standby_until_ns = now_ns + takeover_ns
            return
        self.fault = str(error)
        self.told.faults += 1
        self.gone = isinstance(error, TopicGoneError)
        wait_ns = min(_RETRY_FIRST_NS << min(self.failures, 10), _RETRY_MAX_NS)
        self.due_ns = now_ns + wait_ns
        _LOG.warning("%s: %s", self.source, error)
