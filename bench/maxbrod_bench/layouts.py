"""`maxbrod bench layouts`: records through each layout of another tool, in memory, beside code that goes row by row."""

from __future__ import annotations

import io
import shutil
import time
import uuid
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from maxbrod.batch.columns import conform
from maxbrod.errors import UsageError
from maxbrod.layouts.foreign import ForeignSegment, Layout, Survey, WriteOptions
from maxbrod.layouts.registry import FOREIGN, layout_of
from maxbrod.model import TopicPartition
from maxbrod.sandbox.events import orders
from maxbrod.storage.stores import directory_of, open_storage
from maxbrod.storage.urls import parse_url
from maxbrod_bench.race import Lap, Laps, Measurement, race_laps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from maxbrod.storage.interface import Storage

BATCH_ROWS: Final = 50_000
WANTED: Final = {"kbak": 8e5, "kbs": 8e5, "binlog": 8e5, "avro": 4e5, "parquet": 4e5}
OVER_ROWS_WANTED: Final = 3.0
WHERE: Final = TopicPartition(topic="orders", partition=0)


def measure(*, records: int, rounds: int, only: Sequence[str] = (), codec: str | None = None) -> list[Measurement]:
    """Writing and reading of every layout that is installed, in turns. `codec` None: each one's own default."""
    unknown = sorted(set(only) - set(FOREIGN))
    if unknown:
        raise UsageError(f"there is no layout {', '.join(unknown)}", hint=f"choose of {', '.join(FOREIGN)}")
    url = f"memory://bench-{uuid.uuid4().hex}"
    batches = _batches(records)
    try:
        measurements: list[Measurement] = []
        for layout in _installed(only or FOREIGN):
            run = _Run(layout, open_storage(f"{url}/{layout.name}"), batches, WriteOptions(codec=codec))
            measurements += run.measure(records, rounds)
        return measurements
    finally:
        shutil.rmtree(directory_of(parse_url(url)), ignore_errors=True)


def _batches(records: int) -> list[pa.RecordBatch]:
    every = conform(orders(records))
    return [every.slice(start, BATCH_ROWS) for start in range(0, records, BATCH_ROWS)]


def _installed(names: Sequence[str]) -> Iterator[Layout]:
    for name in names:
        if find_spec(f"maxbrod.layouts.{name}") is not None:
            yield layout_of(name)


class _Run:
    """One layout, its objects in memory."""

    def __init__(
        self, layout: Layout, storage: Storage, batches: Sequence[pa.RecordBatch], options: WriteOptions
    ) -> None:
        self._layout, self._storage, self._batches, self._options = layout, storage, batches, options
        self._segments: list[ForeignSegment] = []

    def measure(self, records: int, rounds: int) -> list[Measurement]:
        self.write()
        contenders: dict[str, Callable[[], object]] = {"write": self.write, "read": self.read}
        peer = self._peer()
        contenders |= peer
        laps = race_laps({name: partial(_lap, contender) for name, contender in contenders.items()}, rounds=rounds)
        size = sum(segment.bytes for segment in self._segments) / records
        measured = [self._rate(what, records, laps[what], f"{size:.0f} B a record") for what in ("write", "read")]
        for what in peer:
            ratio = laps[what].best_cpu / laps[what.split()[0]].best_cpu
            name = f"{self._layout.name} {what.replace(' by', ' over')}"
            measured.append(Measurement(name=name, rate=ratio, unit="times", wanted=OVER_ROWS_WANTED))
        return measured

    def write(self) -> None:
        empty = Survey(layout=self._layout.name, segments=())
        self._segments = self._layout.write(self._storage, WHERE, self._batches, self._options, survey=empty)

    def read(self) -> int:
        held = (self._layout.read(self._storage, segment) for segment in self._segments)
        return sum(batch.num_rows for batches in held for batch in batches)

    def _rate(self, what: str, records: int, laps: Laps, note: str) -> Measurement:
        # Processor time, not the clock: the promise is per core, and some libraries take several.
        return Measurement(
            name=f"{self._layout.name} {what}",
            rate=records / laps.best_cpu,
            unit="records/s",
            wanted=WANTED.get(self._layout.name),
            note=f"{note}, {records / laps.best / 1e6:.2f} M rec/s by the clock",
        )

    def _peer(self) -> dict[str, Callable[[], object]]:
        """The same objects read and written row by row, where that is what one would do without the layout."""
        objects = [bytes(self._storage.get(segment.path)) for segment in self._segments]
        if self._layout.name == "avro" and find_spec("fastavro") is not None:
            return _fastavro(objects)
        return _parquet_rows(objects) if self._layout.name == "parquet" else {}


def _lap(contender: Callable[[], object]) -> Lap:
    """The process's own clock of processor time: what `race` reads of all processes has steps of 10 ms."""
    used, started = time.process_time(), time.perf_counter()
    contender()
    return Lap(seconds=time.perf_counter() - started, cpu_seconds=time.process_time() - used)


def _fastavro(objects: list[bytes]) -> dict[str, Callable[[], object]]:
    fastavro: Any = import_module("fastavro")
    readers = [fastavro.reader(io.BytesIO(data)) for data in objects]
    held = [(reader.writer_schema, reader.codec, list(reader)) for reader in readers]

    def write() -> None:
        for schema, codec, rows in held:
            fastavro.writer(io.BytesIO(), schema, rows, codec=codec)

    return {
        "write by fastavro": write,
        "read by fastavro": lambda: [sum(1 for _ in fastavro.reader(io.BytesIO(data))) for data in objects],
    }


def _parquet_rows(objects: list[bytes]) -> dict[str, Callable[[], object]]:
    tables = [pq.read_table(pa.BufferReader(data)) for data in objects]
    held = [(table.schema, table.to_pylist()) for table in tables]

    def write() -> None:
        for schema, rows in held:
            pq.write_table(pa.Table.from_pylist(rows, schema), io.BytesIO(), compression="snappy")

    return {"write by rows": write, "read by rows": partial(_read_rows, objects)}


def _read_rows(objects: list[bytes]) -> int:
    return sum(len(pq.read_table(pa.BufferReader(data)).to_pylist()) for data in objects)
