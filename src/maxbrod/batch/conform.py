"""Fits records from a simpler source to RECORD_SCHEMA."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import headers_array, number_array
from maxbrod.batch.schema import RECORD_SCHEMA
from maxbrod.errors import UsageError

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
    """`records` with every column of RECORD_SCHEMA: what a simple source leaves out gets Kafka's own default."""
    missing = [name for name in _REQUIRED if name not in records.schema.names]
    if missing:
        raise UsageError(f"records lack the column {', '.join(missing)}")
    if records.schema.equals(RECORD_SCHEMA):
        return records
    return pa.RecordBatch.from_arrays([_column(records, field) for field in RECORD_SCHEMA], schema=RECORD_SCHEMA)


def _column(records: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name in records.schema.names:
        column = records.column(field.name)
        if column.null_count and not field.nullable:
            raise UsageError(f"the record column {field.name} must not be null")
        return column if column.type.equals(field.type) else column.cast(field.type)
    if field.name == "headers":
        nothing = pa.nulls(0, pa.binary())
        return headers_array(np.zeros(records.num_rows + 1, np.int32), nothing, nothing)
    return number_array(np.full(records.num_rows, _DEFAULTS[field.name], _dtype(field.type)))


def _dtype(kind: pa.DataType) -> str:
    return "?" if pa.types.is_boolean(kind) else f"i{kind.bit_width // 8}"
