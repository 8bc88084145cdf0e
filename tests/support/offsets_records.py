"""Records of `__consumer_offsets` put together by hand, from the tables of Kafka's own message definitions."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from maxbrod.batch.columns import RECORD_SCHEMA, conform

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMIT, ABORT = 1, 0


class Row(NamedTuple):
    """A record of the topic; its offset is its place."""

    key: bytes | None
    value: bytes | None
    producer: int = -1
    """Not -1: in a transaction of this producer."""
    control: bool = False


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def compact(data: bytes) -> bytes:
    assert len(data) < 127
    return bytes((len(data) + 1,)) + data


def commit_key(group: str, topic: str, partition: int, *, kind: int = 1) -> bytes:
    return struct.pack(">h", kind) + text(group) + text(topic) + struct.pack(">i", partition)


def group_key(group: str) -> bytes:
    return struct.pack(">h", 2) + text(group)


def commit_value(offset: int, *, version: int = 3, metadata: str = "", epoch: int = -1, topic_id: bytes = b"") -> bytes:
    """Committed at 1,700,000,000,000; version 1 expires a second later."""
    parts = [struct.pack(">hq", version, offset)]
    if version >= 3:
        parts.append(struct.pack(">i", epoch))
    parts.append(compact(metadata.encode()) if version >= 4 else text(metadata))
    parts.append(struct.pack(">q", 1_700_000_000_000))
    if version == 1:
        parts.append(struct.pack(">q", 1_700_000_001_000))
    if version >= 4:
        # An unknown tagged field, too, as a later release may write it.
        tags = [b"\x00\x10" + topic_id] if topic_id else []
        parts.append(bytes((len(tags) + 1,)) + b"".join(tags) + b"\x63\x02zz")
    return b"".join(parts)


def marker(producer: int, kind: int) -> Row:
    return Row(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), producer, control=True)


def as_batch(rows: Sequence[Row], *, first: int = 0) -> pa.RecordBatch:
    named: dict[str, list[Any]] = {
        "offset": list(range(first, first + len(rows))),
        "timestamp_ms": [0] * len(rows),
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "producer_id": [row.producer for row in rows],
        "transactional": [row.producer != -1 for row in rows],
        "control": [row.control for row in rows],
    }
    arrays = {name: pa.array(values, RECORD_SCHEMA.field(name).type) for name, values in named.items()}
    return conform(pa.RecordBatch.from_pydict(arrays))
