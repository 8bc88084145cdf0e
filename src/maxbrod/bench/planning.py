"""Planning at scale, with a real catalog on disk.

A backup of a simulated cluster of 100,000 partitions plans with a million rows, a restore of 10,000 partitions with
100,000 rows, down to the slices of every partition.
"""

from __future__ import annotations

import json
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.backup.plan.starts import Earliest
from maxbrod.backup.plan.states import PartitionState, plan_partition
from maxbrod.backup.plan.tasks import Wave, plan_tasks
from maxbrod.bench.figures import Figure
from maxbrod.bench.processes import peak_bytes, run_python
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.catalog.schema import SCHEMA, Kind
from maxbrod.model import PartitionId
from maxbrod.restore.plan.choosing import Chosen
from maxbrod.restore.plan.columns import SOURCE_COLUMNS
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.plan.sources import measure_sources, rows_to_read
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from maxbrod.catalog.queries import ArchivedRange

PARTITIONS: Final = 100_000
SEGMENTS: Final = 1_000_000
RESTORE_PARTITIONS: Final = 10_000
RESTORE_SEGMENTS: Final = 100_000
SECONDS_WANTED: Final = 30.0
BYTES_WANTED: Final = 2e9
TOPIC_PARTITIONS: Final = 100
SEGMENT_OFFSETS: Final = 100_000
SEGMENT_BYTES: Final = 100 * SEGMENT_OFFSETS
_FRESH_OFFSETS: Final = 2500
_PARALLELISM: Final = 64


def measure_planning(*, partitions: int = PARTITIONS, segments: int = SEGMENTS) -> list[Figure]:
    """Plan in a fresh process, so that its memory is that of planning alone."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        write_catalog(folder, partitions=partitions, segments=segments)
        program = f"from maxbrod.bench.planning import report_plan; report_plan({folder!r}, {partitions})"
        measured: dict[str, Any] = json.loads(run_python("-c", program))
    size = f"{partitions:,} partitions, {segments:,} rows, {measured['tasks']} tasks"
    return [
        Figure(
            name="planning at scale",
            value=measured["seconds"],
            unit="seconds",
            wanted=SECONDS_WANTED,
            at_most=True,
            note=size,
        ),
        Figure(
            name="driver's memory, planning at scale",
            value=measured["peak_bytes"],
            unit="bytes",
            wanted=BYTES_WANTED,
            at_most=True,
        ),
    ]


def write_catalog(url: str, *, partitions: int, segments: int) -> None:
    """Write what ten backups would have left: each added a row to every partition."""
    catalog = Catalog.create(open_storage(url))
    runs = -(-segments // partitions)
    for run in range(runs):
        catalog.commit(rows_of(run, partitions))


def report_plan(url: str, partitions: int) -> None:
    """Read the catalog, plan every partition, and print what that took."""
    started = time.perf_counter()
    waves = plan(url, partitions)
    taken = time.perf_counter() - started
    tasks = sum(len(wave) for wave in waves)
    print(json.dumps({"seconds": taken, "peak_bytes": peak_bytes(), "tasks": tasks}))  # noqa: T201 - for the caller


def plan(url: str, partitions: int) -> tuple[Wave, ...]:
    """What a backup does before its first task, with made-up answers of the cluster."""
    positions = Catalog.open(open_storage(url)).positions()
    plans = []
    for number in range(partitions):
        topic, partition = name_of(number)
        found = positions[PartitionId(topic_id=topic, partition=partition)]
        plans.append(plan_partition(state_of(number, found), Earliest()))
    return plan_tasks([each.range for each in plans], parallelism=_PARALLELISM)


def measure_restore_planning(*, partitions: int = RESTORE_PARTITIONS, segments: int = RESTORE_SEGMENTS) -> list[Figure]:
    """How long a restore of everything reads and plans the archive, without a cluster."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        write_catalog(folder, partitions=partitions, segments=segments)
        began = time.perf_counter()
        found = plan_slices(folder)
        taken = time.perf_counter() - began
    note = f"{partitions:,} partitions, {segments:,} rows, {found:,} slices"
    return [Figure(name="planning a restore at scale", value=taken, unit="seconds", note=note)]


def plan_slices(url: str) -> int:
    """The number of slices that a restore of everything would read."""
    catalog, request = Catalog.open(open_storage(url)), RestoreRequest()
    rows = catalog.rows(columns=("topic", *SOURCE_COLUMNS))
    topics = dict(zip(rows["topic_id"].to_pylist(), rows["topic"].to_pylist(), strict=True))
    sources = measure_sources(rows, request, Chosen(topics=topics, missing=()), {}, as_of=False)
    chosen = decode_rows(rows_to_read(catalog.rows(), sources, request))
    return len([slice_of(row) for row in chosen if isinstance(row, Segment)])


def state_of(number: int, held: ArchivedRange) -> PartitionState:
    topic, partition = name_of(number)
    end = held.end_offset + _FRESH_OFFSETS
    return PartitionState(
        topic=topic,
        topic_id=topic,
        partition=partition,
        log_start=0,
        end=end,
        high_watermark=end,
        held=held,
        bytes_per_offset=100.0,
        compacted=False,
    )


def name_of(number: int) -> tuple[str, int]:
    return f"topic-{number // TOPIC_PARTITIONS:05d}", number % TOPIC_PARTITIONS


def rows_of(run: int, partitions: int) -> pa.Table:
    """One row of data of every partition, after those of earlier runs."""
    names, numbers = zip(*map(name_of, range(partitions)), strict=True)
    base = run * SEGMENT_OFFSETS
    run_id = f"20260101T0000{run:02d}Z-bench"

    def same(value: object, kind: pa.DataType) -> pa.Array:
        return pa.array([value] * partitions, kind)

    columns: dict[str, pa.Array] = {
        "topic": pa.array(names),
        "topic_id": pa.array(names),
        "partition": pa.array(np.array(numbers, np.int32)),
        "base_offset": same(base, pa.int64()),
        "end_offset": same(base + SEGMENT_OFFSETS, pa.int64()),
        "kind": same(Kind.DATA, pa.string()),
        "path": pa.array(
            [
                f"segments/{name}/{name}/{number}/{base:020d}-0123456789abcdef.log"
                for name, number in zip(names, numbers, strict=True)
            ]
        ),
        "position": same(0, pa.int64()),
        "bytes": same(SEGMENT_BYTES, pa.int64()),
        "raw_bytes": same(SEGMENT_BYTES, pa.int64()),
        "codec": same("lz4", pa.string()),
        "records": same(SEGMENT_OFFSETS, pa.int64()),
        "control_records": same(0, pa.int64()),
        "min_timestamp": same(base, pa.int64()),
        "max_timestamp": same(base + SEGMENT_OFFSETS, pa.int64()),
        "first_leader_epoch": same(0, pa.int32()),
        "last_leader_epoch": same(0, pa.int32()),
        "digest": same("crc32c:01234567", pa.string()),
        "level": same(0, pa.int32()),
        "run_id": same(run_id, pa.string()),
        "written_at": same(run, pa.int64()),
    }
    empty = {field.name: pa.nulls(partitions, field.type) for field in SCHEMA if field.name not in columns}
    return pa.table({**columns, **empty}).select(SCHEMA.names).cast(SCHEMA)
