"""Assigns rows of a DataFrame to partitions and encodes them as record batches.

The partition is the row's own; otherwise that of its key, as Kafka's Java client hashes it; without a key, rows take
turns. The first turn follows from the task, so that a repeated task sends the same rows to the same partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.murmur import partition_for
from maxbrod.batch.sharing import encode_shared
from maxbrod.errors import RefusedError
from maxbrod.model import Codec, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.table.kafka_sink.topics import Target
    from maxbrod.table.sink_columns import Rows

PORTION_BYTES: Final = 16 << 20
"""About how much is encoded at once. With many partitions, more makes larger batches."""
_TOPIC_STRIDE: Final = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBatches:
    """Encoded batches for one partition; `data` is shared with others. `source` names the row of each, for errors."""

    target: Target
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
    rows: Rows, targets: Sequence[Target], *, first_row: int, task: int, codec: Codec
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
    limit = min(each.batch_bytes_max for each in targets)
    shared = encode_shared(_ordered(rows.records, order), place, codec=codec, batch_bytes_max=limit)
    of_batch = place[shared.row]
    edges = np.append(np.flatnonzero(np.diff(of_batch, prepend=-1)), len(of_batch)).tolist()
    found = []
    for start, end in pairwise(edges):
        target = targets[of_batch[start] // _TOPIC_STRIDE]
        found.append(
            PartitionBatches(
                target=target,
                where=TopicPartition(topic=target.topic, partition=int(of_batch[start] % _TOPIC_STRIDE)),
                data=shared.data,
                headers=shared.headers.take(slice(start, end)),
                source=source[order[shared.row[start:end]]],
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
    rows: Rows, topic: NDArray[np.int64], targets: Sequence[Target], *, first_row: int, task: int
) -> NDArray[np.int64]:
    chosen = np.full(len(rows), -1, np.int64) if rows.partition is None else rows.partition.astype(np.int64)
    open_rows = chosen == -1
    counts = np.array([each.partitions for each in targets], np.int64)[topic]
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
