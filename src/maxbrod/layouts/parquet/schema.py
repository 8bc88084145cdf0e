"""The columns of a segment. The tool's own five come first, because its reader finds columns by position.

Every field is required, because the tool has no null. What that would lose is in additional columns, which the tool
ignores and any Parquet engine shows: null flags, the timestamp type, and the rest of a time that 64 bits of nanoseconds
cannot hold (before 1677, after 2262).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_HEADER: Final = pa.struct(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
HEADERS: Final = pa.list_(pa.field("element", _HEADER, nullable=False))
FLAGS: Final = pa.list_(pa.field("element", pa.bool_(), nullable=False))

TOOL_COLUMNS: Final = ("key", "value", "offset", "timestamp", "headers")

FILE_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("headers", HEADERS, nullable=False),
        pa.field("key_null", pa.bool_(), nullable=False),
        pa.field("value_null", pa.bool_(), nullable=False),
        pa.field("header_value_null", FLAGS, nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("timestamp_beyond_ms", pa.int64(), nullable=False),
    ]
)

SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "offset": ("offset",),
    "timestamp_ms": ("timestamp", "timestamp_beyond_ms"),
    "timestamp_type": ("timestamp", "timestamp_type"),
    "key": ("key", "key_null"),
    "value": ("value", "value_null"),
    "headers": ("headers", "header_value_null"),
}
"""The columns of the file from which a column of records is made. Others have Kafka's defaults."""

NANOSECONDS: Final = 1_000_000
"""Per millisecond."""
TIMESTAMP_MS_MAX: Final = ((1 << 63) - 1) // NANOSECONDS
"""The last millisecond that nanoseconds can represent; the first one is its negative."""
NO_TIMESTAMP: Final = -6_795_364_578_871_345_152
"""The tool's value for a message without a timestamp: the zero time of Go, truncated to 64 bits of nanoseconds.

No whole millisecond has this value.
"""
