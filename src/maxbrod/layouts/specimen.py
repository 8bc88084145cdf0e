"""Two records that have something of everything, to compile kernels on."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from maxbrod.batch.conform import conform
from maxbrod.batch.schema import HEADERS_TYPE
from maxbrod.model import TopicPartition

WHERE: Final = TopicPartition(topic="t", partition=0)


def specimen() -> pa.RecordBatch:
    headers = [[{"key": b"h", "value": b"v"}, {"key": b"\xff", "value": None}], []]
    return conform(
        pa.RecordBatch.from_pydict(
            {
                "offset": pa.array([0, 1], pa.int64()),
                "timestamp_ms": pa.array([0, -1], pa.int64()),
                "key": pa.array([b"k", None], pa.binary()),
                "value": pa.array([b"v", None], pa.binary()),
                "headers": pa.array(headers, HEADERS_TYPE),
            }
        )
    )
