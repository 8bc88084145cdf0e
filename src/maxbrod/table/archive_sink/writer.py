"""The writers that Spark calls to write a DataFrame into a native archive, as one job or as micro-batches.

Spark pickles the writers and sends them to tasks. Tasks store objects that no row names yet; one commit on the driver
makes them part of the archive. The commit of a micro-batch carries the stream's id and the batch's number. If Spark is
killed before it records a committed batch, it repeats the batch, and the repetition is recognized by these.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from maxbrod.archive.knowledge import NOTHING, encode_carried
from maxbrod.archive.snapshot_document import RunFacts, Snapshot, encode, gaps_of
from maxbrod.archive.snapshots import read_snapshot
from maxbrod.archive.surveyed import topic_id_for
from maxbrod.batch.patch import patch
from maxbrod.catalog.catalog import open_writable
from maxbrod.catalog.commits import StreamBatch, commit_with_retries
from maxbrod.catalog.rows import Gap, Run, Segment, new_run_id
from maxbrod.errors import (
    EXIT_DONE,
    CorruptDataError,
    MaxbrodError,
    ObjectNotFoundError,
    RefusedError,
    UnsupportedFormatError,
    UsageError,
)
from maxbrod.kafka.state.cluster_state import ClusterState, decode_state, encode_state
from maxbrod.layouts.kafka.reader import read_logs
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import PartitionId, now_ms
from maxbrod.table.archive_sink.plan import AppendRun, WrittenRange, cluster_with, number, refuse_other_topics, rows_of
from maxbrod.table.sink_columns import check_columns
from maxbrod.table.sink_options import ArchiveSinkOptions, parse_archive_sink_options
from maxbrod.table.source import Travelling
from maxbrod.work.settling import settle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from maxbrod.catalog.catalog import Catalog
    from maxbrod.catalog.replaced import Revisions
    from maxbrod.layouts.kafka.writer import PartitionWriter
    from maxbrod.storage.interface import Storage


_QUERY_ID: Final = "sql.streaming.queryId"
"""The local property that has the query's id. The id is in the checkpoint, so a restart keeps it."""

_PACKED_BYTES: Final = 4 << 20
_EMPTY: Final = Snapshot(run_id="", taken_at_ms=0, cluster={}, ends={}, topics={})


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """A planned write, for its tasks and its commit."""

    options: ArchiveSinkOptions
    numbered: bool
    """True if the rows have no offsets and get them here."""
    starts: Mapping[PartitionId, int]
    """The next offset of each partition, as far as it is known before the tasks run."""


@dataclass(frozen=True, kw_only=True)
class ArchiveCommitMessage(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed
    """The message of one task to the driver: the ranges that it has stored."""

    ranges: tuple[WrittenRange, ...]
    stream: str | None
    began_ms: int


class _PlannedWriter(Travelling):
    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ArchiveCommitMessage:
        return _write(self._plan, iterator)


class SparkArchiveWriter(_PlannedWriter, DataSourceArrowWriter):  # type: ignore[misc]  # as above
    def commit(self, messages: list[ArchiveCommitMessage | None]) -> None:
        _commit(self._plan, messages)

    def abort(self, messages: list[ArchiveCommitMessage | None]) -> None:
        """Leave the objects, which no row names, to `gc`.

        They are not deleted here, because Spark also aborts after a commit that failed with an unknown outcome: it may
        have been carried out.
        """


class SparkArchiveStreamWriter(_PlannedWriter, DataSourceStreamArrowWriter):  # type: ignore[misc]  # as above
    def commit(self, messages: list[ArchiveCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        if any(message is not None and message.ranges for message in messages):
            _commit(self._plan, messages, StreamBatch(stream=_stream(messages), batch_id=batchId))

    def abort(self, messages: list[ArchiveCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leave the objects to `gc`, as above."""


def plan_write(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkPlan:
    """Refuse here, before any task runs, whatever can be refused."""
    parsed = parse_archive_sink_options(options)
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


def _write(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> ArchiveCommitMessage:
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
    return ArchiveCommitMessage(
        ranges=ranges,
        stream=None if context is None else context.getLocalProperty(_QUERY_ID),
        began_ms=began_ms,
    )


def _commit(plan: SinkPlan, messages: Sequence[ArchiveCommitMessage | None], batch: StreamBatch | None = None) -> None:
    received = [message for message in messages if message is not None]
    commit_written(
        plan.options,
        [each for message in received for each in message.ranges],
        numbered=plan.numbered,
        batch=batch,
        began_ms=min((message.began_ms for message in received), default=now_ms()),
    )


def _stream(messages: Sequence[ArchiveCommitMessage | None]) -> str:
    streams = {message.stream for message in messages if message is not None}
    if len(streams) != 1 or None in streams:
        raise RefusedError(
            "Spark does not pass the id of the stream, so a micro-batch that is repeated could not be recognized",
            operation="write",
            hint="write it with foreachBatch, or use another release of Spark",
        )
    return str(streams.pop())


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownArchive:
    """The archive before the write."""

    ends: Mapping[PartitionId, int]
    topics: Mapping[str, str]
    """The name of each topic id."""
    cluster: ClusterState | None
    revisions: Revisions
    """The number of times that rows of each partition have been replaced."""
    carried: Mapping[str, Any] | None
    """The part of the last snapshot that is carried on, as JSON."""
    snapshot: Snapshot = _EMPTY
    """The last one; empty if there is none or it cannot be read."""


def look(storage: Storage, catalog: Catalog) -> KnownArchive:
    """Return the archive as it is now. A snapshot that cannot be read is ignored, as by commands about the present."""
    snapshot, cluster = _EMPTY, None
    last = catalog.last_snapshot_run()
    if last is not None:
        with suppress(CorruptDataError, ObjectNotFoundError, UnsupportedFormatError):
            snapshot = read_snapshot(storage, last)
            cluster = decode_state(snapshot.cluster)
    ends, topics = dict(snapshot.ends), dict(snapshot.topics)
    for place, position in catalog.positions().items():
        ends[place] = max(position.end_offset, ends.get(place, 0))
        topics[place.topic_id] = position.topic
    carried = encode_carried(NOTHING) if last is None else snapshot.carried
    revisions = catalog.revisions()
    return KnownArchive(
        ends=ends, topics=topics, cluster=cluster, revisions=revisions, carried=carried, snapshot=snapshot
    )


def commit_written(
    options: ArchiveSinkOptions,
    ranges: Sequence[WrittenRange],
    *,
    numbered: bool,
    began_ms: int,
    batch: StreamBatch | None = None,
) -> None:
    """Commit `ranges`, given in the order of tasks, the first of which began at `began_ms`. If empty, commit nothing.

    RefusedError: they overlap each other or the archive, or the stream's checkpoint is too old. Nothing has changed.
    """
    storage, catalog = open_writable(options.url, options.storage, single_writer=options.single_writer)
    written = _paths(ranges)

    def commit(_: int) -> None:
        nonlocal ranges
        if not ranges or (batch is not None and is_done(catalog.last_batch(batch.stream), batch)):
            return
        known = look(storage, catalog)
        refuse_other_topics({each.where.topic for each in ranges}, known.topics)
        if numbered:
            ranges = _settle(storage, options, number(ranges, known.ends))
            written.update(_paths(ranges))
        run = AppendRun(run_id=new_run_id(), written_at=now_ms())
        rows = rows_of(ranges, known.ends, run)
        row = _put_snapshot(storage, known, run, rows, options, version=catalog.version + 1, batch=batch)
        try:
            catalog.commit([*rows, replace(row, started_at=began_ms)], batch=batch, since_ms=began_ms)
        except RefusedError:
            # The next attempt has a snapshot of its own.
            with suppress(MaxbrodError):
                storage.delete([row.snapshot] if row.snapshot is not None else [])
            raise
        # Delete what is not committed: objects that were written again, and those of lost attempts. `gc` would delete
        # them only after a day.
        with suppress(MaxbrodError):
            storage.delete(sorted(written - _paths(ranges)))

    commit_with_retries(catalog, commit)


def is_done(last: int | None, batch: StreamBatch) -> bool:
    """True if the batch is committed, but Spark was killed before it recorded that. RefusedError: an older batch."""
    if last is not None and batch.batch_id < last:
        raise RefusedError(
            f"batch {batch.batch_id} of the stream is repeated, but batch {last} is committed already",
            operation="write",
            object_name=batch.stream,
            hint="its checkpoint is older than the archive: start a new checkpoint at the end of the archive",
        )
    return last == batch.batch_id


def _paths(ranges: Iterable[WrittenRange]) -> set[str]:
    return {part.path for each in ranges for part in each.slices}


def _settle(
    storage: Storage, options: ArchiveSinkOptions, placed: Sequence[tuple[WrittenRange, int]]
) -> list[WrittenRange]:
    """The ranges at their offsets; those that tasks placed elsewhere are written again."""
    if all(each.base_offset == base for each, base in placed):
        return [each for each, _ in placed]
    with ArchiveWriter(storage, run_id=new_run_id(), compression=options.compression, limits=options.limits) as archive:
        parts = [None if each.base_offset == base else _move(archive, storage, each, base) for each, base in placed]
    return [
        each if part is None else replace(each, slices=_as_they_came(each, part))
        for (each, _), part in zip(placed, parts, strict=True)
    ]


def _move(archive: ArchiveWriter, storage: Storage, written: WrittenRange, base: int) -> PartitionWriter:
    where = written.where
    part = archive.partition(
        topic=where.topic,
        topic_id=topic_id_for(where.topic),
        partition=where.partition,
        packed=sum(each.raw_bytes for each in written.slices) < _PACKED_BYTES,
    )
    for stored in written.slices:
        for data, headers in read_logs(storage, stored):
            own = np.array(data)
            part.append(own, patch(own, headers, base_offset=headers["base_offset"] + (base - written.base_offset)))
    part.close()
    return part


def _as_they_came(written: WrittenRange, part: PartitionWriter) -> tuple[Any, ...]:
    """Slices with the codec of the batches, which only rows keep where batches are stored uncompressed."""
    return tuple(replace(each, codec=written.slices[0].codec) for each in part.slices)


def _put_snapshot(
    storage: Storage,
    known: KnownArchive,
    run: AppendRun,
    rows: Sequence[Segment | Gap],
    options: ArchiveSinkOptions,
    *,
    version: int = 0,
    batch: StreamBatch | None = None,
) -> Run:
    """Store the snapshot of this run, and return the run's own row."""
    topics = {**known.topics, **{row.topic_id: row.topic for row in rows}}
    written = ends_of(rows)
    ends = {**known.ends, **written}
    # Also partitions of earlier writes: a backup since then wrote a snapshot that does not have the topic.
    ours = {place.topic_id for place in written}
    counts: dict[str, int] = {}
    for place in ends:
        if place.topic_id in ours:
            name = topics[place.topic_id]
            counts[name] = max(counts.get(name, options.partitions or 0), place.partition + 1)
    cluster = cluster_with(known.cluster, counts, run.written_at)
    data = [row for row in rows if isinstance(row, Segment)]
    statistics: dict[str, Any] = {
        "command": "write",
        "topics": len(counts),
        "partitions": len(written),
        "records": sum(row.records for row in data),
        "bytes": sum(row.bytes for row in data),
        "raw_bytes": sum(row.raw_bytes for row in data),
        "exit_code": EXIT_DONE,
        **({} if batch is None else {"stream": batch.stream, "batch": batch.batch_id}),
    }
    path = f"snapshots/{run.run_id}.json.zst"
    snapshot = Snapshot(
        run_id=run.run_id,
        taken_at_ms=run.written_at,
        cluster=encode_state(cluster),
        ends=ends,
        topics=topics,
        # If a cluster is backed up here, too, this run changes nothing about its recovery points.
        recovery_points=known.snapshot.recovery_points,
        behind=known.snapshot.behind,
        carried=known.carried,
        revisions=known.revisions,
        gaps=gaps_of(row for row in rows if isinstance(row, Gap)),
        run=RunFacts(started_at=run.written_at, finished_at=run.written_at, statistics=statistics, commit=version),
    )
    storage.put(path, encode(snapshot))
    return Run(
        run_id=run.run_id,
        started_at=run.written_at,
        finished_at=run.written_at,
        snapshot=path,
        statistics=statistics,
        written_at=run.written_at,
    )


def ends_of(rows: Iterable[Segment | Gap]) -> dict[PartitionId, int]:
    ends: dict[PartitionId, int] = {}
    for row in rows:
        place = PartitionId(topic_id=row.topic_id, partition=row.partition)
        ends[place] = max(row.end_offset, ends.get(place, 0))
    return ends
