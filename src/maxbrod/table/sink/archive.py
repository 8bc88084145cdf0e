"""Writes a DataFrame into a native archive, as one job or as micro-batches.

Tasks store objects that no row names yet; one commit on the driver
makes them part of the archive. The commit of a micro-batch carries the stream's id and the batch's number. If Spark is
killed before it records a committed batch, it repeats the batch, and the repetition is recognized by these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from maxbrod.archive.knowledge import NOTHING, encode_carried
from maxbrod.archive.snapshot_document import RunFacts, Snapshot, encode, gaps_of, snapshot_path
from maxbrod.archive.snapshots import read_snapshot
from maxbrod.archive.surveyed import topic_id_for
from maxbrod.batch.patch import patch
from maxbrod.catalog.catalog import Catalog, open_writable
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
from maxbrod.layouts.kafka.writer import ArchiveWriter, PartitionWriter
from maxbrod.model import PartitionId, now_ms
from maxbrod.storage.interface import Storage
from maxbrod.table.sink.archive_plan import WrittenRange, cluster_with, number, refuse_other_topics, rows_of
from maxbrod.table.sink.input import ArchiveSinkOptions, check_columns, parse_archive_sink_options
from maxbrod.table.source import QUERY_ID
from maxbrod.work.worker_garbage import settle

_PACKED_BYTES: Final = 4 << 20
_EMPTY: Final = Snapshot(run_id="", taken_at_ms=0, cluster={}, ends={}, topics={})


@dataclass(frozen=True, kw_only=True)
class ArchiveCommitMessage(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed
    """The message of one task to the driver: the ranges that it has stored."""

    ranges: tuple[WrittenRange, ...]
    stream: str | None
    began_ms: int


class ArchiveSink:
    """A planned write. Refuses, before any task runs, whatever can be refused."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = parsed = parse_archive_sink_options(options)
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
                hint="give a column 'partition', or the option 'partitions' (their number) to place rows by the hash "
                "of their key",
            )
        if "offset" in names and "partition" not in names:
            hint = "give a column 'partition', or drop 'offset'"
            raise UsageError("offsets mean nothing without partitions", hint=hint)
        known = look(*open_writable(parsed.url, parsed.storage, single_writer=parsed.single_writer))
        ours = {topic_id for topic_id, name in known.topics.items() if topic_id == topic_id_for(name)}
        self._numbered = "offset" not in names
        """True if the rows have no offsets and get them here."""
        self._starts = {place: end for place, end in known.ends.items() if place.topic_id in ours}
        """The next offset of each partition, as far as it is known before the tasks run."""

    def write(self, batches: Iterator[pa.RecordBatch], *, stream: bool) -> ArchiveCommitMessage:
        from maxbrod.table.sink.archive_task import write_task  # noqa: PLC0415 - numba, which the driver does not need

        del stream
        context, began_ms = TaskContext.get(), now_ms()
        ranges = write_task(
            self._options,
            batches,
            starts=self._starts,
            numbered=self._numbered,
            task=0 if context is None else context.partitionId(),
        )
        settle()
        name = None if context is None else context.getLocalProperty(QUERY_ID)
        return ArchiveCommitMessage(ranges=ranges, stream=name, began_ms=began_ms)

    def commit(self, messages: Sequence[ArchiveCommitMessage | None], batch_id: int | None) -> None:
        received = [message for message in messages if message is not None]
        ranges = [written for message in received for written in message.ranges]
        if batch_id is not None and not ranges:
            return
        batch = None if batch_id is None else StreamBatch(stream=_stream(received), batch_id=batch_id)
        began_ms = min((message.began_ms for message in received), default=now_ms())
        commit_written(self._options, ranges, numbered=self._numbered, batch=batch, began_ms=began_ms)

    def abort(self, messages: Sequence[ArchiveCommitMessage | None]) -> None:
        """Leave the objects, which no row names, to `gc`.

        They are not deleted here, because Spark also aborts after a commit that failed with an unknown outcome: it may
        have been carried out.
        """


def _stream(messages: Sequence[ArchiveCommitMessage]) -> str:
    streams = {message.stream for message in messages}
    if len(streams) != 1 or None in streams:
        raise RefusedError(
            "Spark does not pass the id of the stream, so a micro-batch that is repeated could not be recognized",
            operation="write",
            hint="write it with foreachBatch, or use another release of Spark",
        )
    return str(streams.pop())


def look(storage: Storage, catalog: Catalog) -> Snapshot:
    """Return the archive as it is now. A snapshot that cannot be read is ignored, as by commands about the present."""
    found, last = _EMPTY, catalog.last_snapshot_run()
    if last is not None:
        with suppress(CorruptDataError, ObjectNotFoundError, UnsupportedFormatError):
            found = read_snapshot(storage, last)
    ends, topics = dict(found.ends), dict(found.topics)
    for place, position in catalog.positions().items():
        ends[place] = max(position.end_offset, ends.get(place, 0))
        topics[place.topic_id] = position.topic
    carried = encode_carried(NOTHING) if last is None else found.carried
    return replace(found, ends=ends, topics=topics, revisions=catalog.revisions(), carried=carried)


def _cluster_of(known: Snapshot) -> ClusterState | None:
    with suppress(CorruptDataError, UnsupportedFormatError):
        return decode_state(known.cluster) if known.cluster else None
    return None


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
        refuse_other_topics({written.where.topic for written in ranges}, known.topics)
        if numbered:
            ranges = _settle(storage, options, number(ranges, known.ends))
            written.update(_paths(ranges))
        at = now_ms()
        run = Run(run_id=new_run_id(), started_at=began_ms, finished_at=at, snapshot=None, written_at=at)
        rows = rows_of(ranges, known.ends, run)
        row = _put_snapshot(storage, known, run, rows, options.partitions, version=catalog.version + 1, batch=batch)
        try:
            catalog.commit([*rows, row], batch=batch, since_ms=began_ms)
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
    return {part.path for written in ranges for part in written.slices}


def _settle(
    storage: Storage, options: ArchiveSinkOptions, placed: Sequence[tuple[WrittenRange, int]]
) -> list[WrittenRange]:
    """The ranges at their offsets; those that tasks placed elsewhere are written again."""
    if all(written.base_offset == base for written, base in placed):
        return [written for written, _ in placed]
    with ArchiveWriter(storage, run_id=new_run_id(), compression=options.compression, limits=options.limits) as archive:
        parts = [
            None if written.base_offset == base else _move(archive, storage, written, base) for written, base in placed
        ]
    return [
        # With the codec of the batches, which only rows keep where batches are stored uncompressed.
        written
        if part is None
        else replace(written, slices=tuple(replace(stored, codec=written.slices[0].codec) for stored in part.slices))
        for (written, _), part in zip(placed, parts, strict=True)
    ]


def _move(archive: ArchiveWriter, storage: Storage, written: WrittenRange, base: int) -> PartitionWriter:
    where = written.where
    part = archive.partition(
        topic=where.topic,
        topic_id=topic_id_for(where.topic),
        partition=where.partition,
        packed=sum(piece.raw_bytes for piece in written.slices) < _PACKED_BYTES,
    )
    for stored in written.slices:
        for data, headers in read_logs(storage, stored):
            own = np.array(data)
            part.append(own, patch(own, headers, base_offset=headers["base_offset"] + (base - written.base_offset)))
    part.close()
    return part


def _put_snapshot(
    storage: Storage,
    known: Snapshot,
    run: Run,
    rows: Sequence[Segment | Gap],
    partitions: int | None = None,
    *,
    version: int = 0,
    batch: StreamBatch | None = None,
) -> Run:
    """Store the snapshot of this run, and return the run's row with it. `partitions`: at least so many of a topic."""
    topics = {**known.topics, **{row.topic_id: row.topic for row in rows}}
    written: dict[PartitionId, int] = {}
    for row in rows:
        place = PartitionId(topic_id=row.topic_id, partition=row.partition)
        written[place] = max(row.end_offset, written.get(place, 0))
    ends = {**known.ends, **written}
    # Also partitions of earlier writes: a backup since then wrote a snapshot that does not have the topic.
    ours = {place.topic_id for place in written}
    counts: dict[str, int] = {}
    for place in ends:
        if place.topic_id in ours:
            name = topics[place.topic_id]
            counts[name] = max(counts.get(name, partitions or 0), place.partition + 1)
    data = [row for row in rows if isinstance(row, Segment)]
    statistics: dict[str, Any] = {
        "command": "write",
        "topics": len(counts),
        "partitions": len(written),
        **{name: sum(getattr(row, name) for row in data) for name in ("records", "bytes", "raw_bytes")},
        "exit_code": EXIT_DONE,
        **({} if batch is None else {"stream": batch.stream, "batch": batch.batch_id}),
    }
    snapshot = Snapshot(
        run_id=run.run_id,
        taken_at_ms=run.written_at,
        cluster=encode_state(cluster_with(_cluster_of(known), counts, run.written_at)),
        ends=ends,
        topics=topics,
        # If a cluster is backed up here, too, this run changes nothing about its recovery points.
        recovery_points=known.recovery_points,
        behind=known.behind,
        carried=known.carried,
        registry=known.registry,
        revisions=known.revisions,
        gaps=gaps_of(row for row in rows if isinstance(row, Gap)),
        run=RunFacts(started_at=run.written_at, finished_at=run.written_at, statistics=statistics, commit=version),
    )
    document = encode(snapshot)
    path = snapshot_path(run.run_id, document, signed=storage.signing is not None)
    storage.put(path, document)
    return replace(run, snapshot=path, statistics=statistics)
