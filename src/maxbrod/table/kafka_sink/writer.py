"""The writers that Spark calls to write a DataFrame into a Kafka cluster, exactly once.

Spark makes a new writer for each batch, pickles it for the tasks, and passes their messages to the commit on the
driver. Each attempt of a task fills its own transaction; the driver decides which of them are the batch (`commit`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

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
from maxbrod.table.kafka_sink.state import BatchDecision, BatchDecisions, DecisionOutcome, Filled
from maxbrod.table.sink_columns import check_columns
from maxbrod.table.sink_options import no_checkpoint, parse_kafka_sink_options, sink_name
from maxbrod.table.source import Travelling
from maxbrod.text import counted
from maxbrod.work.settling import settle

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from maxbrod.config import KafkaConfig, StorageConfig


# Local properties in which Spark passes these to tasks.
_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"
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
        newest = self.committer().recover()
        if newest is None and options.checkpoint is not None:
            _require_checkpoint(options.checkpoint, options.storage)
        self._settled = (
            (newest[0].batch_id, newest[0].query_id)
            if newest is not None and newest[1] is DecisionOutcome.DONE
            else None
        )

    def committer(self) -> Committer:
        state = self.options.state
        decisions = None if state is None else BatchDecisions(open_storage(state, self.options.storage))
        return Committer(self.options.kafka, self._ids_prefix, decisions)

    def fill(
        self, iterator: Iterator[pa.RecordBatch], batch_id: int | None, query_id: str | None
    ) -> KafkaCommitMessage:
        if self._settled is not None and self._settled == (batch_id, query_id):
            for _ in iterator:
                pass  # Spark expects the rows to be read to the end
            return KafkaCommitMessage(query_id=query_id, skipped=True)
        from maxbrod.table.kafka_sink.task import Attempt, write_attempt  # noqa: PLC0415 - numba

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        attempt = Attempt(ids_prefix=self._ids_prefix, write=self.write_id, task=task)
        filled = write_attempt(self.options, attempt, iterator)
        settle()
        return KafkaCommitMessage(filled=filled, query_id=query_id)


def _require_checkpoint(url: str, options: StorageConfig) -> None:
    """Spark's path may be on another file system or machine. Then a restart would not find the decisions."""
    try:
        open_storage(url, options).head(_OF_CHECKPOINT)
    except ObjectNotFoundError:
        raise no_checkpoint() from None


class KafkaWriter(Travelling, DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is not typed
    """One write, which is one batch."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        return self._sink.fill(iterator, _ONLY_BATCH, None)

    def commit(self, messages: list[KafkaCommitMessage | None]) -> None:
        self._sink.committer().commit(messages, _ONLY_BATCH)

    def abort(self, messages: list[KafkaCommitMessage | None]) -> None:
        self._sink.committer().abort(messages)


class KafkaStreamWriter(Travelling, DataSourceStreamArrowWriter):  # type: ignore[misc]  # as above
    """One batch of a stream. Tasks get its number from a local property, the commit as an argument."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        batch_id = _property(_BATCH_ID)
        return self._sink.fill(iterator, None if batch_id is None else int(batch_id), _property(_QUERY_ID))

    def commit(self, messages: list[KafkaCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._sink.committer().commit(messages, batchId)

    def abort(self, messages: list[KafkaCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as above
        del batchId
        self._sink.committer().abort(messages)


def _property(name: str) -> str | None:
    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(name)
    return found or None


@dataclass(frozen=True, kw_only=True)
class KafkaCommitMessage(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed
    """The message of one attempt to the driver. `filled` is None if there was no row, or all are in Kafka already."""

    filled: Filled | None = None
    query_id: str | None = None
    """Spark's id of the query, which a restart keeps."""
    skipped: bool = False
    """True if rows were skipped, because their batch is committed already."""


class Committer:
    """Commits the batches of one sink. Without `decisions`, a decision does not outlive this process."""

    def __init__(self, kafka: KafkaConfig, ids_prefix: str, decisions: BatchDecisions | None) -> None:
        self._kafka = kafka
        self._ids_prefix = ids_prefix
        self._decisions = decisions

    def recover(self) -> tuple[BatchDecision, DecisionOutcome] | None:
        """Carry out the pending decision of an earlier driver, if any. Returns the newest decision and its outcome."""
        decisions = self._decisions
        newest = None if decisions is None else decisions.newest()
        if decisions is None or newest is None or newest[1] is not DecisionOutcome.PENDING:
            return newest
        with KafkaClient(self._kafka) as client:
            return newest[0], finish(client, decisions, newest[0])

    def commit(self, messages: Iterable[KafkaCommitMessage | None], batch_id: int) -> None:
        written = [message for message in messages if message is not None]
        filled = tuple(each.filled for each in written if each.filled is not None)
        query_id = next((each.query_id for each in written if each.query_id is not None), None)
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
        if any(each.skipped for each in written):
            raise RefusedError("tasks skipped rows, but there is no decision on their batch", operation=OPERATION)
        with KafkaClient(self._kafka) as client:
            if filled:
                decision = BatchDecision(batch_id=batch_id, attempt=attempt, query_id=query_id, filled=filled)
                self._commit(client, decision)
            self._sweep(client, keep=())

    def abort(self, messages: Iterable[KafkaCommitMessage | None]) -> None:
        """Abort all transactions but decided ones: Spark aborts after a failed commit, too. The rest will time out."""
        try:
            newest = None if self._decisions is None else self._decisions.newest()
            pending = newest[0].filled if newest is not None and newest[1] is DecisionOutcome.PENDING else ()
            keep = {each.transaction for each in pending}
            with KafkaClient(self._kafka) as client:
                for message in messages:
                    if message is not None and message.filled is not None and message.filled.transaction not in keep:
                        _abort(client, message.filled)
                self._sweep(client, keep={each.transactional_id for each in keep})
        except MaxbrodError as error:
            _LOG.warning("transactions could not be aborted and will time out: %s", error)

    def _commit(self, client: KafkaClient, decision: BatchDecision) -> None:
        _require_open(client, decision.filled)
        if self._decisions is None:
            _commit_at_once(client, decision.filled)
            return
        try:
            self._decisions.decide(decision)
        except ObjectExistsError:
            raise RefusedError(
                f"another driver has decided on batch {decision.batch_id}",
                operation=OPERATION,
                object_name=self._decisions.storage.name_of(decision.path),
                hint="make sure that only one query at a time writes with this state",
            ) from None
        if finish(client, self._decisions, decision) is DecisionOutcome.VOID:
            raise MaxbrodError(
                f"the transactions of batch {decision.batch_id} timed out before they were committed",
                operation=OPERATION,
                hint="none of its records is visible: start the query again, with a longer transactionTimeout",
            )
        self._decisions.forget_before(decision)

    def _sweep(self, client: KafkaClient, keep: Collection[str]) -> None:
        """Abort open transactions of attempts that were killed or lost the race: they would hold back every reader."""
        try:
            for name in ongoing(client, self._ids_prefix, patience_s=_SWEEP_PATIENCE_S):
                if name not in keep:
                    transactional_producer_id(client, name)
        except MaxbrodError as error:
            _LOG.warning("transactions of lost attempts could not be aborted and will time out: %s", error)


def _require_open(client: KafkaClient, filled: Sequence[Filled]) -> None:
    found = standings(client, (each.transaction for each in filled))
    lost = [each for each in filled if found[each.transaction.transactional_id] is not Standing.OPEN]
    if lost:
        raise MaxbrodError(
            f"{len(lost)} of {len(filled)} transactions were aborted before all tasks were done, by their timeout "
            f"or by another driver: {_counts(lost)}",
            operation=OPERATION,
            hint="none of the records is visible: write again, with a longer transactionTimeout",
        )


def _commit_at_once(client: KafkaClient, filled: Sequence[Filled]) -> None:
    """Commit without a stored decision. An error names the records that are missing."""
    for place, each in enumerate(filled):
        try:
            end(client, each.transaction, commit=True)
        except MaxbrodError as error:
            raise MaxbrodError(
                f"{place} of {len(filled)} transactions are committed, then one failed ({error.message}): "
                f"{_counts(filled[place:])} are missing",
                operation=OPERATION,
                hint="with the options state and writeId such a write can be finished by running it again",
            ) from error


def _abort(client: KafkaClient, filled: Filled) -> None:
    try:
        end(client, filled.transaction, commit=False)
    except RefusedError:
        return  # it has ended already


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
        found = standings(client, (each.transaction for each in decision.filled))
        kinds = set(found.values())
        if Standing.FORGOTTEN in kinds or kinds >= {Standing.ABORTED, Standing.COMMITTED}:
            raise _in_part(decisions, decision, found)
        void = Standing.ABORTED in kinds
        try:
            for each in decision.filled:
                if found[each.transaction.transactional_id] is Standing.OPEN:
                    end(client, each.transaction, commit=not void)
        except RefusedError:
            continue  # one has ended otherwise since the look: the next round judges by the state of all
        outcome = DecisionOutcome.VOID if void else DecisionOutcome.DONE
        decisions.settle(decision, outcome)
        if void:
            _LOG.warning("batch %d was decided on, but timed out; none of its records is visible", decision.batch_id)
        return outcome
    raise UnavailableError("the state of transactions keeps changing", operation=OPERATION, object_name=decision.path)


def _in_part(decisions: BatchDecisions, decision: BatchDecision, found: Mapping[str, Standing]) -> RefusedError:
    lost = [each for each in decision.filled if found[each.transaction.transactional_id] is not Standing.COMMITTED]
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
    for each in filled:
        for where, count in each.records.items():
            counts[str(where)] = counts.get(str(where), 0) + count
    words = [f"{counted(count, 'record')} of {name}" for name, count in sorted(counts.items())]
    more = len(words) - _NAMED_MAX
    return ", ".join(words[:_NAMED_MAX]) + (f" and of {more} other partitions" if more > 0 else "")
