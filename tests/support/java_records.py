"""Our columns as Java's records, and back, so that the two sides can be compared field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from maxbrod.batch.columns import HEADERS_TYPE
from support.java_oracle import JavaRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

# Every case that a record can be: null and empty, headers doubled, empty and null, times far apart and negative.
RECORDS = [
    JavaRecord(timestamp_ms=1_700_000_000_123, key=b"k0", value=b"v0"),
    JavaRecord(timestamp_ms=1_700_000_000_124, key=None, value=b"no key"),
    JavaRecord(timestamp_ms=1_700_000_000_001, key=b"tombstone", value=None),
    JavaRecord(timestamp_ms=0, key=b"", value=b"", headers=(("", b""), ("twice", b"1"), ("twice", b"2"))),
    JavaRecord(timestamp_ms=4_102_444_800_000, key=b"\xff\x00", value=bytes(range(256)), headers=(("null", None),)),
    JavaRecord(timestamp_ms=1_699_999_999_999, key=b"big", value=b"0123456789" * 20_000, headers=(("ä€", b"\xe2"),)),
]


def to_arrow(records: Sequence[JavaRecord], base_offset: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "offset": pa.array([base_offset + row for row in range(len(records))], pa.int64()),
            "timestamp_ms": pa.array([record.timestamp_ms for record in records], pa.int64()),
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "headers": pa.array(
                [[{"key": key.encode(), "value": value} for key, value in record.headers] for record in records],
                HEADERS_TYPE,
            ),
        }
    )


def to_java(records: pa.RecordBatch) -> list[JavaRecord]:
    names = ("timestamp_ms", "key", "value", "headers", "offset")
    return [
        JavaRecord(
            timestamp_ms=timestamp,
            key=key,
            value=value,
            headers=tuple((header["key"].decode(), header["value"]) for header in headers),
            offset=offset,
        )
        for timestamp, key, value, headers, offset in zip(
            *(records.column(name).to_pylist() for name in names), strict=True
        )
    ]


def at_offsets(records: Sequence[JavaRecord], base_offset: int = 0) -> list[JavaRecord]:
    return [record._replace(offset=base_offset + row) for row, record in enumerate(records)]
