"""The writers that Spark calls to write a DataFrame into a Kafka cluster, exactly once.

Spark makes a new writer for each batch, pickles it for the tasks, and passes their messages to the commit on the
driver. Each attempt of a task fills its own transaction; the driver decides which of them are the batch (`commit`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from maxbrod.errors import ObjectNotFoundError, UsageError
from maxbrod.storage.stores import open_storage
from maxbrod.table.kafka_sink.commit import Committer, Written
from maxbrod.table.kafka_sink.options import no_checkpoint, parse_sink_options, sink_name
from maxbrod.table.kafka_sink.state import Decisions, Outcome
from maxbrod.table.sink_columns import check_columns
from maxbrod.table.travelling import Travelling
from maxbrod.work.settling import settle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from maxbrod.config import StorageConfig

# Local properties in which Spark passes these to tasks.
_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"
_ONLY_BATCH: Final = 0
_OF_CHECKPOINT: Final = "metadata"
"""Spark writes it into every checkpoint before the first batch."""


class KafkaSink:
    """What both writers share. Created on the driver before the tasks of a batch run, and again to commit it."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool, stream: bool) -> None:
        if overwrite:
            hint = 'write with mode("append"), or delete the topic first'
            raise UsageError("a topic cannot be overwritten", hint=hint)
        self.options = options = parse_sink_options(given, stream=stream)
        check_columns(schema, topic=options.topic)
        self.write_id = uuid4().hex
        name = self.write_id if options.state is None else sink_name(options.state)
        self._ids_prefix = options.ids_prefix(name)
        # Before any task runs, because attempts may reuse the transactional ids of an earlier decision.
        newest = self.committer().recover()
        if newest is None and options.checkpoint is not None:
            _require_checkpoint(options.checkpoint, options.storage)
        self._settled = (
            (newest[0].batch_id, newest[0].query_id) if newest is not None and newest[1] is Outcome.DONE else None
        )

    def committer(self) -> Committer:
        state = self.options.state
        decisions = None if state is None else Decisions(open_storage(state, self.options.storage))
        return Committer(self.options.kafka, self._ids_prefix, decisions)

    def fill(self, iterator: Iterator[pa.RecordBatch], batch_id: int | None, query_id: str | None) -> Written:
        if self._settled is not None and self._settled == (batch_id, query_id):
            for _ in iterator:
                pass  # Spark expects the rows to be read to the end
            return Written(query_id=query_id, skipped=True)
        from maxbrod.table.kafka_sink.task import Attempt, write_attempt  # noqa: PLC0415 - numba

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        attempt = Attempt(ids_prefix=self._ids_prefix, write=self.write_id, task=task)
        filled = write_attempt(self.options, attempt, iterator)
        settle()
        return Written(filled=filled, query_id=query_id)


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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._sink.fill(iterator, _ONLY_BATCH, None)

    def commit(self, messages: list[Written | None]) -> None:
        self._sink.committer().commit(messages, _ONLY_BATCH)

    def abort(self, messages: list[Written | None]) -> None:
        self._sink.committer().abort(messages)


class KafkaStreamWriter(Travelling, DataSourceStreamArrowWriter):  # type: ignore[misc]  # as above
    """One batch of a stream. Tasks get its number from a local property, the commit as an argument."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        batch_id = _property(_BATCH_ID)
        return self._sink.fill(iterator, None if batch_id is None else int(batch_id), _property(_QUERY_ID))

    def commit(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._sink.committer().commit(messages, batchId)

    def abort(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803 - as above
        del batchId
        self._sink.committer().abort(messages)


def _property(name: str) -> str | None:
    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(name)
    return found or None
