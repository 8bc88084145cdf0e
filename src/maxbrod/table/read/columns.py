"""The columns of the table: those of Spark's own Kafka source, with its names and types, and some more.

Arrow or numpy makes each column for whole batches at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark

from maxbrod.batch.columns import number_array, number_column
from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.table.read.scope import SourcePartition

_US_PER_MS: Final = 1000
_MS_MAX: Final = (2**63 - 1) // _US_PER_MS
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS: Final = pa.list_(pa.field("element", _HEADER))
_SPARK_HEADERS: Final = spark.ArrayType(
    spark.StructType([spark.StructField("key", spark.StringType()), spark.StructField("value", spark.BinaryType())])
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    spark: spark.DataType
    arrow: pa.DataType
    make: Callable[[pa.RecordBatch, SourcePartition], pa.Array]
    needs: str | None = None
    """The column of records that it is made from; None: the row of the catalog is enough."""


def column_names(request: str | None) -> list[str]:
    """The columns of a comma-separated list; `*` means the usual ones. UsageError: one is unknown or occurs twice."""
    names: list[str] = []
    for name in (word.strip() for word in (request or "*").split(",")):
        names += USUAL if name == "*" else [name]
    check_names(names)
    return names


def check_names(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in _COLUMNS]
    if unknown:
        raise UsageError(f"the table has no column {unknown[0]!r}", hint=f"choose from {', '.join(_COLUMNS)}")
    if not names or len(set(names)) < len(names):
        raise UsageError(f"columns must be named once each, not {', '.join(names) or 'none'}")


def spark_schema(names: Sequence[str]) -> spark.StructType:
    return spark.StructType([spark.StructField(name, _COLUMNS[name].spark) for name in names])


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, _COLUMNS[name].arrow) for name in names])


def frame_of(session: SparkSession, rows: pa.Table, schema: spark.StructType) -> DataFrame:
    """A frame of rows that the driver has. PySpark cannot convert a table without any: it has no chunks."""
    return session.createDataFrame(rows.combine_chunks() if rows.num_rows else [], schema=schema)


def names_in(schema: spark.StructType) -> list[str]:
    """The columns of a schema that a user gave. UsageError: the table has one with another type."""
    check_names(schema.fieldNames())
    for field in schema.fields:
        ours = _COLUMNS[field.name].spark
        if field.dataType != ours:
            raise UsageError(f"the column {field.name} is {ours.simpleString()}, not {field.dataType.simpleString()}")
        if not field.nullable:
            raise UsageError(f"the column {field.name} may be null", hint="do not give a schema")
    return list(schema.fieldNames())


def needed(names: Sequence[str]) -> list[str]:
    """The columns of records that these are made from. At least one, because its length is the number of records."""
    return sorted({each for name in names if (each := _COLUMNS[name].needs) is not None} or {"offset"})


def are_in_rows(names: Sequence[str]) -> bool:
    """True if all of these follow from the row of a slice, so that no record needs to be read."""
    return all(_COLUMNS[name].needs is None for name in names)


def convert(records: pa.RecordBatch, source: SourcePartition, names: Sequence[str]) -> pa.RecordBatch:
    """Records as rows of the table."""
    columns = [_COLUMNS[name].make(records, source) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(names))


def _repeated(text: str, count: int) -> pa.Array:
    data = np.frombuffer(text.encode(), np.uint8)
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(data.size)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(np.tile(data, count))])


def _timestamps(records: pa.RecordBatch, _: SourcePartition) -> pa.Array:
    """Null for times out of the range of Spark's microseconds; `timestampMs` has those, too."""
    times: NDArray[np.int64] = number_column(records.column("timestamp_ms"))
    fits = (times >= -_MS_MAX) & (times <= _MS_MAX)
    microseconds = np.where(fits, times, 0) * _US_PER_MS
    valid = None if fits.all() else pa.py_buffer(np.packbits(fits, bitorder="little"))
    return pa.Array.from_buffers(_TIMESTAMP, len(times), [valid, pa.py_buffer(np.ascontiguousarray(microseconds))])


def _headers(records: pa.RecordBatch, _: SourcePartition) -> pa.Array:
    """Headers as Spark's source has them: null for a record without any, and keys as text."""
    lists = records.column("headers")
    entries = lists.flatten()
    fields = [_texts(entries.field(0)), entries.field(1)]
    made = pa.StructArray.from_arrays(fields, fields=list(_HEADER))
    counts = number_column(pc.list_value_length(lists))
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
    valid = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
    return pa.Array.from_buffers(_HEADERS, len(lists), [valid, pa.py_buffer(ends)], children=[made])


def _texts(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        # Not UTF-8: a replacement character, as Kafka's Java client does. Once for each distinct key, not each record.
        encoded = keys.dictionary_encode()
        words = [word.decode(errors="replace") for word in encoded.dictionary.to_pylist()]
        return pa.array(words, pa.string()).take(encoded.indices)


def _as_is(name: str, kind: spark.DataType, arrow: pa.DataType) -> _Column:
    return _Column(spark=kind, arrow=arrow, make=lambda records, _: records.column(name), needs=name)


def _wider(records: pa.RecordBatch, _: SourcePartition) -> pa.Array:
    return records.column("timestamp_type").cast(pa.int32())


_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_COLUMNS: Final = {
    "key": _as_is("key", spark.BinaryType(), pa.binary()),
    "value": _as_is("value", spark.BinaryType(), pa.binary()),
    "topic": _Column(
        spark=spark.StringType(),
        arrow=pa.string(),
        make=lambda records, source: _repeated(source.topic, records.num_rows),
    ),
    "partition": _Column(
        spark=spark.IntegerType(),
        arrow=pa.int32(),
        make=lambda records, source: number_array(np.full(records.num_rows, source.partition, np.int32)),
    ),
    "offset": _as_is("offset", spark.LongType(), pa.int64()),
    "timestamp": _Column(spark=spark.TimestampType(), arrow=_TIMESTAMP, make=_timestamps, needs="timestamp_ms"),
    "timestampType": _Column(spark=spark.IntegerType(), arrow=pa.int32(), make=_wider, needs="timestamp_type"),
    "headers": _Column(spark=_SPARK_HEADERS, arrow=_HEADERS, make=_headers, needs="headers"),
    "topicId": _Column(
        spark=spark.StringType(),
        arrow=pa.string(),
        make=lambda records, source: _repeated(source.topic_id, records.num_rows),
    ),
    "timestampMs": _as_is("timestamp_ms", spark.LongType(), pa.int64()),
    "leaderEpoch": _as_is("leader_epoch", spark.IntegerType(), pa.int32()),
    "producerId": _as_is("producer_id", spark.LongType(), pa.int64()),
    "producerEpoch": _as_is("producer_epoch", spark.ShortType(), pa.int16()),
    "sequence": _as_is("sequence", spark.IntegerType(), pa.int32()),
    "transactional": _as_is("transactional", spark.BooleanType(), pa.bool_()),
}
USUAL: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The columns of Spark's own Kafka source with `includeHeaders`."""
