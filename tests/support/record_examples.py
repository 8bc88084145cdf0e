"""Records over the whole domain, for property tests, and the small conversions that tests need."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from maxbrod.batch.columns import RECORD_SCHEMA
from support.plain_batches import Record

INT64_MAX = (1 << 63) - 1

blobs = st.one_of(st.none(), st.just(b""), st.binary(max_size=200))
# Duplicate, empty and non-UTF-8 keys all happen in the field.
header_keys = st.one_of(st.just(b""), st.just(b"trace-id"), st.binary(max_size=12))
headers = st.lists(st.tuples(header_keys, st.one_of(st.none(), st.binary(max_size=20))), max_size=4)
# Milliseconds as they come: odd ones, negative ones, the far past and future in one batch.
timestamps = st.one_of(
    st.integers(1_600_000_000_000, 1_900_000_000_000),
    st.sampled_from([-1, 0, 1, -62_135_596_800_000, 253_402_300_799_999, 1 << 40, -(1 << 40)]),
    st.integers(-(1 << 52), 1 << 52),
)


@st.composite
def record_lists(draw: st.DrawFn, *, size_max: int = 12, holes: bool = True) -> list[Record]:
    count = draw(st.integers(1, size_max))
    offset = draw(st.one_of(st.integers(0, 1000), st.integers(0, INT64_MAX - (1 << 33))))
    records = []
    for _ in range(count):
        records.append(
            Record(
                offset=offset,
                timestamp=draw(timestamps),
                key=draw(blobs),
                value=draw(blobs),
                headers=draw(headers),
            )
        )
        offset += draw(st.one_of(st.just(1), st.integers(1, 1 << 20))) if holes else 1
    return records


def to_arrow(records: list[Record], **columns: Any) -> pa.RecordBatch:
    """Records as columns; `columns` adds or replaces whole ones."""
    rows = len(records)
    named = {
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp_ms": pa.array([record.timestamp for record in records], pa.int64()),
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "headers": pa.array(
            [[{"key": key, "value": value} for key, value in record.headers] for record in records],
            RECORD_SCHEMA.field("headers").type,
        ),
    }
    for name, value in columns.items():
        values = value if isinstance(value, list) else [value] * rows
        named[name] = pa.array(values, RECORD_SCHEMA.field(name).type)
    return pa.RecordBatch.from_pydict(named)


def to_records(batch: pa.RecordBatch) -> list[Record]:
    columns = ("offset", "timestamp_ms", "key", "value", "headers")
    return [
        Record(
            offset=offset,
            timestamp=timestamp,
            key=key,
            value=value,
            headers=[(header["key"], header["value"]) for header in headers],
        )
        for offset, timestamp, key, value, headers in zip(
            *(batch.column(name).to_pylist() for name in columns), strict=True
        )
    ]
