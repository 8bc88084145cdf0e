"""The writers that Spark calls to write a DataFrame into a native archive, as one job or as micro-batches.

Spark pickles the writers and sends them to tasks. Tasks store objects that no row names yet; one commit on the driver
makes them part of the archive. The commit of a micro-batch carries the stream's id and the batch's number. If Spark is
killed before it records a committed batch, it repeats the batch, and the repetition is recognized by these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from maxbrod.archive.surveyed import topic_id_for
from maxbrod.catalog.catalog import open_writable
from maxbrod.catalog.commits import StreamBatch
from maxbrod.errors import RefusedError, UsageError
from maxbrod.model import PartitionId, now_ms
from maxbrod.table.archive_sink.commit import commit_written, look
from maxbrod.table.archive_sink.options import SinkOptions, parse_sink_options
from maxbrod.table.sink_columns import check_columns
from maxbrod.table.travelling import Travelling
from maxbrod.work.settling import settle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from maxbrod.table.archive_sink.plan import WrittenRange

_QUERY_ID: Final = "sql.streaming.queryId"
"""The local property that has the query's id. The id is in the checkpoint, so a restart keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """What the tasks and the commit of a write need."""

    options: SinkOptions
    numbered: bool
    """Whether the rows have no offsets and get them here."""
    starts: Mapping[PartitionId, int]
    """The next offset of each partition, as far as it is known before the tasks run."""


@dataclass(frozen=True, kw_only=True)
class Written(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed
    """What one task has stored, sent to the driver."""

    ranges: tuple[WrittenRange, ...]
    stream: str | None
    began_ms: int


class ArchiveWriter(Travelling, DataSourceArrowWriter):  # type: ignore[misc]  # as above
    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._plan, iterator)

    def commit(self, messages: list[Written | None]) -> None:
        _commit(self._plan, messages)

    def abort(self, messages: list[Written | None]) -> None:
        """Leave the objects, which no row names, to `gc`.

        They are not deleted here, because Spark also aborts after a commit that failed with an unknown outcome: it may
        have been carried out.
        """


class ArchiveStreamWriter(Travelling, DataSourceStreamArrowWriter):  # type: ignore[misc]  # as above
    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._plan, iterator)

    def commit(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        if any(message is not None and message.ranges for message in messages):
            _commit(self._plan, messages, StreamBatch(stream=_stream(messages), batch_id=batchId))

    def abort(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """As above."""


def plan_write(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkPlan:
    """Refuse here, before any task runs, whatever can be refused."""
    parsed = parse_sink_options(options)
    if overwrite:
        raise RefusedError(
            "an archive is never overwritten",
            operation="write",
            object_name=parsed.url,
            hint='append to it (mode "append"; outputMode "append" of a stream), or name an empty place',
        )
    check_columns(schema, topic=parsed.topic)
    names = schema.fieldNames()
    if "partition" not in names and parsed.partitions is None:
        raise UsageError(
            "no partition is named",
            hint="give a column 'partition', or the option 'partitions' (their number) to place rows by the hash of "
            "their key",
        )
    if "offset" in names and "partition" not in names:
        raise UsageError("offsets mean nothing without partitions", hint="give a column 'partition', or drop 'offset'")
    known = look(*open_writable(parsed.url, parsed.storage, single_writer=parsed.single_writer))
    ours = {topic_id for topic_id, name in known.topics.items() if topic_id == topic_id_for(name)}
    starts = {place: end for place, end in known.ends.items() if place.topic_id in ours}
    return SinkPlan(options=parsed, numbered="offset" not in names, starts=starts)


def _write(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> Written:
    from maxbrod.table.archive_sink.task import write_task  # noqa: PLC0415 - numba, which the driver does not need

    context, began_ms = TaskContext.get(), now_ms()
    ranges = write_task(
        plan.options,
        batches,
        starts=plan.starts,
        numbered=plan.numbered,
        task=0 if context is None else context.partitionId(),
    )
    settle()
    return Written(
        ranges=ranges,
        stream=None if context is None else context.getLocalProperty(_QUERY_ID),
        began_ms=began_ms,
    )


def _commit(plan: SinkPlan, messages: Sequence[Written | None], batch: StreamBatch | None = None) -> None:
    received = [message for message in messages if message is not None]
    commit_written(
        plan.options,
        [each for message in received for each in message.ranges],
        numbered=plan.numbered,
        batch=batch,
        began_ms=min((message.began_ms for message in received), default=now_ms()),
    )


def _stream(messages: Sequence[Written | None]) -> str:
    streams = {message.stream for message in messages if message is not None}
    if len(streams) != 1 or None in streams:
        raise RefusedError(
            "Spark does not pass the id of the stream, so a micro-batch that is repeated could not be recognized",
            operation="write",
            hint="write it with foreachBatch, or use another release of Spark",
        )
    return str(streams.pop())
