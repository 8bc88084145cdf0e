"""Finds the records for which a SQL condition holds, as one Spark job over all rows that name their slices.

Not a query of the table: that returns the newest rows only, and a person must leave the older ones, too.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from maxbrod.batch.erased import Ranges
from maxbrod.batch.erasure import as_ranges
from maxbrod.layouts.kafka.format import PartitionName, Slice
from maxbrod.model import PartitionId
from maxbrod.storage.stores import open_storage
from maxbrod.table.read.columns import USUAL, spark_schema
from maxbrod.table.read.rows import read_split
from maxbrod.table.read.scope import Scope, SliceRead, SourcePartition
from maxbrod.transform.frame import is_mistake, mistakes
from maxbrod.work.jobs import board_of, collect, counted
from maxbrod.work.progress import Watcher
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from maxbrod.work.reach import Place

_COLUMNS = (*USUAL, "topicId", "timestampMs", "leaderEpoch", "producerId")


def find_by_condition(
    session: SparkSession,
    place: Place,
    slices: Sequence[tuple[PartitionName, Slice]],
    where: str,
    *,
    tasks: int,
    meter: Watcher | None = None,
    stop: threading.Event | None = None,
) -> dict[PartitionId, dict[int | None, Ranges]]:
    """Return the offsets of the records, by their leader epoch; also of aborted ones. UsageError: a wrong condition."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - workers load this module, too

    schema = spark_schema(_COLUMNS)
    with mistakes("--where"):
        _ = session.createDataFrame([], schema).where(sql.expr(where)).schema
    if not slices:
        return {}
    reads = [
        SliceRead(
            source=SourcePartition(topic=name.topic, topic_id=name.topic_id, partition=name.partition),
            stored=stored,
            end_offset=stored.end_offset,
        )
        for name, stored in slices
    ]
    payloads = [pickle.dumps(task) for task in spread([(read.stored.bytes, read) for read in reads], tasks)]
    with board_of(session, len(payloads)) as board, mistakes("--where"):
        records = session.range(0, len(payloads), 1, len(payloads)).mapInArrow(
            counted(partial(_read, place, payloads), board), schema
        )
        chosen = records.where(sql.expr(where)).select("topicId", "partition", "offset", "leaderEpoch")
        found = collect(session, chosen, name="erase", meter=meter, stop=stop, board=board, passed_on=is_mistake)
    return _by_partition(found)


def _read(place: Place, payloads: Sequence[bytes], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    storage = open_storage(place.url, place.storage)
    for batch in batches:
        for task in batch.column(0).to_pylist():
            reads = pickle.loads(payloads[task])  # noqa: S301 - the driver has pickled it
            yield from read_split(storage, reads, (Scope(),), _COLUMNS, committed=False)


def _by_partition(found: pa.Table) -> dict[PartitionId, dict[int | None, Ranges]]:
    offsets: dict[PartitionId, dict[int | None, Ranges]] = {}
    for topic_id in found["topicId"].unique().to_pylist():
        mine = found.filter(pa.compute.equal(found["topicId"], topic_id))
        partitions, epochs, numbers = (mine[name].to_numpy() for name in ("partition", "leaderEpoch", "offset"))
        for partition, epoch in np.unique(np.stack([partitions, epochs]), axis=1).T.tolist():
            ordered = np.unique(numbers[(partitions == partition) & (epochs == epoch)])
            place = PartitionId(topic_id=topic_id, partition=partition)
            offsets.setdefault(place, {})[epoch] = as_ranges(ordered)
    return offsets
