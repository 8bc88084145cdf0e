"""What one task does that writes rows of a DataFrame into an archive: objects of its own, which nobody knows yet.

Memory is bounded whatever passes through: rows are held until there are enough to stand together by partition. Objects
have names of their own for each attempt, and only what the driver commits is ever read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from maxbrod.archive.surveyed import topic_id_for
from maxbrod.batch.columns import number_array, number_column
from maxbrod.catalog.run_ids import new_run_id
from maxbrod.errors import RefusedError
from maxbrod.layouts.kafka.names import check_topic
from maxbrod.layouts.kafka.records import append_records
from maxbrod.layouts.kafka.writing import ArchiveWriter
from maxbrod.model import TopicPartition, now_ms
from maxbrod.storage.opening import open_storage
from maxbrod.table.archive_sink.options import PARTITIONS_MAX
from maxbrod.table.archive_sink.plan import WrittenRange, id_of
from maxbrod.table.sink_columns import to_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from maxbrod.layouts.kafka.partition import PartitionWriter
    from maxbrod.model import PartitionId
    from maxbrod.table.archive_sink.options import SinkOptions
    from maxbrod.table.sink_columns import Rows

HELD_BYTES: Final = 32 << 20
"""So much of the rows is held, as columns, before it is written."""
_PACKED_BYTES: Final = 4 << 20
"""Partitions that begin with less than this share objects, as in a backup."""
_OPEN_MAX: Final = 8
"""So many segments are open at once; each holds a few megabytes on its way into the store."""


def write_task(
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    *,
    starts: Mapping[PartitionId, int],
    numbered: bool,
    task: int = 0,
) -> tuple[WrittenRange, ...]:
    """Write all rows. `numbered`: they name no offsets, and get those from `starts` on, which may be wrong.

    Whoever commits gives them others then.
    """
    with ArchiveWriter(
        open_storage(options.url, options.storage),
        run_id=new_run_id(),
        compression=options.compression,
        limits=options.limits,
    ) as archive:
        parts = _Parts(archive, options, starts if numbered else None)
        for runs in gather(_placed(options, batches, task), HELD_BYTES):
            for run in runs:
                parts.append(run)
    return parts.stretches()


def _placed(
    options: SinkOptions, batches: Iterable[pa.RecordBatch], task: int
) -> Iterator[tuple[Rows, NDArray[np.int32]]]:
    places, began_ms = Places(options.partitions, task), now_ms()
    for batch in batches:
        rows = to_rows(batch, topic=options.topic, now_ms=began_ms)
        yield rows, places.find(rows)


@dataclass(slots=True)
class _Part:
    """A partition on its way into the archive: from `next_offset` on."""

    writer: PartitionWriter
    packed: bool
    next_offset: int


class _Parts:
    """The partitions that a task has met."""

    def __init__(self, archive: ArchiveWriter, options: SinkOptions, starts: Mapping[PartitionId, int] | None) -> None:
        self._archive = archive
        self._options = options
        self._starts = starts
        self._now: dict[TopicPartition, _Part] = {}
        self._all: list[tuple[TopicPartition, PartitionWriter]] = []
        self._open: dict[TopicPartition, PartitionWriter] = {}
        """Those that have a segment of their own under way, the one that was written last at the end."""

    def append(self, run: PartitionRows) -> None:
        part = self._now.get(run.where)
        if part is None:
            part = self._now[run.where] = self._begin(run)
        records = run.records if self._starts is None else _number(run.records, part.next_offset)
        offsets = number_column(records.column("offset"))
        _refuse_wrong(offsets, run.where)
        if int(offsets[0]) < part.next_offset:
            # Not in order, but perhaps all of it before what came: whoever commits sees whether they interleave.
            part.writer.close()
            part = self._now[run.where] = self._begin(run)
        append_records(part.writer, records, codec=self._options.codec)
        part.next_offset = int(offsets[-1]) + 1
        self._leave(run.where, part)

    def stretches(self) -> tuple[WrittenRange, ...]:
        """Once the archive's block has ended well."""
        return tuple(WrittenRange(where=where, slices=each.slices) for where, each in self._all if each.slices)

    def _begin(self, run: PartitionRows) -> _Part:
        where = run.where
        check_topic(where.topic)
        packed = run.records.nbytes < _PACKED_BYTES
        writer = self._archive.partition(
            topic=where.topic, topic_id=topic_id_for(where.topic), partition=where.partition, packed=packed
        )
        self._all.append((where, writer))
        return _Part(writer, packed, 0 if self._starts is None else self._starts.get(id_of(where), 0))

    def _leave(self, where: TopicPartition, part: _Part) -> None:
        """What is packed must not wait for more: there may be a thousand of them."""
        if part.packed:
            part.writer.close()
            return
        self._open.pop(where, None)
        self._open[where] = part.writer
        if len(self._open) > _OPEN_MAX:
            self._open.pop(next(iter(self._open))).close()


def _number(records: pa.RecordBatch, start: int) -> pa.RecordBatch:
    offsets = number_array(start + np.arange(records.num_rows, dtype=np.int64))
    return pa.RecordBatch.from_arrays([*records.columns, offsets], names=[*records.schema.names, "offset"])


def _refuse_wrong(offsets: NDArray[np.int64], where: TopicPartition) -> None:
    """They are in order."""
    twice = np.flatnonzero(offsets[1:] == offsets[:-1])
    if twice.size or offsets[0] < 0:
        raise RefusedError(
            "an offset is there twice" if twice.size else "an offset is negative",
            operation="write",
            object_name=str(where),
            offset=int(offsets[twice[0]] if twice.size else offsets[0]),
            hint="a partition has each offset once; drop the column 'offset' to number the records anew",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRows:
    """Records of one partition, in the order in which they are to stand."""

    where: TopicPartition
    records: pa.RecordBatch


class Places:
    """Gives rows without a partition one of `partitions`: by key, as Kafka's Java client; without a key in turn.

    Turns begin at `task`, so that the tasks of a job do not all begin with the same partition, and one that is repeated
    does the same again.
    """

    def __init__(self, partitions: int | None, task: int = 0) -> None:
        self._count = partitions
        self._turn = task

    def find(self, rows: Rows) -> NDArray[np.int32]:
        """RefusedError: a row names no partition, and it is not known how many there are."""
        named = np.full(len(rows), -1, np.int32) if rows.partition is None else rows.partition
        open_rows = named < 0
        if not open_rows.any():
            _refuse_beyond(named)
            return named
        if self._count is None:
            raise RefusedError(
                "a row names no partition",
                operation="write",
                hint="give the option 'partitions' (how many), and rows go where their key hashes to",
            )
        from maxbrod.batch.murmur import partition_for  # noqa: PLC0415 - numba, which only tasks need

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
            f"a row names partition {int(partitions.max())}", operation="write", hint=f"at most {PARTITIONS_MAX} go"
        )


def gather(batches: Iterable[tuple[Rows, NDArray[np.int32]]], bytes_max: int) -> Iterator[list[PartitionRows]]:
    """The rows of some batches at a time, about `bytes_max`, as runs of one partition each.

    Within a run rows are in the order in which they came; if they name offsets, in the order of those.
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


def _with_places(rows: Rows, partition: NDArray[np.int32], codes: dict[str, int]) -> pa.RecordBatch:
    """`topic` as a number that stays the same over all batches."""
    own = np.array([codes.setdefault(name, len(codes)) for name in rows.topic.dictionary.to_pylist()], np.int32)
    topic = own[number_column(rows.topic.indices)] if len(rows) else np.empty(0, np.int32)
    columns = [*rows.records.columns, number_array(topic), number_array(partition)]
    return pa.RecordBatch.from_arrays(columns, names=[*rows.records.schema.names, "topic", "partition"])


def _by_partition(held: list[pa.RecordBatch], names: list[str]) -> list[PartitionRows]:
    rows = held[0] if len(held) == 1 else pa.concat_batches(held)
    if not rows.num_rows:
        return []
    rows = _sorted(rows)
    topic, partition = (number_column(rows.column(name)) for name in ("topic", "partition"))
    begins = np.flatnonzero((topic[1:] != topic[:-1]) | (partition[1:] != partition[:-1])) + 1
    edges = [0, *begins.tolist(), rows.num_rows]
    records = rows.drop_columns(["topic", "partition"])
    return [
        PartitionRows(
            where=TopicPartition(topic=names[int(topic[start])], partition=int(partition[start])),
            records=records.slice(start, end - start),
        )
        for start, end in pairwise(edges)
    ]


def _sorted(rows: pa.RecordBatch) -> pa.RecordBatch:
    keys = [number_column(rows.column(name)) for name in ("offset", "partition", "topic") if name in rows.schema.names]
    # Stable: rows that name no offset stay in the order in which they came.
    order = np.lexsort(keys)
    if (order[1:] > order[:-1]).all():
        return rows
    return rows.take(number_array(order))
