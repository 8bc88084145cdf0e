"""Counts what small runs ask of a store: the figures that docs/scale.md extrapolates from."""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.snapshot_document import RunFacts, Snapshot, encode
from maxbrod.batch.headers import walk
from maxbrod.bench.figures import Figure
from maxbrod.bench.rebuild import one_batch
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import SLICE_FIELDS, Run, Segment, encode_rows
from maxbrod.compact.plan.groups import PLAN_COLUMNS, REPLACED_COLUMNS, plan_groups
from maxbrod.compact.run import item_of, merges_of
from maxbrod.compact.task import merge_group
from maxbrod.errors import MaxbrodError
from maxbrod.layouts.compaction_limits import CompactionLimits
from maxbrod.layouts.kafka.format import Compression
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import PartitionId
from maxbrod.storage.interface import ByteRange, ObjectInfo, Storage, Writer
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterable, Iterator, Mapping, Sequence


RUNS: Final = 64
"""As many as lie between two sweeps of the catalog, so that every kind of upkeep is among them."""
_PARTITIONS: Final = 10


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

    def delete(self, paths: Iterable[str]) -> None:
        self._inner.delete(paths)


def count_requests(*, partitions: int, packed: bool, runs: int = RUNS) -> tuple[Counter[str], int]:
    """The requests of all runs of one follower that adds to every partition, and the bytes that it stored."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        inner = open_storage(folder)
        storage = CountingStorage(inner)
        catalog = Catalog.create(storage)
        storage.counts.clear()
        for number in range(runs):
            _run(storage, catalog, number, partitions, packed=packed)
        return storage.counts, sum(info.size for info in inner.list())


def _run(storage: Storage, catalog: Catalog, number: int, partitions: int, *, packed: bool) -> None:
    run_id = f"run-{number:04}"
    batch = one_batch(number)
    with ArchiveWriter(storage, run_id=run_id, compression=Compression.parse("source")) as archive:
        parts = [
            archive.partition(topic="bench", topic_id="bench", partition=each, packed=packed)
            for each in range(partitions)
        ]
        for part in parts:
            part.append(batch, walk(batch))
            part.close()
    shared: dict[str, Any] = {"run_id": run_id, "written_at": number}
    rows: list[Any] = [
        Segment(
            topic="bench",
            topic_id="bench",
            partition=each,
            **{name: getattr(found, name) for name in SLICE_FIELDS},
            **shared,
        )
        for each, part in enumerate(parts)
        for found in part.slices
    ]
    path = f"snapshots/{run_id}.json.zst"
    ends = {PartitionId(topic_id="bench", partition=each): number + 1 for each in range(partitions)}
    facts = RunFacts(started_at=number, finished_at=number, statistics={}, commit=catalog.version + 1)
    snapshot = Snapshot(run_id=run_id, taken_at_ms=number, cluster={}, ends=ends, topics={"bench": "bench"}, run=facts)
    storage.put(path, encode(snapshot))
    catalog.commit([*rows, Run(started_at=number, finished_at=number, snapshot=path, **shared)])


def count_compaction(*, partitions: int, packed: bool, runs: int = RUNS) -> tuple[Counter[str], int, int]:
    """The requests of one compaction of these runs, and how many rows became how many."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        storage = CountingStorage(open_storage(folder))
        catalog = Catalog.create(storage)
        for number in range(runs):
            _run(storage, catalog, number, partitions, packed=packed)
        storage.counts.clear()
        catalog = Catalog.open(storage)
        limits = {"bench": CompactionLimits(age_ms_min=0, segments_min=2, bytes_min=1)}
        rows = catalog.rows(columns=PLAN_COLUMNS)
        plan = plan_groups(rows, catalog.replaced_rows().select(REPLACED_COLUMNS), limits, now_ms=1 << 42)
        merges = merges_of(catalog, plan.groups)
        new: list[Any] = []
        for number, merge in enumerate(merges):
            done = merge_group(storage, item_of(number, merge, "compacted"), Compression.parse("auto"))
            if done.failure is not None:
                raise MaxbrodError(done.failure.message, operation="bench")
            new += merge.result(done.written, run_id="compacted", now_ms=0)
        gone = [row for merge in merges for row in merge.rows]
        catalog.commit(new, replaced=encode_rows(gone))
        return storage.counts, len(gone), len(new)


def measure() -> list[Figure]:
    figures = []
    for packed in (True, False):
        counts, size = count_requests(partitions=_PARTITIONS, packed=packed)
        note = f"{_PARTITIONS} partitions, {RUNS} runs, {'packs' if packed else 'an object for each partition'}"
        figures += [
            Figure(name=f"{kind} of a run", value=counts[kind] / RUNS, unit="per run", note=note)
            for kind in ("puts", "lists", "gets")
        ]
        figures.append(Figure(name="bytes of a run", value=size / RUNS, unit="bytes", note=note))
        counts, before, after = count_compaction(partitions=_PARTITIONS, packed=packed)
        note = f"{before} segments of {RUNS} runs became {after}, {'packs' if packed else 'no packs'}"
        figures += [
            Figure(name=f"{kind} of a compaction", value=counts[kind], unit="per run", note=note)
            for kind in ("puts", "lists", "gets")
        ]
    return figures
