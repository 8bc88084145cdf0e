"""The engines in one process: `maxbrod bench codec`, record batches on one core beside kafka-python's own reader, and
`maxbrod bench layouts`, records through each layout of another tool beside code that goes row by row.
"""

from __future__ import annotations

import io
import resource
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from kafka.codec import has_lz4
from kafka.record import MemoryRecords

from maxbrod.batch.columns import conform
from maxbrod.batch.compression import Arena, portions
from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.batch.patch import patch
from maxbrod.errors import EnvironmentMissingError, UsageError
from maxbrod.layouts.foreign import ForeignSegment, Layout, Survey, WriteOptions
from maxbrod.layouts.registry import FOREIGN, layout_of
from maxbrod.model import Codec, TopicPartition
from maxbrod.sandbox.events import orders
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import directory_of, open_storage
from maxbrod.storage.urls import parse_url
from maxbrod_bench.race import Lap, Laps, Measurement, measure_fresh, peak_bytes, race, race_laps, run_python

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE_BYTES: Final = 1 << 20
"""The size of the input of one call of `decode`, as from a reader that streams an object."""
BATCH_ROWS: Final = 50_000
WANTED: Final = {"kbak": 8e5, "kbs": 8e5, "binlog": 8e5, "avro": 4e5, "parquet": 4e5}
OVER_ROWS_WANTED: Final = 3.0
WHERE: Final = TopicPartition(topic="orders", partition=0)


def measure_codec(*, records: int, batch_bytes: int, rounds: int) -> list[Measurement]:
    """Every measurement of the engine, in one process, contenders in turns."""
    columns = orders(records)
    plain, packed = (encode(columns, codec=codec, batch_bytes_max=batch_bytes) for codec in (Codec.NONE, Codec.LZ4))
    headers = walk(plain)
    packed_pieces, plain_pieces = _pieces(packed), _pieces(plain)
    peer_bytes = packed.tobytes()
    patched, bases = plain.copy(), np.arange(len(headers))
    best = race(
        {
            "decode": lambda: [decode(piece).num_rows for piece in packed_pieces],
            "decode_plain": lambda: [decode(piece).num_rows for piece in plain_pieces],
            "encode": lambda: encode(columns, codec=Codec.LZ4, batch_bytes_max=batch_bytes),
            "encode_plain": lambda: encode(columns, batch_bytes_max=batch_bytes),
            "patch": lambda: patch(patched, headers, producer_id=7, producer_epoch=0, base_sequence=bases),
            "walk": lambda: walk(plain),
            "peer": lambda: _read_with_kafka_python(peer_bytes),
        },
        rounds=rounds,
    )
    decode_rate, peer_rate = records / best["decode"], records / best["peer"]
    size, memory = f"{len(plain) / records:.0f} B a record", memory_ratio(records, batch_bytes)
    return [
        Measurement(name="decode lz4", rate=decode_rate, unit="records/s", wanted=1.5e6, note=size),
        Measurement(name="decode uncompressed", rate=records / best["decode_plain"], unit="records/s"),
        Measurement(name="kafka-python, the same lz4 bytes", rate=peer_rate, unit="records/s"),
        Measurement(name="decode lz4 over kafka-python", rate=decode_rate / peer_rate, unit="times", wanted=10),
        Measurement(name="encode lz4", rate=records / best["encode"], unit="records/s", wanted=1e6),
        Measurement(name="encode uncompressed", rate=records / best["encode_plain"], unit="records/s", wanted=1e6),
        Measurement(name="patch", rate=len(plain) / best["patch"], unit="bytes/s", wanted=3e9),
        Measurement(name="walk and check CRC", rate=len(plain) / best["walk"], unit="bytes/s", wanted=3e9),
        Measurement(name="memory over decompressed", rate=memory, unit="times", wanted=3, note="at most"),
        Measurement(name="first decode of a process", rate=first_decode_seconds(), unit="seconds"),
    ]


def _pieces(data: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """The buffer in runs of whole batches of about PIECE_BYTES."""
    position = walk(data).position
    starts = position[np.diff(position // PIECE_BYTES, prepend=-1) > 0].tolist()
    return [data[start:end] for start, end in zip(starts, [*starts[1:], data.size], strict=True)]


def _read_with_kafka_python(data: bytes) -> int:
    if not has_lz4():
        raise EnvironmentMissingError(
            "kafka-python, the peer of this benchmark, needs the lz4 package", hint="make setup"
        )
    records = MemoryRecords(data)
    count = 0
    while (batch := records.next_batch()) is not None:
        for record in batch:
            _ = (record.offset, record.timestamp, record.key, record.value, record.headers)
            count += 1
    return count


def first_decode_seconds() -> float:
    """The time from the first import to the first decoded batch, with the kernels in numba's cache."""
    batch = encode(orders(100), codec=Codec.LZ4).tobytes().hex()
    program = (
        "import time; start = time.perf_counter(); from maxbrod.batch.decode import decode; "
        f"decode(bytes.fromhex('{batch}')); print(time.perf_counter() - start)"
    )
    return min(float(run_python("-c", program)) for _ in range(3))


def memory_ratio(records: int, batch_bytes: int) -> float:
    """The peak memory that decoding adds to a fresh process, divided by the decompressed bytes."""
    measured = measure_fresh(__name__, "memory_probe", records, batch_bytes)
    return float(measured["added"] / measured["decompressed"])


def memory_probe(records: int, batch_bytes: int) -> dict[str, int]:
    """Return the memory that decoding adds to this process, and the decompressed bytes."""
    # A small piece many times over: building all of it at once would itself be the peak.
    pieces = 20
    piece = encode(orders(max(1, records // pieces)), codec=Codec.LZ4, batch_bytes_max=batch_bytes)
    parts = portions(piece, walk(piece), Arena(0))
    decompressed = sum(int((unpacked.end - unpacked.start).sum()) for _, unpacked in parts) * pieces
    decode(piece)
    packed = np.tile(piece, pieces)
    # Linux can reset the peak, so that start-up does not hide what comes after.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _peak_bytes()
    rows = decode(packed).num_rows
    return {"added": _peak_bytes() - before, "decompressed": decompressed, "rows": rows}


def _peak_bytes() -> int:
    with suppress(OSError):
        return peak_bytes()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure_layouts(
    *, records: int, rounds: int, only: Sequence[str] = (), codec: str | None = None
) -> list[Measurement]:
    """Writing and reading of every layout that is installed, in turns. `codec` None: each one's own default."""
    unknown = sorted(set(only) - set(FOREIGN))
    if unknown:
        raise UsageError(f"there is no layout {', '.join(unknown)}", hint=f"choose of {', '.join(FOREIGN)}")
    url = f"memory://bench-{uuid.uuid4().hex}"
    every = conform(orders(records))
    batches = [every.slice(start, BATCH_ROWS) for start in range(0, records, BATCH_ROWS)]
    installed = [name for name in only or FOREIGN if find_spec(f"maxbrod.layouts.{name}") is not None]
    try:
        measurements: list[Measurement] = []
        for name in installed:
            run = _LayoutRun(layout_of(name), open_storage(f"{url}/{name}"), batches, WriteOptions(codec=codec))
            measurements += run.measure(records, rounds)
        return measurements
    finally:
        shutil.rmtree(directory_of(parse_url(url)), ignore_errors=True)


class _LayoutRun:
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

    def read() -> int:
        return sum(len(pq.read_table(pa.BufferReader(data)).to_pylist()) for data in objects)

    return {"write by rows": write, "read by rows": read}
