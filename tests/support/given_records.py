"""Records of every odd kind for the tests of layouts, and their samples, written by the tools themselves."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from maxbrod.batch.columns import HEADERS_TYPE, conform

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class Given:
    """A record as a layout should give it back."""

    offset: int
    timestamp: int = 1_600_000_000_000
    timestamp_type: int = 0
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def contents(storage: Storage) -> dict[str, bytes]:
    return {info.path: bytes(storage.get(info.path)) for info in storage.list()}


def batch(records: list[Given], **columns: Any) -> pa.RecordBatch:
    """As a batch of RECORD_SCHEMA; `columns` has values for those that are not in `Given`."""
    headers = [[{"key": key, "value": value} for key, value in record.headers] for record in records]
    data = {
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp_ms": pa.array([record.timestamp for record in records], pa.int64()),
        "timestamp_type": pa.array([record.timestamp_type for record in records], pa.int8()),
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "headers": pa.array(headers, HEADERS_TYPE),
        **columns,
    }
    return conform(pa.RecordBatch.from_pydict(data))


def given_of(batches: Any) -> list[Given]:
    """The records of batches, each of which must be sound for Arrow, too."""
    found = []
    for each in batches:
        each.validate(full=True)
        found += [
            Given(
                offset=row["offset"],
                timestamp=row["timestamp_ms"],
                timestamp_type=row["timestamp_type"],
                key=row["key"],
                value=row["value"],
                headers=tuple((header["key"], header["value"]) for header in row["headers"]),
            )
            for row in each.to_pylist()
        ]
    return found


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


_BLOBS = st.one_of(st.none(), st.just(b""), st.binary(max_size=40))
_TIMES = st.one_of(st.sampled_from([0, -1, INT64_MAX, -INT64_MAX - 1]), st.integers(-(1 << 63), INT64_MAX))
_HEADERS = st.lists(st.tuples(st.one_of(st.just(b"h"), st.binary(max_size=8)), _BLOBS), max_size=4)


@st.composite
def some_records(draw: st.DrawFn, *, types: tuple[int, ...] = (-1, 0, 1), most: int = 20) -> list[Given]:
    """Any records with rising offsets, holes between them, from 0 to the highest that there is."""
    count = draw(st.integers(0, most))
    offsets = sorted(draw(st.sets(st.one_of(st.integers(0, 60), st.integers(0, INT64_MAX - 1)), max_size=count)))
    records = []
    for offset in offsets:
        kind = draw(st.sampled_from(types))
        records.append(
            Given(
                offset=offset,
                timestamp=-1 if kind == -1 else draw(_TIMES),
                timestamp_type=kind,
                key=draw(_BLOBS),
                value=draw(_BLOBS),
                headers=tuple(draw(_HEADERS)),
            )
        )
    return records


@st.composite
def in_batches(draw: st.DrawFn, records: list[Given]) -> list[list[Given]]:
    """The records cut into batches anywhere, empty ones among them."""
    cuts = sorted(draw(st.lists(st.integers(0, len(records)), max_size=4)))
    edges = [0, *cuts, len(records)]
    return [records[first:last] for first, last in pairwise(edges)]


def moved(records: list[Given], by: int) -> list[Given]:
    return [replace(record, offset=record.offset + by) for record in records]
