"""The one Arrow schema that records have everywhere in maxbrod, and how other batches are fitted to it.

Topic and partition are the caller's: every buffer belongs to one partition. Header keys are binary, not
strings: Kafka stores whatever bytes a client sent.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from maxbrod.errors import UsageError

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(pa.field("header", HEADER_TYPE, nullable=False))

RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("producer_epoch", pa.int16(), nullable=False),
        pa.field("sequence", pa.int32(), nullable=False),
        pa.field("transactional", pa.bool_(), nullable=False),
        pa.field("control", pa.bool_(), nullable=False),
    ]
)

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


def project(columns: list[str] | None) -> pa.Schema:
    """RECORD_SCHEMA cut to `columns`, in its own order; None is all of them."""
    if columns is None:
        return RECORD_SCHEMA
    unknown = sorted(set(columns) - set(RECORD_SCHEMA.names))
    if unknown:
        raise UsageError(f"no such record column: {', '.join(unknown)}", hint=f"choose of {RECORD_SCHEMA.names}")
    return pa.schema([field for field in RECORD_SCHEMA if field.name in columns])


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
        offsets = pa.repeat(pa.scalar(0, pa.int32()), records.num_rows + 1)
        return pa.ListArray.from_arrays(offsets, pa.array([], HEADER_TYPE), type=HEADERS_TYPE)
    return pa.repeat(pa.scalar(_DEFAULTS[field.name], field.type), records.num_rows)
