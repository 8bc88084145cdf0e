"""Records whose keys and values begin with schema ids."""

from __future__ import annotations

import struct

import pyarrow as pa

from maxbrod.batch.columns import RECORD_SCHEMA, conform

Headers = list[tuple[bytes, bytes | None]]


def frame(number: int, data: bytes = b"") -> bytes:
    return struct.pack(">bI", 0, number) + data


def batch(*records: tuple[bytes | None, bytes | None, Headers]) -> pa.RecordBatch:
    rows = [
        {
            "offset": 10 + place,
            "timestamp_ms": place,
            "key": key,
            "value": value,
            "headers": [{"key": name, "value": text} for name, text in headers],
        }
        for place, (key, value, headers) in enumerate(records)
    ]
    names = ("offset", "timestamp_ms", "key", "value", "headers")
    return conform(pa.RecordBatch.from_pylist(rows, schema=pa.schema([RECORD_SCHEMA.field(name) for name in names])))
