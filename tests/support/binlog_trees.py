"""A small archive of another tool, with old segments and a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from maxbrod.batch.columns import conform
from maxbrod.layouts.foreign import ClusterFacts, Survey, WriteOptions
from maxbrod.layouts.registry import layout_of
from maxbrod.model import TopicPartition
from maxbrod.storage.local import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

WHERE = TopicPartition(topic="orders", partition=0)
OLD_MS = 1_500_000_000_000


def records(first: int, count: int, timestamp_ms: int) -> pa.RecordBatch:
    values = [b"value %d" % offset for offset in range(first, first + count)]
    columns = {
        "offset": pa.array(range(first, first + count), pa.int64()),
        "timestamp_ms": pa.array([timestamp_ms] * count, pa.int64()),
        "key": pa.array([None] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    return conform(pa.RecordBatch.from_pydict(columns))


def old_tree(root: Path) -> Path:
    """Two old segments and one that will not be old for long."""
    storage, layout = LocalStorage(root), layout_of("binlog")
    for first, at in ((0, OLD_MS), (10, OLD_MS), (20, 4_000_000_000_000)):
        survey = layout.survey(storage) if first else Survey(layout="binlog", segments=())
        written = layout.write(storage, WHERE, [records(first, 10, at)], WriteOptions(), survey=survey)
        layout.publish(storage, survey, written, WriteOptions(), ClusterFacts())
    return root
