"""Converts records from simpler sources to RECORD_SCHEMA."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import headers_array, number_array, number_column
from maxbrod.batch.schema import RECORD_SCHEMA
from maxbrod.errors import UsageError
from maxbrod.model import TimestampType

_REQUIRED: Final = ("offset", "timestamp_ms", "key", "value")
_DEFAULTS: Final[dict[str, int | bool]] = {
    "timestamp_type": 0,
    "leader_epoch": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "sequence": -1,
    "transactional": False,
    "control": False,
}


def conform(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return `records` with every column of RECORD_SCHEMA. Missing columns get Kafka's defaults."""
    missing = [name for name in _REQUIRED if name not in records.schema.names]
    if missing:
        raise UsageError(f"records lack the column {', '.join(missing)}")
    arrays = [_column(records, field) for field in RECORD_SCHEMA]
    _check_range("offset", arrays[0], 0, None)
    _check_range("timestamp_type", arrays[2], TimestampType.NONE, TimestampType.LOG_APPEND)
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _check_range(name: str, column: pa.Array, least: int, most: int | None) -> None:
    values = number_column(column)
    if len(values) and (values.min() < least or (most is not None and values.max() > most)):
        known = f"{least} to {most}" if most is not None else f"{least} or more"
        raise UsageError(f"the record column {name} has {values.min()} to {values.max()}, but Kafka allows {known}")


def _column(records: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name in records.schema.names:
        column = records.column(field.name)
        try:
            column = column if column.type.equals(field.type) else column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(f"the record column {field.name} does not fit {field.type}: {error}") from error
        if not field.nullable and (column.null_count or (field.name == "headers" and _null_headers(column))):
            raise UsageError(f"the record column {field.name} must not be null")
        return column
    if field.name == "headers":
        nothing = pa.nulls(0, pa.binary())
        return headers_array(np.zeros(records.num_rows + 1, np.int32), nothing, nothing)
    return number_array(np.full(records.num_rows, _DEFAULTS[field.name], _dtype(field.type)))


def _dtype(kind: pa.DataType) -> str:
    return "?" if pa.types.is_boolean(kind) else f"i{kind.bit_width // 8}"


def _null_headers(headers: pa.Array) -> bool:
    """Whether any header, or any header key, is null. Kafka allows neither."""
    entries = headers.flatten()
    return bool(entries.null_count or entries.field(0).null_count)
