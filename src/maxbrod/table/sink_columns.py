"""The columns of a DataFrame that is written: their names and types, and how they become records.

Columns of Spark's own Kafka sink are accepted as it accepts them, with text for keys and values. Arrow or numpy
converts whole batches, never single records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from maxbrod.batch.columns import headers_array, number_array, number_column
from maxbrod.errors import RefusedError, UsageError
from maxbrod.model import TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray

_US_PER_MS: Final = 1000
_BYTES: Final = (spark.BinaryType, spark.StringType)
_TYPES: Final[dict[str, tuple[type[spark.DataType], ...]]] = {
    "topic": (spark.StringType,),
    "partition": (spark.IntegerType,),
    "offset": (spark.LongType,),
    "key": _BYTES,
    "value": _BYTES,
    "timestamp": (spark.TimestampType,),
    "timestampMs": (spark.LongType,),
    "timestampType": (spark.IntegerType,),
    "headers": (spark.ArrayType,),
}
"""Every column that may be written, and its types."""
_HEADERS: Final = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRows:
    """Rows of a DataFrame: records, their topics, and their partitions and offsets if the rows have them."""

    records: pa.RecordBatch
    """`timestamp_ms`, `timestamp_type`, `key`, `value` and `headers` of RECORD_SCHEMA, and `offset` if it is given."""
    topic: pa.DictionaryArray
    """Text, never null, each once in the dictionary."""
    partition: NDArray[np.int32] | None
    """-1 where the row has null."""

    def __len__(self) -> int:
        return int(self.records.num_rows)


def check_columns(schema: spark.StructType, *, topic: str | None) -> None:
    """UsageError: a column is missing, unknown, duplicate or of another type. `topic` is the topic of all rows."""
    names = schema.fieldNames()
    unknown = [name for name in names if name not in _TYPES]
    if unknown:
        raise UsageError(
            f"a record has no column {unknown[0]!r}",
            hint=f"select or rename before writing; records have {', '.join(_TYPES)}",
        )
    if len(set(names)) < len(names):
        raise UsageError("a column occurs twice", hint="select each column once before writing")
    for field in schema.fields:
        _check_type(field)
    if "value" not in names:
        raise UsageError("the DataFrame has no column 'value'", hint="select the value of the records under this name")
    if topic is None and "topic" not in names:
        raise UsageError("no topic is named", hint="give a column 'topic', or the option 'topic' for all rows")


def _check_type(field: spark.StructField) -> None:
    expected = _TYPES[field.name]
    fits = isinstance(field.dataType, expected)
    if field.name == "headers" and fits:
        fits = _are_headers(field.dataType)
    if not fits:
        words = [each().simpleString() for each in expected] if field.name != "headers" else [_HEADERS]
        raise UsageError(
            f"the column {field.name} is {field.dataType.simpleString()}, not {' or '.join(words)}",
            hint="cast it before writing",
        )


def _are_headers(kind: Any) -> bool:  # noqa: ANN401 - of Spark, which is not typed
    entry = kind.elementType
    return (
        isinstance(entry, spark.StructType)
        and entry.fieldNames() == ["key", "value"]
        and all(isinstance(field.dataType, _BYTES) for field in entry.fields)
    )


def to_rows(batch: pa.RecordBatch, *, topic: str | None, now_ms: int) -> SinkRows:
    """Convert a batch of a DataFrame whose columns were checked. SinkRows without a timestamp get `now_ms`.

    `topic` is the topic of all rows, whatever their column has. RefusedError: a row has null where it must not.
    """
    names = batch.schema.names

    def column(name: str) -> pa.Array | None:
        return batch.column(name) if name in names else None

    count = batch.num_rows
    columns = {
        "timestamp_ms": number_array(_timestamps(column("timestampMs"), column("timestamp"), now_ms, count)),
        "timestamp_type": number_array(_timestamp_types(column("timestampType"), count)),
        "key": _bytes(column("key"), count),
        "value": _bytes(column("value"), count),
        "headers": _headers(column("headers"), count),
    }
    offsets = column("offset")
    if offsets is not None:
        _refuse_null("offset", offsets)
        columns["offset"] = offsets
    partitions = column("partition")
    return SinkRows(
        records=pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)),
        topic=_topics(column("topic"), topic, count),
        partition=None if partitions is None else _partitions(partitions),
    )


def numbers(array: pa.Array, default: int) -> NDArray[Any]:
    """The values of an array of integers, with `default` for null."""
    if not array.null_count:
        return number_column(array)
    valid = number_column(array.is_valid())
    if not valid.any():
        return np.full(len(array), default, f"i{array.type.bit_width // 8}")
    return np.where(valid, number_column(array), default)


def _topics(column: pa.Array | None, topic: str | None, count: int) -> pa.DictionaryArray:
    if topic is not None:
        return pa.DictionaryArray.from_arrays(number_array(np.zeros(count, np.int32)), pa.array([topic], pa.string()))
    if column is None:
        raise UsageError("no topic is named", hint="give a column 'topic', or the option 'topic' for all rows")
    _refuse_null("topic", column)
    return column.cast(pa.string()).dictionary_encode()


def _partitions(column: pa.Array) -> NDArray[np.int32]:
    found = numbers(column, 0)
    if len(found) and int(found.min()) < 0:
        raise RefusedError(
            f"a row names partition {int(found.min())}", operation="write", hint="partitions count from 0"
        )
    return numbers(column, -1)


def _timestamps(exact: pa.Array | None, column: pa.Array | None, now_ms: int, count: int) -> NDArray[np.int64]:
    """Milliseconds if given, otherwise the timestamp rounded down to milliseconds, otherwise now."""
    times = np.full(count, now_ms, np.int64)
    if column is not None:
        valid = number_column(column.is_valid())
        # Down, not towards 1970, so that negative times keep their order.
        times = np.where(valid, numbers(column.cast(pa.timestamp("us", tz="UTC")), 0) // _US_PER_MS, times)
    if exact is not None:
        times = np.where(number_column(exact.is_valid()), numbers(exact, 0), times)
    return times


def _timestamp_types(column: pa.Array | None, count: int) -> NDArray[np.int8]:
    if column is None:
        return np.full(count, TimestampType.CREATE, np.int8)
    found = numbers(column, TimestampType.CREATE)
    wrong = np.flatnonzero((found < TimestampType.NONE) | (found > TimestampType.LOG_APPEND))
    if wrong.size:
        raise RefusedError(
            f"a row has the timestampType {int(found[wrong[0]])}",
            hint="Kafka has 0 (create time) and 1 (append time)",
        )
    return found.astype(np.int8)


def _bytes(column: pa.Array | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.binary()) if column is None else column.cast(pa.binary())


def _headers(column: pa.Array | None, count: int) -> pa.Array:
    if column is None:
        return headers_array(np.zeros(count + 1, np.int32), *(pa.nulls(0, pa.binary()),) * 2)
    entries = column.flatten()
    keys, values = (each.cast(pa.binary()) for each in entries.flatten())
    if entries.null_count or keys.null_count:
        raise RefusedError("a row has a header that is null, or whose key is", hint="Kafka has no such header")
    counts = numbers(pc.list_value_length(column), 0)
    return headers_array(np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)]), keys, values)


def _refuse_null(name: str, column: pa.Array) -> None:
    if column.null_count:
        row = int(np.flatnonzero(~number_column(column.is_valid()))[0])
        raise RefusedError(
            f"the column {name} is null in a row (the {row + 1}. of its batch)",
            operation="write",
            hint=f"filter such rows out before writing: where {name} is not null",
        )
