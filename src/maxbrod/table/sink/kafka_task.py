"""One attempt of a task: writes its rows in one transaction, which stays open when it returns.

The driver decides whether the records become visible. An attempt that fails aborts its transaction if it can. If its
process was killed, the driver aborts the transaction with the next decision.

Transactional ids are reused from write to write, so that a cluster has few of them. Two attempts must never use one id
while the outcome of either is open: the later one would abort what the earlier one wrote. So an id belongs to one
process, which runs one attempt at a time, and is used once in a write. When the next write of the same sink begins, all
transactions of earlier decisions have ended.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.encode import BATCH_BYTES_MAX
from maxbrod.batch.hashes import partition_for
from maxbrod.batch.headers import BatchHeaders
from maxbrod.batch.rewrite import encode_shared
from maxbrod.errors import MaxbrodError, RefusedError, UnavailableError, UsageError
from maxbrod.kafka.admin import NewTopic, create_topics
from maxbrod.kafka.produce.appends import Batch, Feed, sequence_after, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.transactions import Transaction, add_partitions, begin, end, longest_timeout_ms
from maxbrod.kafka.state.topics import read_configs
from maxbrod.kafka.wire.client import KafkaClient, Topic, retry
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.model import Codec, TopicPartition
from maxbrod.table.sink.input import KafkaSinkOptions, NewTopics, SinkRows, to_rows
from maxbrod.table.sink.kafka_decisions import Filled

_ABORT_PATIENCE_S = 10.0
_LAST_USED: Final[dict[tuple[int, str], dict[str, str]]] = {}
"""By process (a fork must not inherit any) and prefix: the ids, and the write that used each last."""

PORTION_BYTES: Final = 16 << 20
"""About how much is encoded at once. With many partitions, more makes larger batches."""
_TOPIC_STRIDE: Final = 1 << 32

_PATIENCE_S: Final = 60.0


def write_attempt(
    options: KafkaSinkOptions, ids: tuple[str, str], task: int, batches: Iterable[pa.RecordBatch]
) -> Filled | None:
    """Write all rows of a task, acknowledged by all in-sync replicas. None: there are no rows.

    `ids` are the prefix of transactional ids, which is the sink's own, and the write.
    """
    with KafkaClient(options.kafka) as client:
        filling = _Filling(client, options, ids, task)
        try:
            for portion in portions(batches):
                filling.write(portion)
        except BaseException:
            filling.give_up()
            raise
        return filling.filled()


class _Filling:
    def __init__(self, client: KafkaClient, options: KafkaSinkOptions, ids: tuple[str, str], task: int) -> None:
        self._client, self._options, self._ids, self._task = client, options, ids, task
        self._targets = SinkTopics(client, options.new_topics)
        self._transaction: Transaction | None = None
        self._records: dict[TopicPartition, int] = defaultdict(int)
        self._rows = 0

    def filled(self) -> Filled | None:
        return None if self._transaction is None else Filled(transaction=self._transaction, records=dict(self._records))

    def give_up(self) -> None:
        """Abort the transaction. If that fails, the task's own error matters more."""
        if self._transaction is not None:
            with suppress(MaxbrodError):
                end(self._client, self._transaction, commit=False, patience_s=_ABORT_PATIENCE_S)

    def write(self, portion: pa.RecordBatch) -> None:
        rows = to_rows(portion, topic=self._options.topic, now_ms=time.time_ns() // 1_000_000)
        if not len(rows):
            return
        targets = self._targets.find(rows.topic.dictionary.to_pylist())
        shares = shared_out(rows, targets, first_row=self._rows, task=self._task, codec=self._options.codec)
        transaction = self._begun()
        new = [share.where for share in shares if share.where not in self._records]
        if new:
            add_partitions(self._client, transaction, new)
        feeds = [self._feed(share, transaction) for share in shares]
        for done in produce_all(self._client, feeds, transactional_id=transaction.transactional_id):
            self._records[done.where] += done.count
        self._rows += len(rows)

    def _begun(self) -> Transaction:
        if self._transaction is None:
            timeout_ms = self._options.timeout_ms or longest_timeout_ms(self._client)
            self._transaction = begin(self._client, reserve_id(*self._ids), timeout_ms=timeout_ms)
        return self._transaction

    def _feed(self, share: PartitionBatches, transaction: Transaction) -> Feed:
        batches = stamped(
            share.data,
            share.headers,
            transaction.identity,
            # Everything written before is acknowledged, so the next sequence number follows from the number of records.
            first_sequence=sequence_after(0, self._records.get(share.where, 0)),
            transactional=True,
        )
        named = zip(batches, share.source.tolist(), strict=True)
        appends = [Batch(batch.data, batch.count, source) for batch, source in named]
        return Feed(where=share.where, topic_id=share.target.topic_id, first_offset=None, appends=appends)


def reserve_id(prefix: str, write: str) -> str:
    """A transactional id that no other attempt uses. `write` identifies the attempts that one decision may name."""
    mine = _LAST_USED.setdefault((os.getpid(), prefix), {})
    free = next((name for name, last in mine.items() if last != write), None)
    chosen = free or f"{prefix}{uuid4().hex[:16]}"
    mine[chosen] = write
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBatches:
    """Encoded batches for one partition; `data` is shared with others. `source` names the row of each, for errors."""

    target: SinkTopic
    where: TopicPartition
    data: NDArray[np.uint8]
    headers: BatchHeaders
    source: NDArray[np.int64]

    @property
    def records(self) -> int:
        return int(self.headers["count"].sum())


def portions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about PORTION_BYTES, each contiguous."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        rows = max(1, int(batch.num_rows * PORTION_BYTES / max(batch.nbytes, 1)))
        for first in range(0, batch.num_rows, rows):
            waiting.append(batch.slice(first, rows))
            size += waiting[-1].nbytes
            if size >= PORTION_BYTES:
                yield from _joined(waiting)
                waiting, size = [], 0
    if waiting:
        yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) == 1:
        return batches
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())


def shared_out(
    rows: SinkRows, targets: Sequence[SinkTopic], *, first_row: int, task: int, codec: Codec
) -> list[PartitionBatches]:
    """`targets` are the topics of the rows' dictionary, `first_row` is the number of rows that the task had before."""
    topic = number_column(rows.topic.indices).astype(np.int64)
    partition = _partitions(rows, topic, targets, first_row=first_row, task=task)
    place = topic * _TOPIC_STRIDE + partition
    order = np.argsort(place, kind="stable")
    place = place[order]
    source = np.arange(first_row, first_row + len(rows))
    if "offset" in rows.records.schema.names:
        source = number_column(rows.records.column("offset"))
    limit = min(target.batch_bytes_max for target in targets)
    shared = encode_shared(_ordered(rows.records, order), place, codec=codec, batch_bytes_max=limit)
    of_batch = place[shared.row]
    edges = np.append(np.flatnonzero(np.diff(of_batch, prepend=-1)), len(of_batch)).tolist()
    found = []
    for first, last in pairwise(edges):
        target = targets[of_batch[first] // _TOPIC_STRIDE]
        found.append(
            PartitionBatches(
                target=target,
                where=TopicPartition(topic=target.topic, partition=int(of_batch[first] % _TOPIC_STRIDE)),
                data=shared.data,
                headers=shared.headers.take(slice(first, last)),
                source=source[order[shared.row[first:last]]],
            )
        )
    return found


def _ordered(records: pa.RecordBatch, order: NDArray[np.int64]) -> pa.RecordBatch:
    chosen = [records.column(name) for name in ("timestamp_ms", "key", "value", "headers")]
    if (np.diff(order) != 1).any():
        chosen = [column.take(number_array(order)) for column in chosen]
    numbered = number_array(np.arange(len(order), dtype=np.int64))
    return pa.RecordBatch.from_arrays([numbered, *chosen], names=["offset", "timestamp_ms", "key", "value", "headers"])


def _partitions(
    rows: SinkRows, topic: NDArray[np.int64], targets: Sequence[SinkTopic], *, first_row: int, task: int
) -> NDArray[np.int64]:
    chosen = np.full(len(rows), -1, np.int64) if rows.partition is None else rows.partition.astype(np.int64)
    open_rows = chosen == -1
    counts = np.array([target.partitions for target in targets], np.int64)[topic]
    wrong = np.flatnonzero((chosen < -1) | (chosen >= counts))
    if wrong.size:
        row = int(wrong[0])
        raise RefusedError(
            f"a row names the partition {chosen[row]}, and the topic has {counts[row]}",
            operation="write",
            object_name=targets[topic[row]].topic,
            hint="add partitions to the topic, or drop the column partition to place rows by key",
        )
    if open_rows.any():
        keys = rows.records.column("key")
        turns = (task + first_row + np.arange(len(rows))) % counts
        keyed = open_rows & number_column(keys.is_valid())
        chosen = np.where(open_rows, turns, chosen)
        for number, target in enumerate(targets):
            mine = np.flatnonzero(keyed & (topic == number))
            if mine.size:
                chosen[mine] = partition_for(keys.take(number_array(mine)), target.partitions, null_partition=0)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTopic:
    topic: str
    topic_id: UUID
    partitions: int
    batch_bytes_max: int


class SinkTopics:
    """Looks topics up when a row first names them. UsageError names those that do not exist."""

    def __init__(self, client: KafkaClient, new_topics: NewTopics | None) -> None:
        self._client = client
        self._new_topics = new_topics
        self._known: dict[str, SinkTopic] = {}

    def find(self, names: Iterable[str]) -> list[SinkTopic]:
        wanted = list(names)
        missing = [name for name in wanted if name not in self._known]
        if missing:
            self._look_up(missing)
        return [self._known[name] for name in wanted]

    def _look_up(self, names: Sequence[str]) -> None:
        found = dict(self._client.metadata(names).topics)
        absent = sorted(set(names) - found.keys())
        if absent:
            found |= self._created(absent)
        # Without the permission to read the configuration, batches have the size that brokers accept by default.
        configs, _ = read_configs(self._client, names, deadline=Deadline.after(_PATIENCE_S))
        for name in names:
            own = configs.get(name)
            limit = None if own is None else own.effective.get("max.message.bytes")
            self._known[name] = SinkTopic(
                topic=name,
                topic_id=found[name].topic_id,
                partitions=len(found[name].partitions),
                batch_bytes_max=BATCH_BYTES_MAX if limit is None else int(limit),
            )

    def _created(self, names: Sequence[str]) -> dict[str, Topic]:
        if self._new_topics is None:
            hint = "create them first, or give the option createTopics; they may also exist without Describe permission"
            raise UsageError(f"there is no topic {', '.join(names)}", operation="write", hint=hint)
        new = self._new_topics
        wanted = [NewTopic(name=name, partitions=new.partitions, replication_factor=new.replicas) for name in names]
        for name, outcome in create_topics(self._client, wanted).items():
            if outcome.code not in {Code.NONE, Code.TOPIC_ALREADY_EXISTS}:  # another task may have been first
                raise RefusedError(
                    f"the topic could not be created: {outcome.reason}", operation="create topic", object_name=name
                )

        def once(limit: Deadline) -> dict[str, Topic]:
            found = self._client.metadata(names, deadline=limit).topics
            if any(name not in found or not found[name].partitions for name in names):
                raise UnavailableError("a new topic is not known yet", object_name=names[0])
            return dict(found)

        return retry(once, deadline=Deadline.after(_PATIENCE_S), what="new topics to be known")
