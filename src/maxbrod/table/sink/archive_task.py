"""One task of a write into an archive: stores the rows of a DataFrame in objects of its own, which no row names yet.

Memory is bounded: rows are collected by partition up to a limit and then written. Every attempt has its own object
names, and only what the driver commits is ever read. A row without a partition gets one by its key, as in Kafka's Java
client, or in turn. Conversions use Arrow and numpy only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.archive.surveyed import topic_id_for
from maxbrod.batch.columns import number_array, number_column
from maxbrod.catalog.rows import new_run_id
from maxbrod.errors import RefusedError
from maxbrod.layouts.kafka.format import check_topic
from maxbrod.layouts.kafka.records import append_records
from maxbrod.layouts.kafka.writer import ArchiveWriter, PartitionWriter
from maxbrod.model import PartitionId, TopicPartition, now_ms
from maxbrod.storage.stores import open_storage
from maxbrod.table.sink.archive_plan import WrittenRange, id_of
from maxbrod.table.sink.input import PARTITIONS_MAX, ArchiveSinkOptions, SinkRows, to_rows

HELD_BYTES: Final = 32 << 20
"""The most bytes of rows that are collected, as columns, before they are written."""
_PACKED_BYTES: Final = 4 << 20
"""Partitions that begin with less than this share objects, as in a backup."""
_OPEN_MAX: Final = 8
"""The most segments that are open at once. Each buffers a few megabytes of its upload."""
_Rows: TypeAlias = tuple[TopicPartition, pa.RecordBatch]
"""Records of one partition, in their final order."""


def write_task(
    options: ArchiveSinkOptions,
    batches: Iterable[pa.RecordBatch],
    *,
    starts: Mapping[PartitionId, int],
    numbered: bool,
    task: int = 0,
) -> tuple[WrittenRange, ...]:
    """Write all rows. `numbered`: they have no offsets, and get those from `starts` on.

    These may be wrong; then the commit gives them others.
    """
    with ArchiveWriter(
        open_storage(options.url, options.storage),
        run_id=new_run_id(),
        compression=options.compression,
        limits=options.limits,
    ) as archive:
        parts = _Parts(archive, options, starts if numbered else None)
        places, began_ms = Places(options.partitions, task), now_ms()
        rows = (to_rows(batch, topic=options.topic, now_ms=began_ms) for batch in batches)
        for group in gather(((batch, places.find(batch)) for batch in rows), HELD_BYTES):
            for where, records in group:
                parts.append(where, records)
    return parts.ranges()


@dataclass(slots=True)
class _Part:
    """The writer of one partition and its next offset."""

    writer: PartitionWriter
    packed: bool
    next_offset: int


class _Parts:
    """The partitions of a task."""

    def __init__(
        self, archive: ArchiveWriter, options: ArchiveSinkOptions, starts: Mapping[PartitionId, int] | None
    ) -> None:
        self._archive = archive
        self._options = options
        self._starts = starts
        self._now: dict[TopicPartition, _Part] = {}
        self._all: list[tuple[TopicPartition, PartitionWriter]] = []
        self._open: dict[TopicPartition, PartitionWriter] = {}
        """Partitions with an open segment, the least recently written first."""

    def append(self, where: TopicPartition, records: pa.RecordBatch) -> None:
        part = self._now.get(where)
        if part is None:
            part = self._now[where] = self._begin(where, records.nbytes)
        if self._starts is not None:
            numbers = number_array(part.next_offset + np.arange(records.num_rows, dtype=np.int64))
            names = [*records.schema.names, "offset"]
            records = pa.RecordBatch.from_arrays([*records.columns, numbers], names=names)
        offsets = number_column(records.column("offset"))
        _refuse_wrong(offsets, where)
        if int(offsets[0]) < part.next_offset:
            # Not in order. The commit checks whether the ranges interleave; they may not, if all of this is earlier.
            part.writer.close()
            part = self._now[where] = self._begin(where, records.nbytes)
        append_records(part.writer, records, codec=self._options.codec)
        part.next_offset = int(offsets[-1]) + 1
        self._leave(where, part)

    def ranges(self) -> tuple[WrittenRange, ...]:
        """Call it after the block of the archive writer has ended without an error."""
        return tuple(WrittenRange(where=where, slices=writer.slices) for where, writer in self._all if writer.slices)

    def _begin(self, where: TopicPartition, size: int) -> _Part:
        check_topic(where.topic)
        packed = size < _PACKED_BYTES
        writer = self._archive.partition(
            topic=where.topic, topic_id=topic_id_for(where.topic), partition=where.partition, packed=packed
        )
        self._all.append((where, writer))
        return _Part(writer, packed, 0 if self._starts is None else self._starts.get(id_of(where), 0))

    def _leave(self, where: TopicPartition, part: _Part) -> None:
        """Close what need not stay open. A packed partition is closed at once, because there may be a thousand."""
        if part.packed:
            part.writer.close()
            return
        self._open.pop(where, None)
        self._open[where] = part.writer
        if len(self._open) > _OPEN_MAX:
            self._open.pop(next(iter(self._open))).close()


def _refuse_wrong(offsets: NDArray[np.int64], where: TopicPartition) -> None:
    """RefusedError: an offset is duplicate or negative. The offsets are sorted."""
    twice = np.flatnonzero(offsets[1:] == offsets[:-1])
    if twice.size or offsets[0] < 0:
        raise RefusedError(
            "an offset occurs twice" if twice.size else "an offset is negative",
            operation="write",
            object_name=str(where),
            offset=int(offsets[twice[0]] if twice.size else offsets[0]),
            hint="a partition has each offset once; drop the column 'offset' to number the records anew",
        )


class Places:
    """Assigns a partition to rows that name none: by key, as Kafka's Java client does, or in turn without a key.

    Turns begin at `task`, so that tasks do not all begin with the same partition, and a repeated task assigns the same.
    """

    def __init__(self, partitions: int | None, task: int = 0) -> None:
        self._count = partitions
        self._turn = task

    def find(self, rows: SinkRows) -> NDArray[np.int32]:
        """RefusedError: a row names no partition, and their number is not given."""
        named = np.full(len(rows), -1, np.int32) if rows.partition is None else rows.partition
        open_rows = named < 0
        if not open_rows.any():
            _refuse_beyond(named)
            return named
        if self._count is None:
            raise RefusedError(
                "a row names no partition",
                operation="write",
                hint="give the option 'partitions' (their number) to place rows by the hash of their key",
            )
        from maxbrod.batch.hashes import partition_for  # noqa: PLC0415 - numba, which only tasks need

        chosen = partition_for(rows.records.column("key"), self._count, null_partition=0)
        keyless = open_rows & ~number_column(rows.records.column("key").is_valid())
        in_turn = int(np.count_nonzero(keyless))
        chosen[keyless] = (self._turn + np.arange(in_turn)) % self._count
        self._turn = (self._turn + in_turn) % self._count
        found = np.where(open_rows, chosen, named)
        _refuse_beyond(found)
        return found


def _refuse_beyond(partitions: NDArray[np.int32]) -> None:
    if len(partitions) and int(partitions.max()) >= PARTITIONS_MAX:
        raise RefusedError(
            f"a row names partition {int(partitions.max())}",
            operation="write",
            hint=f"a topic has at most {PARTITIONS_MAX}",
        )


def gather(batches: Iterable[tuple[SinkRows, NDArray[np.int32]]], bytes_max: int) -> Iterator[list[_Rows]]:
    """The rows of about `bytes_max` of batches at a time, by partition.

    Within a partition rows keep their order; if they have offsets, they are sorted by them.
    """
    codes: dict[str, int] = {}
    held: list[pa.RecordBatch] = []
    size = 0
    for rows, partition in batches:
        if held and size + rows.records.nbytes > bytes_max:
            yield _by_partition(held, list(codes))
            held, size = [], 0
        held.append(_with_places(rows, partition, codes))
        size += rows.records.nbytes
    if held:
        yield _by_partition(held, list(codes))


def _with_places(rows: SinkRows, partition: NDArray[np.int32], codes: dict[str, int]) -> pa.RecordBatch:
    """With the partition, and the topic as a number that is the same in all batches."""
    own = np.array([codes.setdefault(name, len(codes)) for name in rows.topic.dictionary.to_pylist()], np.int32)
    topic = own[number_column(rows.topic.indices)] if len(rows) else np.empty(0, np.int32)
    columns = [*rows.records.columns, number_array(topic), number_array(partition)]
    return pa.RecordBatch.from_arrays(columns, names=[*rows.records.schema.names, "topic", "partition"])


def _by_partition(held: list[pa.RecordBatch], names: list[str]) -> list[_Rows]:
    rows = held[0] if len(held) == 1 else pa.concat_batches(held)
    if not rows.num_rows:
        return []
    keys = [number_column(rows.column(name)) for name in ("offset", "partition", "topic") if name in rows.schema.names]
    # The sort is stable, so rows without offsets keep their order.
    order = np.lexsort(keys)
    if not (order[1:] > order[:-1]).all():
        rows = rows.take(number_array(order))
    topic, partition = (number_column(rows.column(name)) for name in ("topic", "partition"))
    begins = np.flatnonzero((topic[1:] != topic[:-1]) | (partition[1:] != partition[:-1])) + 1
    edges = [0, *begins.tolist(), rows.num_rows]
    records = rows.drop_columns(["topic", "partition"])
    return [
        (
            TopicPartition(topic=names[int(topic[start])], partition=int(partition[start])),
            records.slice(start, end - start),
        )
        for start, end in pairwise(edges)
    ]
