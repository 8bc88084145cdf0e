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
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.produce.appends import Batch, Feed, sequence_after, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.transactions import Transaction, add_partitions, begin, end, longest_timeout_ms
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.table.kafka_sink.rows import PartitionBatches, portions, shared_out
from maxbrod.table.kafka_sink.state import Filled
from maxbrod.table.kafka_sink.topics import Targets
from maxbrod.table.sink_columns import to_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from maxbrod.model import TopicPartition
    from maxbrod.table.kafka_sink.options import SinkOptions

_ABORT_PATIENCE_S = 10.0
_LAST_USED: Final[dict[tuple[int, str], dict[str, str]]] = {}
"""By process (a fork must not inherit any) and prefix: the ids, and the write that used each last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Identifies an attempt: its sink and write, and the number of its task."""

    ids_prefix: str
    write: str
    task: int


def write_attempt(options: SinkOptions, attempt: Attempt, batches: Iterable[pa.RecordBatch]) -> Filled | None:
    """Write all rows of a task, acknowledged by all in-sync replicas. None: there are no rows."""
    with KafkaClient(options.kafka) as client:
        filling = _Filling(client, options, attempt)
        try:
            for portion in portions(batches):
                filling.write(portion)
        except BaseException:
            filling.give_up()
            raise
        return filling.filled()


class _Filling:
    def __init__(self, client: KafkaClient, options: SinkOptions, attempt: Attempt) -> None:
        self._client = client
        self._options = options
        self._attempt = attempt
        self._targets = Targets(client, options.new_topics)
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
        task, codec = self._attempt.task, self._options.codec
        shares = shared_out(rows, targets, first_row=self._rows, task=task, codec=codec)
        transaction = self._begun()
        self._add([share.where for share in shares])
        feeds = [self._feed(share, transaction) for share in shares]
        for done in produce_all(self._client, feeds, transactional_id=transaction.transactional_id):
            self._records[done.where] += done.count
        self._rows += len(rows)

    def _begun(self) -> Transaction:
        if self._transaction is None:
            timeout_ms = self._options.timeout_ms or longest_timeout_ms(self._client)
            name = reserve_id(self._attempt.ids_prefix, self._attempt.write)
            self._transaction = begin(self._client, name, timeout_ms=timeout_ms)
        return self._transaction

    def _add(self, partitions: Sequence[TopicPartition]) -> None:
        new = [where for where in partitions if where not in self._records]
        if new:
            add_partitions(self._client, self._begun(), new)

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
        appends = [Batch(each.data, each.count, source) for each, source in named]
        return Feed(where=share.where, topic_id=share.target.topic_id, first_offset=None, appends=appends)


def reserve_id(prefix: str, write: str) -> str:
    """A transactional id that no other attempt uses. `write` identifies the attempts that one decision may name."""
    mine = _LAST_USED.setdefault((os.getpid(), prefix), {})
    free = next((name for name, last in mine.items() if last != write), None)
    chosen = free or f"{prefix}{uuid4().hex[:16]}"
    mine[chosen] = write
    return chosen
