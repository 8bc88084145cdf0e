"""`maxbrod bench lifecycle`: looking after an archive, beside plain copying and beside one large backup.

No cluster is needed: the archives are written as backups write them, in simulated time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.archive.archive import open_native
from maxbrod.archive.knowledge import NOTHING, encode_carried
from maxbrod.archive.snapshot_document import Snapshot
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Run, Segment
from maxbrod.compact.options import CompactOptions
from maxbrod.compact.verb import compact_archive
from maxbrod.config import Config
from maxbrod.kafka.state.cluster_state import ClusterState, TopicState, encode_state
from maxbrod.model import Codec
from maxbrod.sandbox.events import orders
from maxbrod.storage.stores import directory_of, open_storage
from maxbrod.storage.urls import parse_url
from maxbrod.work.session import Session, open_session
from maxbrod.work.work import Work
from maxbrod_bench.planning import measure_scale, plan_slices, store_run
from maxbrod_bench.race import Figure, Lap, LifecycleGroup, race_laps, rate, require, speed, time_lap
from maxbrod_bench.table import copy_files
from maxbrod_bench.upkeep import TOPIC, TOPIC_ID, measure_rebuild, measure_requests, write_segments

if TYPE_CHECKING:
    from numpy.typing import NDArray


PARTITIONS: Final = 4
SEGMENTS: Final = 64
"""For each partition, at scale 1: 0.5 GB in all."""
SEGMENT_RECORDS: Final = 20_000
SEGMENT_NOISE_RECORDS: Final = 1_900
BATCH_BYTES: Final = 16_384
"""The size that Java producers fill by default."""
DAY_RUNS: Final = 86_400
"""A day of `backup --follow --every 1s`."""
DAY_PARTITIONS: Final = 2
DAY_RECORDS: Final = 10
"""For each partition and second."""
COPY_WANTED: Final = 0.7
_COMMITTED_RUNS: Final = 1000
_LATER_MS: Final = 1 << 42

KEYED_SEGMENTS: Final = 50
"""For each partition, at scale 1: 4 million records in all."""
RECORDS_WANTED: Final = 500_000
_CONFIGS: Final = {"cleanup.policy": "compact", "delete.retention.ms": "86400000"}


def measure(
    *, scale: float, rounds: int, only: Sequence[LifecycleGroup] = (), on_stage: Callable[[str], None]
) -> list[Figure]:
    """Every group, or only those."""
    chosen = only or list(LifecycleGroup)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        disk = Path(folder)
        if not {LifecycleGroup.COMPACT, LifecycleGroup.DAY}.isdisjoint(chosen):
            with open_session() as session:
                if LifecycleGroup.COMPACT in chosen:
                    on_stage("compaction beside copying")
                    figures += race_copying(session, disk, segments=max(2, round(SEGMENTS * scale)), rounds=rounds)
                if LifecycleGroup.DAY in chosen:
                    on_stage("a day of one-second runs")
                    figures += measure_day(session, runs=max(10, round(DAY_RUNS * scale)))
        if LifecycleGroup.BY_KEY in chosen:
            on_stage("compaction by key")
            with open_session(jvm_works=True) as session:
                figures += measure_by_key(session, disk, segments=max(2, round(KEYED_SEGMENTS * scale)), rounds=rounds)
    if LifecycleGroup.REPAIR in chosen:
        on_stage("rebuilding a catalog")
        figures += measure_rebuild(scale=scale, rounds=rounds)
    if LifecycleGroup.REQUESTS in chosen:
        figures += measure_requests()
    if LifecycleGroup.SCALE in chosen:
        on_stage("a catalog of 5 million rows")
        figures += measure_scale(scale=scale)
    return figures


def race_copying(session: Session, disk: Path, *, segments: int, rounds: int) -> list[Figure]:
    """Compact segments of data A and of data B, and copy the same files with `cat` and a sync."""
    found = []
    for name, codec in (("A, uncompressed batches", Codec.NONE), ("B, lz4 batches", Codec.LZ4)):
        log = (
            _noise(SEGMENT_NOISE_RECORDS)
            if codec is Codec.NONE
            else encode(orders(SEGMENT_RECORDS), codec=codec, batch_bytes_max=BATCH_BYTES)
        )
        source = disk / "source"
        write_runs(str(source), (dict.fromkeys(range(PARTITIONS), log) for _ in range(segments)), packed=False)
        files = sorted(str(path) for path in (source / "segments").rglob("*.log"))
        size = sum(Path(file).stat().st_size for file in files)
        laps = race_laps(
            {
                "maxbrod": partial(_compact_copy, partial(_compact, session), source, disk / "compacted"),
                "cat": partial(copy_files, files, disk),
            },
            rounds=rounds,
        )
        shutil.rmtree(source)
        rates = {contender: rate(size, lap, "MB/s") for contender, lap in laps.items()}
        note = f"{rates['maxbrod']} of {len(files)} segments, {size / 1e6:.0f} MB in all; cat and sync {rates['cat']}"
        title = f"compaction of {name}, over cat and sync"
        found.append(speed(title, laps["maxbrod"], laps["cat"], wanted=COPY_WANTED, note=note))
    return found


def _noise(records: int) -> NDArray[np.uint8]:
    """Batches of records of 1 KB that do not compress."""
    values = np.random.default_rng(7).bytes(1024 * records)
    columns = orders(records)
    cells = pa.array([values[1024 * row : 1024 * (row + 1)] for row in range(records)], pa.binary())
    return encode(
        columns.set_column(columns.schema.get_field_index("value"), "value", cells), batch_bytes_max=BATCH_BYTES
    )


def _compact_copy(compact: Callable[[str], object], source: Path, target: Path) -> Lap:
    """Compact a copy of the archive that shares its files: the copy is not timed."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=os.link)
    lap = time_lap(partial(compact, str(target)))
    shutil.rmtree(target)
    return lap


def _compact(session: Session, url: str) -> None:
    options = CompactOptions(min_segment_count=2, min_segment_size=1, max_segment_count=1 << 20)
    report = compact_archive(Work(Config(archive=url, compact=options), session=session, clock_ms=_LATER_MS))
    require(not report.exit_code and report.total("merges"), "the archive was not compacted", object_name=url)


def measure_day(session: Session, *, runs: int) -> list[Figure]:
    """An archive as that many tiny runs leave it, compacted, beside one backup of the same records."""
    urls = [f"memory://bench-{uuid.uuid4().hex}" for _ in range(2)]
    day, large = urls
    log = encode(orders(DAY_RECORDS), codec=Codec.LZ4)
    try:
        write_runs(day, (dict.fromkeys(range(DAY_PARTITIONS), log) for _ in range(runs)), packed=True)
        whole = np.concatenate([_moved(log, DAY_RECORDS * number) for number in range(runs)])
        write_runs(large, iter([dict.fromkeys(range(DAY_PARTITIONS), whole)]), packed=False)
        before = _sizes(day)
        lap = time_lap(partial(_compact, session, day))
        after, one = _sizes(day), _sizes(large)
    finally:
        for url in urls:
            shutil.rmtree(directory_of(parse_url(url)), ignore_errors=True)
    name = f"a day of {runs:,} runs"
    note = (
        f"{before['rows']:,} rows, {before['objects']:,} objects, {before['bytes']:,} bytes, planned in "
        f"{before['seconds']:.2f} s, became {after['rows']:,}, {after['objects']:,}, {after['bytes']:,} and "
        f"{after['seconds']:.2f} s; one backup has {one['rows']:,}, {one['objects']:,}, {one['bytes']:,} and "
        f"{one['seconds']:.2f} s"
    )
    return [
        Figure(name=f"{name}, compacted", value=lap.seconds, unit="seconds", note=note),
        Figure(name=f"{name}: bytes over one backup's", value=after["bytes"] / one["bytes"], at_most=True, wanted=1.01),
        Figure(name=f"{name}: rows over one backup's", value=after["rows"] / one["rows"], at_most=True, wanted=2),
        Figure(name=f"{name}: planning over one backup's", value=after["seconds"] / one["seconds"], at_most=True),
    ]


def _sizes(url: str) -> dict[str, Any]:
    """Rows, objects and bytes that the catalog names, and how long a restore takes to plan from it."""
    rows = Catalog.open(open_storage(url)).rows(columns=["path", "bytes"])
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        plan_slices(url)
        taken.append(time.perf_counter() - began)
    sizes = sum(rows["bytes"].to_pylist())
    return {"rows": rows.num_rows, "objects": len(rows["path"].unique()), "bytes": sizes, "seconds": min(taken)}


def write_runs(url: str, runs: Iterable[dict[int, NDArray[np.uint8]]], *, packed: bool) -> None:
    """Write runs one after the other; each adds its log, moved to where the partition ends."""
    storage = open_storage(url)
    catalog = Catalog.create(storage)
    ends: dict[int, int] = {}
    rows: list[Segment | Run] = []
    for run, logs in enumerate(runs):
        run_id = f"run-{run:08d}"
        moved = {number: _moved(log, ends.get(number, 0)) for number, log in logs.items()}
        written = write_segments(storage, moved, run_id=run_id, written_at=run, packed=packed)
        ends |= {row.partition: row.end_offset for row in written}
        rows += written
        rows.append(Run(run_id=run_id, started_at=run, finished_at=run, snapshot=None, statistics={}, written_at=run))
        if run % _COMMITTED_RUNS == _COMMITTED_RUNS - 1:
            catalog.commit(rows)
            rows = []
    catalog.commit(rows)


def _moved(log: NDArray[np.uint8], by: int) -> NDArray[np.uint8]:
    """The batches at higher offsets: the CRC does not cover the base offset."""
    headers, moved = walk(log, check_crc=False), log.copy()
    bases = (headers["base_offset"].astype(np.int64) + by).astype(">i8").view(np.uint8).reshape(-1, 8)
    moved[headers.position[:, None] + np.arange(8)] = bases
    return moved


def measure_by_key(session: Session, disk: Path, *, segments: int, rounds: int) -> list[Figure]:
    """Return the records that a compaction by key of data B, a Spark job, reads per second."""
    source = disk / "keyed"
    logs = (
        encode(orders(SEGMENT_RECORDS, seed=seed), codec=Codec.LZ4, batch_bytes_max=BATCH_BYTES)
        for seed in range(segments)
    )
    write_runs(str(source), (dict.fromkeys(range(PARTITIONS), log) for log in logs), packed=False)
    _record_snapshot(str(source))
    records = PARTITIONS * segments * SEGMENT_RECORDS
    removed: list[int] = []

    def compact(url: str) -> None:
        report = compact_archive(Work(Config(archive=url, compact=CompactOptions(by_key=True)), session=session))
        removed.append(report.total("removed"))
        require(not report.exit_code and removed[-1], "the archive was not compacted", object_name=url)

    contender = partial(_compact_copy, compact, source, disk / "compacted")
    laps = race_laps({"maxbrod": contender}, rounds=rounds)["maxbrod"]
    shutil.rmtree(source)
    rate, cpu = records / laps.best, records / laps.best_cpu
    note = f"{records:,} records, of which {removed[-1]:,} go; {cpu:,.0f} for each second of processor time"
    return [
        Figure(name="compaction of B by key, records", value=rate, unit="per second", wanted=RECORDS_WANTED, note=note)
    ]


def _record_snapshot(url: str) -> None:
    """A run that knows the topic as a compacted one."""
    archive = open_native(url)
    parts: dict[str, Any] = dict.fromkeys(("brokers", "acls", "quotas", "users", "groups", "gaps"), ())
    topic = TopicState(
        name=TOPIC,
        topic_id=TOPIC_ID,
        internal=False,
        replicas=((1,),) * PARTITIONS,
        configs=_CONFIGS,
        effective=_CONFIGS,
    )
    cluster = ClusterState(cluster_id="bench", taken_at_ms=0, topics=(topic,), **parts)
    ends = {where: held.end_offset for where, held in archive.catalog.positions().items()}
    snapshot = Snapshot(
        run_id="run-last",
        taken_at_ms=0,
        cluster=encode_state(cluster),
        topics={TOPIC_ID: TOPIC},
        ends=ends,
        carried=encode_carried(NOTHING),
        revisions={},
    )
    archive.catalog.commit([store_run(archive.storage, snapshot, {})])
