"""Which partition a row goes to, where it names none, and the rows of each partition together. Arrow and numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import number_array, number_column
from maxbrod.errors import RefusedError
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from maxbrod.table.sink_columns import Rows

PARTITIONS_MAX: Final = 1_000_000
"""Of a topic. Far above what clusters have; a number beyond it is a mistake, and snapshots have a place for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
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


def gather(batches: Iterable[tuple[Rows, NDArray[np.int32]]], bytes_max: int) -> Iterator[list[Run]]:
    """The rows of some batches at a time, about `bytes_max`, as runs of one partition each.

    Within a run rows are in the order in which they came; if they name offsets, in the order of those.
    """
    codes: dict[str, int] = {}
    held: list[pa.RecordBatch] = []
    size = 0
    for rows, partition in batches:
        if held and size + rows.records.nbytes > bytes_max:
            yield _runs(held, list(codes))
            held, size = [], 0
        held.append(_with_places(rows, partition, codes))
        size += rows.records.nbytes
    if held:
        yield _runs(held, list(codes))


def _with_places(rows: Rows, partition: NDArray[np.int32], codes: dict[str, int]) -> pa.RecordBatch:
    """`topic` as a number that stays the same over all batches."""
    own = np.array([codes.setdefault(name, len(codes)) for name in rows.topic.dictionary.to_pylist()], np.int32)
    topic = own[number_column(rows.topic.indices)] if len(rows) else np.empty(0, np.int32)
    columns = [*rows.records.columns, number_array(topic), number_array(partition)]
    return pa.RecordBatch.from_arrays(columns, names=[*rows.records.schema.names, "topic", "partition"])


def _runs(held: list[pa.RecordBatch], names: list[str]) -> list[Run]:
    rows = held[0] if len(held) == 1 else pa.concat_batches(held)
    if not rows.num_rows:
        return []
    rows = _sorted(rows)
    topic, partition = (number_column(rows.column(name)) for name in ("topic", "partition"))
    begins = np.flatnonzero((topic[1:] != topic[:-1]) | (partition[1:] != partition[:-1])) + 1
    edges = [0, *begins.tolist(), rows.num_rows]
    records = rows.drop_columns(["topic", "partition"])
    return [
        Run(
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
