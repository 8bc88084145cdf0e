"""Writes a DataFrame into a Kafka cluster, exactly once.

Spark makes a new writer for each batch, pickles it for the tasks, and passes their messages to the commit on the
driver. Each attempt of a task fills its own transaction; the driver decides which of them are the batch (`commit`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from maxbrod.errors import (
    MaxbrodError,
    ObjectExistsError,
    ObjectNotFoundError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from maxbrod.kafka.produce.producer_ids import transactional_producer_id
from maxbrod.kafka.produce.transactions import Standing, end, ongoing, standings
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.storage.stores import open_storage
from maxbrod.table.sink.input import check_columns, no_checkpoint, parse_kafka_sink_options, sink_name
from maxbrod.table.sink.kafka_decisions import BatchDecision, BatchDecisions, DecisionOutcome, Filled
from maxbrod.table.source import QUERY_ID
from maxbrod.text import counted
from maxbrod.work.worker_garbage import settle

_BATCH_ID: Final = "streaming.sql.batchId"
"""The local property in which Spark passes it to tasks."""
_ONLY_BATCH: Final = 0
_OF_CHECKPOINT: Final = "metadata"
"""Spark writes it into every checkpoint before the first batch."""

_LOG: Final = logging.getLogger(__name__)
# The batch is committed by then. Transactions that cannot be aborted in this time are aborted with the next batch.
_SWEEP_PATIENCE_S: Final = 30.0
OPERATION: Final = "commit a batch"
_NAMED_MAX: Final = 5
# The second round decides; more are for a coordinator that moves meanwhile.
_ROUNDS_MAX: Final = 5


class KafkaSink:
    """The sink of both writers. Created on the driver before the tasks of a batch run, and again to commit it."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool, stream: bool) -> None:
        if overwrite:
            hint = 'write with mode("append"), or delete the topic first'
            raise UsageError("a topic cannot be overwritten", hint=hint)
        self.options = options = parse_kafka_sink_options(given, stream=stream)
        check_columns(schema, topic=options.topic)
        self.write_id = uuid4().hex
        name = self.write_id if options.state is None else sink_name(options.state)
        self._ids_prefix = options.ids_prefix(name)
        # Before any task runs, because attempts may reuse the transactional ids of an earlier decision.
        newest = self.recover()
        if newest is None and options.checkpoint is not None:
            # Spark's path may be on another file system or machine. Then a restart would not find the decisions.
            try:
                open_storage(options.checkpoint, options.storage).head(_OF_CHECKPOINT)
            except ObjectNotFoundError:
                raise no_checkpoint() from None
        self._settled = (
            (newest[0].batch_id, newest[0].query_id)
            if newest is not None and newest[1] is DecisionOutcome.DONE
            else None
        )

    def _decisions(self) -> BatchDecisions | None:
        """The store of decisions; without a place, a decision does not outlive this process."""
        state = self.options.state
        return None if state is None else BatchDecisions(open_storage(state, self.options.storage))

    def write(self, batches: Iterator[pa.RecordBatch], *, stream: bool) -> KafkaCommitMessage:
        """One write is one batch. Tasks of a stream get its number from a local property, the commit as an argument."""
        context = TaskContext.get()
        if not stream or context is None:
            return self.fill(batches, None if stream else _ONLY_BATCH, None)
        batch_id, query_id = context.getLocalProperty(_BATCH_ID), context.getLocalProperty(QUERY_ID)
        return self.fill(batches, int(batch_id) if batch_id else None, query_id or None)

    def fill(
        self, iterator: Iterator[pa.RecordBatch], batch_id: int | None, query_id: str | None
    ) -> KafkaCommitMessage:
        if self._settled is not None and self._settled == (batch_id, query_id):
            for _ in iterator:
                pass  # Spark expects the rows to be read to the end
            return KafkaCommitMessage(query_id=query_id, skipped=True)
        from maxbrod.table.sink.kafka_task import write_attempt  # noqa: PLC0415 - numba

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        filled = write_attempt(self.options, (self._ids_prefix, self.write_id), task, iterator)
        settle()
        return KafkaCommitMessage(filled=filled, query_id=query_id)

    def recover(self) -> tuple[BatchDecision, DecisionOutcome] | None:
        """Carry out the pending decision of an earlier driver, if any. Returns the newest decision and its outcome."""
        decisions = self._decisions()
        newest = None if decisions is None else decisions.newest()
        if decisions is None or newest is None or newest[1] is not DecisionOutcome.PENDING:
            return newest
        with KafkaClient(self.options.kafka) as client:
            return newest[0], finish(client, decisions, newest[0])

    def commit(self, messages: Iterable[KafkaCommitMessage | None], batch_id: int | None) -> None:
        """Decide on a batch and carry the decision out. `batch_id` None: it is the only one."""
        batch_id = _ONLY_BATCH if batch_id is None else batch_id
        written = [message for message in messages if message is not None]
        filled = tuple(message.filled for message in written if message.filled is not None)
        query_id = next((message.query_id for message in written if message.query_id is not None), None)
        attempt = 0
        newest = self.recover()
        if newest is not None:
            decided, outcome = newest
            _refuse_foreign(decided, batch_id, query_id)
            if decided.batch_id == batch_id and outcome is DecisionOutcome.DONE:
                _LOG.info("batch %d is already in Kafka", batch_id)
                self.abort(written)
                return
            attempt = decided.attempt + 1 if decided.batch_id == batch_id else 0
        if any(message.skipped for message in written):
            raise RefusedError("tasks skipped rows, but there is no decision on their batch", operation=OPERATION)
        with KafkaClient(self.options.kafka) as client:
            if filled:
                decision = BatchDecision(batch_id=batch_id, attempt=attempt, query_id=query_id, filled=filled)
                self._commit(client, decision)
            self._sweep(client, keep=())

    def abort(self, messages: Iterable[KafkaCommitMessage | None]) -> None:
        """Abort all transactions but decided ones: Spark aborts after a failed commit, too. The rest will time out."""
        try:
            decisions = self._decisions()
            newest = None if decisions is None else decisions.newest()
            pending = newest[0].filled if newest is not None and newest[1] is DecisionOutcome.PENDING else ()
            keep = {attempt.transaction for attempt in pending}
            with KafkaClient(self.options.kafka) as client:
                for message in messages:
                    if message is not None and message.filled is not None and message.filled.transaction not in keep:
                        # RefusedError: it has ended already.
                        with suppress(RefusedError):
                            end(client, message.filled.transaction, commit=False)
                self._sweep(client, keep={transaction.transactional_id for transaction in keep})
        except MaxbrodError as error:
            _LOG.warning("transactions could not be aborted and will time out: %s", error)

    def _commit(self, client: KafkaClient, decision: BatchDecision) -> None:
        _require_open(client, decision.filled)
        decisions = self._decisions()
        if decisions is None:
            _commit_at_once(client, decision.filled)
            return
        try:
            decisions.decide(decision)
        except ObjectExistsError:
            raise RefusedError(
                f"another driver has decided on batch {decision.batch_id}",
                operation=OPERATION,
                object_name=decisions.storage.name_of(decision.path),
                hint="make sure that only one query at a time writes with this state",
            ) from None
        if finish(client, decisions, decision) is DecisionOutcome.VOID:
            raise MaxbrodError(
                f"the transactions of batch {decision.batch_id} timed out before they were committed",
                operation=OPERATION,
                hint="none of its records is visible: start the query again, with a longer transactionTimeout",
            )
        decisions.forget_before(decision)

    def _sweep(self, client: KafkaClient, keep: Collection[str]) -> None:
        """Abort open transactions of attempts that were killed or lost the race: they would hold back every reader."""
        try:
            for name in ongoing(client, self._ids_prefix, patience_s=_SWEEP_PATIENCE_S):
                if name not in keep:
                    transactional_producer_id(client, name)
        except MaxbrodError as error:
            _LOG.warning("transactions of lost attempts could not be aborted and will time out: %s", error)


@dataclass(frozen=True, kw_only=True)
class KafkaCommitMessage(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed
    """The message of one attempt to the driver. `filled` is None if there was no row, or all are in Kafka already."""

    filled: Filled | None = None
    query_id: str | None = None
    """Spark's id of the query, which a restart keeps."""
    skipped: bool = False
    """True if rows were skipped, because their batch is committed already."""


def _require_open(client: KafkaClient, filled: Sequence[Filled]) -> None:
    found = standings(client, (attempt.transaction for attempt in filled))
    lost = [attempt for attempt in filled if found[attempt.transaction.transactional_id] is not Standing.OPEN]
    if lost:
        raise MaxbrodError(
            f"{len(lost)} of {len(filled)} transactions were aborted before all tasks were done, by their timeout "
            f"or by another driver: {_counts(lost)}",
            operation=OPERATION,
            hint="none of the records is visible: write again, with a longer transactionTimeout",
        )


def _commit_at_once(client: KafkaClient, filled: Sequence[Filled]) -> None:
    """Commit without a stored decision. An error names the records that are missing."""
    for place, attempt in enumerate(filled):
        try:
            end(client, attempt.transaction, commit=True)
        except MaxbrodError as error:
            raise MaxbrodError(
                f"{place} of {len(filled)} transactions are committed, then one failed ({error.message}): "
                f"{_counts(filled[place:])} are missing",
                operation=OPERATION,
                hint="with the options state and writeId such a write can be finished by running it again",
            ) from error


def _refuse_foreign(decided: BatchDecision, batch_id: int, query_id: str | None) -> None:
    foreign = None not in {decided.query_id, query_id} and decided.query_id != query_id
    if foreign or decided.batch_id > batch_id:
        raise RefusedError(
            f"the state belongs to another query: it has batch {decided.batch_id}, and this is batch {batch_id}",
            operation=OPERATION,
            hint="a query with a new checkpoint needs a new state",
        )


def finish(client: KafkaClient, decisions: BatchDecisions, decision: BatchDecision) -> DecisionOutcome:
    """Carry out a decision and record the outcome, DONE or VOID. An earlier driver may have carried out a part."""
    for _ in range(_ROUNDS_MAX):
        found = standings(client, (attempt.transaction for attempt in decision.filled))
        kinds = set(found.values())
        if Standing.FORGOTTEN in kinds or kinds >= {Standing.ABORTED, Standing.COMMITTED}:
            raise _in_part(decisions, decision, found)
        void = Standing.ABORTED in kinds
        try:
            for attempt in decision.filled:
                if found[attempt.transaction.transactional_id] is Standing.OPEN:
                    end(client, attempt.transaction, commit=not void)
        except RefusedError:
            continue  # one has ended otherwise since the look: the next round judges by the state of all
        outcome = DecisionOutcome.VOID if void else DecisionOutcome.DONE
        decisions.settle(decision, outcome)
        if void:
            _LOG.warning("batch %d was decided on, but timed out; none of its records is visible", decision.batch_id)
        return outcome
    raise UnavailableError("the state of transactions keeps changing", operation=OPERATION, object_name=decision.path)


def _in_part(decisions: BatchDecisions, decision: BatchDecision, found: Mapping[str, Standing]) -> RefusedError:
    lost = [
        attempt for attempt in decision.filled if found[attempt.transaction.transactional_id] is not Standing.COMMITTED
    ]
    name = decisions.storage.name_of(decision.path)
    return RefusedError(
        f"batch {decision.batch_id} was decided on, but {len(lost)} of its {len(decision.filled)} transactions "
        f"timed out before they were committed: {_counts(lost)} are missing",
        operation=OPERATION,
        object_name=f"{name}.json",
        hint=f"to continue without them, create the empty object {name}.done; to write the whole batch again, with "
        f"the records that are there, create {name}.void",
    )


def _counts(filled: Sequence[Filled]) -> str:
    counts: dict[str, int] = {}
    for attempt in filled:
        for where, count in attempt.records.items():
            counts[str(where)] = counts.get(str(where), 0) + count
    words = [f"{counted(count, 'record')} of {name}" for name, count in sorted(counts.items())]
    more = len(words) - _NAMED_MAX
    return ", ".join(words[:_NAMED_MAX]) + (f" and of {more} other partitions" if more > 0 else "")
