"""The Arrow schema of records everywhere in maxbrod.

The caller knows topic and partition: every buffer belongs to one partition. Header keys are binary, not strings,
because Kafka stores whatever bytes a client sent.
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


def project(columns: list[str] | None) -> pa.Schema:
    """RECORD_SCHEMA cut to `columns`, in its own order; None is all of them."""
    if columns is None:
        return RECORD_SCHEMA
    if not columns:
        raise UsageError("no record column is requested", hint="to count records, sum the headers' count column")
    unknown = sorted(set(columns) - set(RECORD_SCHEMA.names))
    if unknown:
        raise UsageError(f"no such record column: {', '.join(unknown)}", hint=f"choose from {RECORD_SCHEMA.names}")
    return pa.schema([field for field in RECORD_SCHEMA if field.name in columns])
