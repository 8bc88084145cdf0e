"""Planning at scale, with a real catalog on disk.

A backup of a simulated cluster of 100,000 partitions plans with a million rows, and with five million as years leave
them; a restore of 10,000 partitions plans with 100,000 rows, down to the slices of every partition.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.archive.snapshot_document import Snapshot
from maxbrod.archive.snapshot_document import encode as encode_snapshot
from maxbrod.backup.plan.ranges import PartitionState, Wave, plan_partition, plan_tasks
from maxbrod.backup.plan.starts import Earliest
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.queries import ArchivedRange
from maxbrod.catalog.rows import Gap, Run, Segment, decode_rows, encode_rows, slice_of
from maxbrod.model import MENDABLE, GapReason, PartitionId
from maxbrod.restore.plan.request import Chosen, RestoreRequest
from maxbrod.restore.plan.sources import SOURCE_COLUMNS, measure_sources, rows_to_read
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage
from maxbrod_bench.race import Figure, at_most, measure_fresh, peak_bytes

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

SCALE_PARTITIONS: Final = 100_000
SCALE_SEGMENTS: Final = 5_000_000
SCALE_SECONDS_WANTED: Final = 60.0
SCALE_BYTES_WANTED: Final = 3e9


def measure_planning() -> list[Figure]:
    """Plan in a fresh process, so that its memory is that of planning alone."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        write_catalog(folder, partitions=PARTITIONS, segments=SEGMENTS)
        measured = measure_fresh(__name__, "report_plan", folder, PARTITIONS)
    size = f"{PARTITIONS:,} partitions, {SEGMENTS:,} rows, {measured['tasks']} tasks"
    return [
        at_most("planning at scale", measured["seconds"], "seconds", SECONDS_WANTED, note=size),
        at_most("driver's memory, planning at scale", measured["peak_bytes"], "bytes", BYTES_WANTED),
    ]


def write_catalog(url: str, *, partitions: int, segments: int) -> None:
    """Write what ten backups would have left: each added a row to every partition."""
    catalog = Catalog.create(open_storage(url))
    runs = -(-segments // partitions)
    for run in range(runs):
        catalog.commit(rows_of(run, partitions))


def report_plan(url: str, partitions: int) -> dict[str, float]:
    """Read the catalog, plan every partition, and return what that took."""
    started = time.perf_counter()
    waves = plan(url, partitions)
    taken = time.perf_counter() - started
    return {"seconds": taken, "peak_bytes": peak_bytes(), "tasks": sum(len(wave) for wave in waves)}


def plan(url: str, partitions: int) -> tuple[Wave, ...]:
    """Plan as a backup does before its first task, with made-up answers of the cluster."""
    positions = Catalog.open(open_storage(url)).positions()
    plans = []
    for number in range(partitions):
        topic, partition = name_of(number)
        found = positions[PartitionId(topic_id=topic, partition=partition)]
        plans.append(plan_partition(state_of(number, found), Earliest()))
    return plan_tasks([partition.range for partition in plans], parallelism=_PARALLELISM)


def measure_restore_planning() -> list[Figure]:
    """Measure how long a restore of everything reads and plans the archive, without a cluster."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        write_catalog(folder, partitions=RESTORE_PARTITIONS, segments=RESTORE_SEGMENTS)
        began = time.perf_counter()
        found = plan_slices(folder)
        taken = time.perf_counter() - began
    note = f"{RESTORE_PARTITIONS:,} partitions, {RESTORE_SEGMENTS:,} rows, {found:,} slices"
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
    """Return one row of data of every partition, after those of earlier runs: one row, repeated, with other names."""
    base = run * SEGMENT_OFFSETS
    row = Segment(
        topic="",
        topic_id="",
        partition=0,
        base_offset=base,
        end_offset=base + SEGMENT_OFFSETS,
        path="",
        position=0,
        bytes=SEGMENT_BYTES,
        raw_bytes=SEGMENT_BYTES,
        codec="lz4",
        records=SEGMENT_OFFSETS,
        control_records=0,
        min_timestamp=base,
        max_timestamp=base + SEGMENT_OFFSETS,
        first_leader_epoch=0,
        last_leader_epoch=0,
        digest="crc32c:01234567",
        run_id=f"20260101T0000{run:02d}Z-bench",
        written_at=run,
    )
    names = [name_of(number) for number in range(partitions)]
    topics = [topic for topic, _ in names]
    paths = [f"segments/{topic}/{topic}/{number}/{base:020d}-0123456789abcdef.log" for topic, number in names]
    repeated = encode_rows([row]).take(np.zeros(partitions, np.int64))
    return with_columns(
        repeated, {"topic": topics, "topic_id": topics, "partition": [number for _, number in names], "path": paths}
    )


def store_run(storage: Storage, snapshot: Snapshot, statistics: Mapping[str, Any]) -> Run:
    """Store a snapshot, and return the row of its run, which began and ended when the snapshot was taken."""
    path, at = f"snapshots/{snapshot.run_id}.json.zst", snapshot.taken_at_ms
    storage.put(path, encode_snapshot(snapshot))
    commit = None if snapshot.run is None else snapshot.run.commit
    times: dict[str, Any] = dict.fromkeys(("started_at", "finished_at", "written_at"), at)
    return Run(run_id=snapshot.run_id, snapshot=path, statistics=statistics, commit=commit, **times)


def with_columns(rows: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(name), pa.array(values, rows.schema.field(name).type))
    return rows


def measure_scale(*, scale: float = 1.0) -> list[Figure]:
    """Plan from, and commit to, a catalog of years, in a fresh process."""
    partitions, segments = round(SCALE_PARTITIONS * scale), round(SCALE_SEGMENTS * scale)
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        write_catalog(folder, partitions=partitions, segments=segments)
        measured = measure_fresh(__name__, "report_scale", folder)
    cpu = f"{measured['planning_cpu_s']:.1f} s of processor time to plan"
    size = f"{partitions:,} partitions, {segments:,} rows, {cpu}"
    return [
        at_most("planning with nothing new", measured["planning_s"], "seconds", SCALE_SECONDS_WANTED, note=size),
        at_most("a commit", measured["commit_s"], "seconds", SCALE_SECONDS_WANTED, note=size),
        at_most("memory of both", measured["peak_bytes"], "bytes", SCALE_BYTES_WANTED),
    ]


def report_scale(url: str) -> dict[str, float]:
    """Plan a backup that finds nothing new, commit one row, and return what that took."""
    began, began_cpu = time.perf_counter(), time.process_time()
    _plan_idle(url)
    planned, planned_cpu = time.perf_counter(), time.process_time()
    _commit_gap(url)
    return {
        "planning_s": planned - began,
        "planning_cpu_s": planned_cpu - began_cpu,
        "commit_s": time.perf_counter() - planned,
        "peak_bytes": peak_bytes(),
    }


def _plan_idle(url: str) -> None:
    """Ask the catalog what a backup asks, and plan every partition."""
    catalog = Catalog.open(open_storage(url))
    catalog.runs()
    catalog.revisions()
    catalog.gaps(MENDABLE)
    for number, (partition, held) in enumerate(sorted(catalog.positions().items())):
        state = replace(state_of(number, held), topic_id=partition.topic_id, partition=partition.partition)
        idle = replace(state, end=held.end_offset, high_watermark=held.end_offset)
        assert plan_partition(idle, Earliest()).idle  # noqa: S101 - our own mistake


def _commit_gap(url: str) -> None:
    gap = Gap(
        topic="topic-00000",
        topic_id="topic-00000",
        partition=0,
        base_offset=1 << 40,
        end_offset=(1 << 40) + 1,
        reason=GapReason.RETENTION,
        run_id="bench",
        written_at=0,
    )
    Catalog.open(open_storage(url)).commit([gap])
