"""Frames of records whose read is planned in the driver, for queries.

For the format `maxbrod` Spark starts more Python processes: to look the format up, to create the source and to plan.
Here only tasks run Python, and if the rows of the catalog are enough, none does.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as spark_functions
from pyspark.sql.types import IntegerType

from maxbrod.batch.columns import number_array, text_array
from maxbrod.table.narrowing import READER
from maxbrod.table.read.columns import are_in_rows, frame_of, spark_schema
from maxbrod.table.read.counting import Count, count_slices
from maxbrod.table.read.scope import encode_scopes
from maxbrod.table.read.splits import find_slices, group, open_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maxbrod.table.read.options import TableOptions

_PACKED_BYTES_MAX: Final = 1 << 20
"""Every task gets the splits of all tasks. Beyond this, Spark would have to broadcast them."""
_CHUNK_RECORDS: Final = 1 << 14
_COUNTED_MAX: Final = _CHUNK_RECORDS << 20


def plan_frame(spark: SparkSession, options: TableOptions, names: Sequence[str]) -> DataFrame | None:
    """The columns `names` of the records that the options select. None: too many slices to plan them here."""
    archive = open_table(options)
    if are_in_rows(names):
        # All parts of the scope: Spark applies filters to these few rows, so a narrower read would gain nothing.
        counts = count_slices(find_slices(archive, replace(options, parts=())), replace(options, parts=()))
        # What rows count may be any number; tasks make so many rows in pieces.
        if counts is not None and sum(count.records for count in counts) <= _COUNTED_MAX:
            return _counted(spark, counts, names)
    splits = [pickle.dumps(split) for split in group(find_slices(archive, options), options.split_bytes)]
    if sum(map(len, splits)) > _PACKED_BYTES_MAX:
        return None
    read: Any = partial(_read, options, tuple(names), tuple(splits))
    # `narrowing` finds the scopes in the plan by this name.
    read.__name__ = READER + encode_scopes(options.parts)
    tasks = spark.range(0, len(splits), 1, max(len(splits), 1))
    return tasks.mapInArrow(read, spark_schema(names))


def _counted(spark: SparkSession, counts: Sequence[Count], names: Sequence[str]) -> DataFrame:
    """As many rows as there are records, made by Spark from a small table."""
    chunks = [
        (count, min(_CHUNK_RECORDS, count.records - first))
        for count in counts
        for first in range(0, count.records, _CHUNK_RECORDS)
    ]
    values = {
        "topic": text_array([each.topic for each, _ in chunks]),
        "partition": number_array(np.array([each.partition for each, _ in chunks], np.int32)),
        "topicId": text_array([each.topic_id for each, _ in chunks]),
        "records": number_array(np.array([records for _, records in chunks], np.int32)),
    }
    schema = spark_schema(names).add("records", IntegerType())
    few = frame_of(spark, pa.table({name: values[name] for name in schema.names}), schema)
    each = spark_functions.explode(spark_functions.array_repeat(spark_functions.lit(0), few["records"]))
    return few.select(*names, each.alias("record")).select(*names)


def _read(
    options: TableOptions, names: Sequence[str], splits: Sequence[bytes], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from maxbrod.storage.stores import open_storage  # noqa: PLC0415 - in tasks only
    from maxbrod.table.read.reading import read_split  # noqa: PLC0415 - numba, which the driver does not need

    storage = open_storage(options.url, options.storage)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            reads = pickle.loads(splits[number])  # noqa: S301 - the driver has packed it
            yield from read_split(storage, reads, options.scopes, names, committed=options.committed)
