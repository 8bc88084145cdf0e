"""Archives of Parquet segments for tests: small ones of ours, the real tool's samples, plain ways to look at them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from maxbrod.batch.columns import RECORD_SCHEMA, conform
from maxbrod.layouts.foreign import ClusterFacts, CompactionLimits, ForeignSegment, Survey, WriteOptions
from maxbrod.layouts.parquet.compaction import compact_folder, partition_folders
from maxbrod.layouts.parquet.survey import LAYOUT
from maxbrod.model import TopicPartition
from maxbrod.storage.stores import open_storage
from support.record_examples import record_lists, to_arrow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.storage.interface import Storage

WHERE = TopicPartition(topic="sensor.events", partition=107)
KEPT = ["offset", "timestamp_ms", "timestamp_type", "key", "value", "headers"]
"""The columns that this layout holds; the others come back with Kafka's defaults."""


def local(path: Path) -> Storage:
    return open_storage(str(path))


def rows(count: int, *, start: int = 0, step: int = 1, mark: bytes = b"") -> pa.RecordBatch:
    """Records that can be told apart. `mark` stands in each value."""
    offsets = [start + step * index for index in range(count)]
    return conform(
        pa.RecordBatch.from_pydict(
            {
                "offset": pa.array(offsets, pa.int64()),
                "timestamp_ms": pa.array([1_600_000_000_000 + offset for offset in offsets], pa.int64()),
                "key": pa.array([b"k%d" % offset for offset in offsets], pa.binary()),
                "value": pa.array([b"v%d%s" % (offset, mark) for offset in offsets], pa.binary()),
            }
        )
    )


@st.composite
def batches_of_records(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Records over the whole domain, in order, cut into batches anywhere."""
    records = draw(record_lists())
    kinds = draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=len(records), max_size=len(records)))
    extreme = draw(st.lists(st.sampled_from([-(1 << 63), (1 << 63) - 1, -(1 << 55), 0]), max_size=len(records)))
    times = [record.timestamp for record in records]
    times[: len(extreme)] = extreme
    for index, kind in enumerate(kinds):
        if kind == -1 and draw(st.booleans()):
            times[index] = -1
    whole = conform(to_arrow(records, timestamp_type=kinds, timestamp_ms=times))
    cuts = sorted(draw(st.lists(st.integers(0, len(records)), max_size=3)))
    edges = [0, *cuts, len(records)]
    return [whole.slice(low, high - low) for low, high in pairwise(edges)]


def write(
    storage: Storage,
    batches: Iterable[pa.RecordBatch],
    *,
    where: TopicPartition = WHERE,
    survey: Survey | None = None,
    **options: Any,
) -> list[ForeignSegment]:
    """Write and publish behind what the storage has."""
    chosen = WriteOptions(**options)
    known = survey or LAYOUT.survey(storage)
    written = LAYOUT.write(storage, where, batches, chosen, survey=known)
    LAYOUT.publish(storage, known, written, chosen, ClusterFacts())
    return written


def read(storage: Storage, segments: Iterable[ForeignSegment], columns: list[str] | None = None) -> pa.Table:
    found = [batch for segment in segments for batch in LAYOUT.read(storage, segment, columns=columns)]
    schema = RECORD_SCHEMA if columns is None else pa.schema([RECORD_SCHEMA.field(name) for name in columns])
    return pa.Table.from_batches(found, schema=schema)


def kept(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The rows that must come back, in plain Python."""
    return [row for batch in batches for row in batch.select(KEPT).to_pylist()]


def compact(
    storage: Storage,
    survey: Survey,
    limits: CompactionLimits | None = None,
    *,
    now_ms: int,
    options: WriteOptions | None = None,
) -> list[ForeignSegment]:
    """Merge the segments of every partition in `survey`; returns the new segments."""
    return [
        segment
        for folder in partition_folders(survey.segments)
        for segment in compact_folder(storage, folder, limits or CompactionLimits(), now_ms=now_ms, options=options)
    ]
