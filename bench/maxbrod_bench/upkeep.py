"""Rebuilding a catalog beside reading the same objects once, with the same session and as many tasks."""

from __future__ import annotations

import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.archive.snapshot_document import RunFacts, Snapshot
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import SLICE_FIELDS, Segment, encode_rows
from maxbrod.compact.plan import PLAN_COLUMNS, REPLACED_COLUMNS, plan_groups
from maxbrod.compact.task import merge_group
from maxbrod.compact.verb import item_of, merges_of
from maxbrod.config import Config
from maxbrod.layouts.foreign import CompactionLimits
from maxbrod.layouts.kafka.format import Compression, SegmentLimits
from maxbrod.layouts.kafka.reader import REQUEST_BYTES
from maxbrod.layouts.kafka.records import append_records
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import Codec, PartitionId
from maxbrod.repair.run import repair_archive
from maxbrod.storage.interface import ByteRange, HeldObject, ObjectInfo, Storage, Writer
from maxbrod.storage.stores import open_storage
from maxbrod.work.jobs import SparkExecutor
from maxbrod.work.session import open_session
from maxbrod.work.work import Work
from maxbrod_bench.planning import store_run
from maxbrod_bench.race import Figure, race_laps, require, speed

if TYPE_CHECKING:
    from collections.abc import Buffer

    from numpy.typing import NDArray


WANTED: Final = 0.5
_BYTES: Final = 512 << 20
_SEGMENT_BYTES: Final = 32 << 20
_PARTITIONS: Final = 4
_RECORD_BYTES: Final = 1024
_RECORDS: Final = 4096
"""Appended at once."""
_SMALL_PARTITIONS: Final = 500

TOPIC: Final = "orders"
TOPIC_ID: Final = "0123456789abcdefghijkl"
RUNS: Final = 64
"""As many as lie between two sweeps of the catalog, so that every kind of upkeep is among them."""
_RUN_PARTITIONS: Final = 10
_KINDS: Final = ("puts", "lists", "gets")


def measure_rebuild(*, scale: float, rounds: int) -> list[Figure]:
    """An archive of plain segments and packs that has lost its catalog, rebuilt and not published."""
    with ExitStack() as undo:
        folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="maxbrod-bench-"))
        session = undo.enter_context(open_session())
        _write(folder, round(_BYTES * scale))
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        executor = SparkExecutor(session)

        def rebuild() -> None:
            with Work(Config.model_validate({"archive": folder}), session=session) as work:
                report = repair_archive(work)
            require(report.rows and not report.notices, "the rebuild found damage in sound objects")

        def read() -> None:
            paths = [info.path for info in open_storage(folder).list()]
            tasks = [paths[number :: 4 * executor.parallelism] for number in range(4 * executor.parallelism)]
            executor.run(_read, folder, [task for task in tasks if task], name="bench-read")

        def cat() -> None:
            paths = [str(path) for path in sorted(Path(folder).rglob("*")) if path.is_file()]
            subprocess.run(["cat", *paths], stdout=subprocess.DEVNULL, check=True)

        laps = race_laps({"rebuild": rebuild, "read": read, "cat": cat}, rounds=rounds)
    note = f"{size / 1e6:,.0f} MB in plain segments and packs, {_SMALL_PARTITIONS} small partitions"
    return [
        speed("rebuilding a catalog, speed over reading once", laps["rebuild"], laps["read"], wanted=WANTED, note=note),
        speed("the same over cat", laps["rebuild"], laps["cat"]),
    ]


def _write(folder: str, size: int) -> None:
    noise = np.random.default_rng(1).bytes(_RECORD_BYTES * _RECORDS)
    storage = open_storage(folder)
    writer = ArchiveWriter(
        storage,
        run_id="bench",
        compression=Compression.parse("source"),
        limits=SegmentLimits(bytes_max=_SEGMENT_BYTES),
    )
    with writer as archive:
        for number in range(_PARTITIONS + _SMALL_PARTITIONS):
            small = number >= _PARTITIONS
            part = archive.partition(
                topic="small" if small else "large",
                topic_id="bench-small" if small else "bench-large",
                partition=number - _PARTITIONS if small else number,
                packed=small,
            )
            calls = 1 if small else size // _PARTITIONS // (_RECORD_BYTES * _RECORDS)
            count = 16 if small else _RECORDS
            for call in range(max(calls, 1)):
                append_records(part, _records(call * count, count, noise))
            part.close()


def one_batch(offset: int) -> NDArray[np.uint8]:
    """A batch with one record of 1 KB."""
    batch: NDArray[np.uint8] = encode(_records(offset, 1, bytes(_RECORD_BYTES)), codec=Codec.NONE)
    return batch


def _records(first: int, count: int, noise: bytes) -> pa.RecordBatch:
    values = [noise[at * _RECORD_BYTES : (at + 1) * _RECORD_BYTES] for at in range(count)]
    offsets = np.arange(first, first + count)
    return pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(offsets),
            "timestamp_ms": pa.array(offsets),
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )


def _read(folder: str, paths: Sequence[str]) -> list[int]:
    storage, total = open_storage(folder), 0
    for path in paths:
        size = storage.head(path).size
        for start in range(0, size, REQUEST_BYTES):
            total += len(storage.get_range(path, start, min(REQUEST_BYTES, size - start)))
    return [total]


class CountingStorage(Storage):
    """Counts requests as a store bills them: puts and lists, gets and heads. Deleting is free."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner.url)
        self._inner = inner
        self.counts: Counter[str] = Counter()

    def put(self, path: str, data: Buffer) -> None:
        self.counts["puts"] += 1
        self._inner.put(path, data)

    def replace(self, path: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        self.counts["puts"] += 1
        self._inner.replace(path, data, metadata=metadata)

    def create(self, path: str) -> Writer:
        # One request for an object of less than a part of an upload, as all of these are.
        self.counts["puts"] += 1
        return self._inner.create(path)

    def get(self, path: str, *, size: int | None = None) -> memoryview:
        self.counts["gets"] += 1
        return self._inner.get(path, size=size)

    def get_ranges(self, path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        self.counts["gets"] += len(ranges)
        return self._inner.get_ranges(path, ranges)

    def head(self, path: str) -> ObjectInfo:
        self.counts["gets"] += 1
        return self._inner.head(path)

    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        self.counts["lists"] += 1
        return self._inner.list(folder)

    def delete(self, paths: Iterable[str]) -> Sequence[HeldObject]:
        return self._inner.delete(paths)


def count_requests(*, packed: bool) -> tuple[Counter[str], int]:
    """The requests of all runs of one follower that adds to every partition, and the bytes that it stored."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        inner = open_storage(folder)
        storage = CountingStorage(inner)
        catalog = Catalog.create(storage)
        storage.counts.clear()
        for number in range(RUNS):
            _run(storage, catalog, number, packed=packed)
        return storage.counts, sum(info.size for info in inner.list())


def write_segments(
    storage: Storage,
    logs: Mapping[int, NDArray[np.uint8]],
    *,
    run_id: str,
    written_at: int,
    packed: bool,
    codec: str = "auto",
) -> list[Segment]:
    """Write the log of each partition as a run does; returns the rows of its segments."""
    with ArchiveWriter(storage, run_id=run_id, compression=Compression.parse(codec)) as writer:
        parts = {
            number: writer.partition(topic=TOPIC, topic_id=TOPIC_ID, partition=number, packed=packed) for number in logs
        }
        for number, part in parts.items():
            part.append(logs[number], walk(logs[number], check_crc=False))
            part.close()
    shared: dict[str, Any] = {"topic": TOPIC, "topic_id": TOPIC_ID, "run_id": run_id, "written_at": written_at}
    return [
        Segment(partition=number, **{name: getattr(found, name) for name in SLICE_FIELDS}, **shared)
        for number, part in parts.items()
        for found in part.slices
    ]


def _run(storage: Storage, catalog: Catalog, number: int, *, packed: bool) -> None:
    run_id = f"run-{number:04}"
    logs = dict.fromkeys(range(_RUN_PARTITIONS), one_batch(number))
    rows = write_segments(storage, logs, run_id=run_id, written_at=number, packed=packed, codec="source")
    ends = {PartitionId(topic_id=TOPIC_ID, partition=partition): number + 1 for partition in logs}
    facts = RunFacts(started_at=number, finished_at=number, statistics={}, commit=catalog.version + 1)
    snapshot = Snapshot(run_id=run_id, taken_at_ms=number, cluster={}, ends=ends, topics={TOPIC_ID: TOPIC}, run=facts)
    catalog.commit([*rows, store_run(storage, snapshot, {})])


def count_compaction(*, packed: bool) -> tuple[Counter[str], int, int]:
    """The requests of one compaction of these runs, and how many rows became how many."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        storage = CountingStorage(open_storage(folder))
        catalog = Catalog.create(storage)
        for number in range(RUNS):
            _run(storage, catalog, number, packed=packed)
        storage.counts.clear()
        catalog = Catalog.open(storage)
        limits = {TOPIC: CompactionLimits(age_ms_min=0, segments_min=2, bytes_min=1)}
        rows = catalog.rows(columns=PLAN_COLUMNS)
        plan = plan_groups(rows, catalog.replaced_rows().select(REPLACED_COLUMNS), limits, now_ms=1 << 42)
        merges = merges_of(catalog, plan.groups)
        new: list[Any] = []
        for number, merge in enumerate(merges):
            done = merge_group(storage, item_of(number, merge, "compacted"), Compression.parse("auto"))
            require(done.failure is None, done.failure.message if done.failure else "")
            new += merge.result(done.written, run_id="compacted", now_ms=0)
        gone = [row for merge in merges for row in merge.rows]
        catalog.commit(new, replaced=encode_rows(gone))
        return storage.counts, len(gone), len(new)


def measure_requests() -> list[Figure]:
    figures = []
    for packed in (True, False):
        counts, size = count_requests(packed=packed)
        note = f"{_RUN_PARTITIONS} partitions, {RUNS} runs, {'packs' if packed else 'an object for each partition'}"
        figures += [
            Figure(name=f"{kind} of a run", value=counts[kind] / RUNS, unit="per run", note=note) for kind in _KINDS
        ]
        figures.append(Figure(name="bytes of a run", value=size / RUNS, unit="bytes", note=note))
        counts, before, after = count_compaction(packed=packed)
        note = f"{before} segments of {RUNS} runs became {after}, {'packs' if packed else 'no packs'}"
        figures += [
            Figure(name=f"{kind} of a compaction", value=counts[kind], unit="per run", note=note) for kind in _KINDS
        ]
    return figures
