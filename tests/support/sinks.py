"""DataFrames written in this process: what Spark does with a writer, pickling included, without Spark."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from maxbrod.archive.archive import open_archive
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.table.source import ArchiveSource
from support.table_archives import query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.table.sink.archive import ArchiveCommitMessage
    from maxbrod.table.source import SinkWriter

Row = dict[str, Any]
COLUMNS = "topic string, partition int, key binary, value binary"
WITH_OFFSETS = f"{COLUMNS}, offset bigint"
ALL = f"{WITH_OFFSETS}, timestampMs bigint, timestampType int, headers headers"
_HEADER = spark.StructType().add("key", spark.StringType()).add("value", spark.BinaryType())
_TYPES: dict[str, spark.DataType] = {
    "binary": spark.BinaryType(),
    "string": spark.StringType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "double": spark.DoubleType(),
    "timestamp": spark.TimestampType(),
    "map": spark.MapType(spark.StringType(), spark.BinaryType()),
    "headers": spark.ArrayType(_HEADER),
}


def schema_of(columns: str) -> spark.StructType:
    """Spark's own parser of such texts runs in a JVM."""
    words = (column.split() for column in columns.split(", "))
    return spark.StructType([spark.StructField(name, _TYPES[kind]) for name, kind in words])


def writer(url: object, columns: str = COLUMNS, **options: str) -> SinkWriter:
    source = ArchiveSource({"path": str(url), **options})
    made: SinkWriter = pickle.loads(cloudpickle.dumps(source.writer(schema_of(columns), overwrite=False)))
    return made


def batches(rows: Sequence[Row], columns: str = COLUMNS, batch_rows: int = 3) -> list[pa.RecordBatch]:
    schema = to_arrow_schema(schema_of(columns), timezone="UTC")
    parts = [rows[start : start + batch_rows] for start in range(0, len(rows), batch_rows)]
    return [pa.RecordBatch.from_pylist(list(part), schema=schema) for part in parts]


def run_tasks(made: SinkWriter, tasks: Sequence[Sequence[Row]], columns: str = COLUMNS) -> list[ArchiveCommitMessage]:
    return [pickle.loads(cloudpickle.dumps(made.write(iter(batches(rows, columns))))) for rows in tasks]


def save(url: object, tasks: Sequence[Sequence[Row]], columns: str = COLUMNS, **options: str) -> None:
    """One job: the rows of each task, then the commit."""
    made = writer(url, columns, **options)
    made.commit(list(run_tasks(made, tasks, columns)))


def stream(
    url: object, batch_id: int, tasks: Sequence[Sequence[Row]], *, name: str | None = "s", **options: str
) -> None:
    """One micro-batch of a stream; a writer of its own commits it, as on Spark."""
    source = ArchiveSource({"path": str(url), "checkpointlocation": "/x", **options})
    schema = schema_of(COLUMNS)
    made = source.streamWriter(schema=schema, overwrite=False)
    messages = [replace(each, stream=name) for each in run_tasks(made, tasks)]
    source.streamWriter(schema=schema, overwrite=False).commit(messages, batch_id)


def table(url: object, **options: Any) -> dict[tuple[str, int], list[Row]]:
    """All rows by topic and partition, in the order of offsets."""
    found: dict[tuple[str, int], list[Row]] = {}
    names = "topic,partition,offset,key,value,timestampMs,timestampType,headers"
    for row in sorted(query(url, columns=names, **options), key=lambda row: row["offset"]):
        found.setdefault((row["topic"], row["partition"]), []).append(row)
    return found


def values(url: object, **options: str) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """Offset and value of each row."""
    return {place: [(row["offset"], row["value"]) for row in rows] for place, rows in table(url, **options).items()}


def assert_sound(url: object) -> None:
    """Rows tile, the last snapshot tells all of it, and every slice is what its row says."""
    archive = open_archive(str(url))
    rows = archive.catalog.rows()
    assert find_tiling_faults(rows).complete
    for row in decode_rows(rows):
        if isinstance(row, Segment):
            assert verify_slice(archive.storage, slice_of(row)) == []
