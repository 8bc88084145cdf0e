"""`maxbrod bench mount`: Kafka's ConsumerPerformance from a mount beside the same from a broker; 200 consumers; memory.

The topics are written to a broker, backed up to a local disk, and read in turns from both. Readers and servers share
the machine, so the ratio holds for machines whose cores both need.
"""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kafka import KafkaConsumer, TopicPartition
from kafka.record import MemoryRecordsBuilder

from maxbrod.demo.mount_process import MountProcess, mount_process
from maxbrod.errors import UnavailableError
from maxbrod.sandbox.cluster import Cluster
from maxbrod_bench.large_archive import ROWS, write_archive
from maxbrod_bench.peers import read_with_consumer_performance
from maxbrod_bench.planning import PARTITIONS as MANY_PARTITIONS
from maxbrod_bench.planning import SEGMENT_BYTES
from maxbrod_bench.race import (
    Figure,
    Lap,
    MountGroup,
    at_most,
    measure_fresh,
    peak_bytes,
    race_laps,
    rate,
    run_python,
    speed,
)
from maxbrod_bench.stage import A_RECORDS, B_RECORDS, BATCH_BYTES, PARTITIONS, Load, open_cluster, write_load

_CACHE_BYTES: Final = 256 << 20
_BYTES_WANTED: Final = 1.75 * _CACHE_BYTES + 250e6
"""The bound in docs/mount.md: the cache, loads and answers, and what Python and Arrow take without them."""
_FIRST_RECORD_S: Final = 3.0
_CONSUMERS: Final = 200
_TOPIC: Final = "topic-00042"


@contextmanager
def mount_briefly(archive: Path, *arguments: str) -> Iterator[MountProcess]:
    """A mount whose commits are not kept."""
    with (
        tempfile.TemporaryDirectory(prefix="maxbrod-bench-state-") as state,
        mount_process(archive, Path(state), *arguments) as process,
    ):
        yield process


def measure(
    *,
    scale: float,
    rounds: int,
    only: Collection[MountGroup] = (),
    batch_bytes: int = BATCH_BYTES,
    on_stage: Callable[[str], None] = lambda _: None,
) -> list[Figure]:
    chosen = frozenset(only or MountGroup)
    found: list[Figure] = []
    races = [group for group in (MountGroup.A, MountGroup.B) if group in chosen]
    many = MountGroup.MANY in chosen
    if races or many:
        on_stage("starting a cluster")
        with open_cluster() as (cluster, folder):
            for group in races:
                on_stage(f"racing over {group}")
                found += _race(cluster, folder, group, scale=scale, rounds=rounds, batch_bytes=batch_bytes)
            if many:
                on_stage(f"reading with {_CONSUMERS} consumers")
                found += _many(cluster, folder, scale=scale, batch_bytes=batch_bytes)
    if MountGroup.FIRST in chosen:
        on_stage("writing a large archive")
        found += measure_first(rows=int(ROWS * min(scale, 1.0)))
    return found


def _race(
    cluster: Cluster, folder: Path, group: MountGroup, *, scale: float, rounds: int, batch_bytes: int
) -> list[Figure]:
    json = group is MountGroup.B
    records = max(int((B_RECORDS if json else A_RECORDS) * scale), PARTITIONS)
    topic = f"bench-{group}"
    load = write_load(cluster, topic, records, partitions=PARTITIONS, batch_bytes=batch_bytes, json=json)
    archive = _backed_up(cluster, folder, topic)
    with mount_briefly(archive, "--cache-bytes", str(_CACHE_BYTES)) as mounted:
        laps = race_laps(
            {
                "mount": lambda: _fetch_time(mounted.bootstrap, load),
                "broker": lambda: _fetch_time(cluster.bootstrap, load),
            },
            rounds=rounds,
        )
        peak = peak_bytes(mounted.pid)
    ours, peer = laps["mount"], laps["broker"]
    note = f"{rate(load.bytes, ours, 'MB/s')}, broker {rate(load.bytes, peer, 'MB/s')}"
    name = f"{group.upper()}, ConsumerPerformance from the mount over from a broker"
    return [
        speed(name, ours, peer, wanted=0.7, note=note),
        at_most(f"{group.upper()}, peak memory of the mount", peak, "bytes", _BYTES_WANTED),
    ]


def _backed_up(cluster: Cluster, folder: Path, topic: str) -> Path:
    archive = folder / f"archive-{topic}"
    run_python(
        *("-m", "maxbrod", "backup", "--bootstrap", cluster.bootstrap, "--archive", str(archive)),
        *("--topic", topic, "--engine", "local", "--quiet"),
    )
    return archive


def _many(cluster: Cluster, folder: Path, *, scale: float, batch_bytes: int) -> list[Figure]:
    """All consumers of librdkafka in one process: each reads a partition from an offset of its own, some of it."""
    topic, records = "bench-many", max(int(A_RECORDS * scale), _CONSUMERS)
    load = write_load(cluster, topic, records, partitions=PARTITIONS, batch_bytes=batch_bytes, json=False)
    archive = _backed_up(cluster, folder, topic)
    each = records // _CONSUMERS
    seconds = {}
    with mount_briefly(archive, "--cache-bytes", str(_CACHE_BYTES)) as mounted:
        for name, bootstrap in (("mount", mounted.bootstrap), ("broker", cluster.bootstrap)):
            seconds[name] = measure_fresh(__name__, "read_with_many", bootstrap, topic, records // PARTITIONS, each)
        peak = peak_bytes(mounted.pid)
    took, peer = seconds["mount"]["seconds"], seconds["broker"]["seconds"]
    note = f"{load.bytes / took / 1e6:.0f} MB/s, broker {load.bytes / peer / 1e6:.0f} MB/s"
    return [
        Figure(
            name=f"{_CONSUMERS} consumers from the mount over from a broker", value=peer / took, unit="times", note=note
        ),
        at_most(f"{_CONSUMERS} consumers, peak memory of the mount", peak, "bytes", _BYTES_WANTED),
    ]


def read_with_many(bootstrap: str, topic: str, partition_records: int, records: int) -> dict[str, float]:
    """Read so many records with each of the consumers; together they read every record about once."""
    from confluent_kafka import Consumer  # noqa: PLC0415 - for development only
    from confluent_kafka import TopicPartition as Place  # noqa: PLC0415

    def read(number: int) -> None:
        # Each is ahead of what it has read by 1 MB: by default it would fetch 64 MB that nobody reads.
        limits = {"queued.max.messages.kbytes": 1024, "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "many", **limits})
        try:
            share = number // PARTITIONS
            offset = min(share * records, max(partition_records - records, 0))
            consumer.assign([Place(topic, number % PARTITIONS, offset)])
            left = min(records, partition_records - offset)
            while left > 0:
                messages = consumer.consume(min(left, 500), 1.0)
                for message in messages:
                    if message.error() is not None:
                        raise UnavailableError(str(message.error()), operation="bench")
                left -= len(messages)
        finally:
            consumer.close()

    began = time.monotonic()
    with ThreadPoolExecutor(_CONSUMERS) as pool:
        list(pool.map(read, range(_CONSUMERS)))
    return {"seconds": time.monotonic() - began}


def _fetch_time(bootstrap: str, load: Load) -> Lap:
    """The time that the tool itself states: without the start of its JVM, and without joining its group."""
    return Lap(seconds=read_with_consumer_performance(bootstrap, load), cpu_seconds=0.0)


def measure_first(*, rows: int) -> list[Figure]:
    """From the start of the command to the first record, of an archive whose catalog has this many rows."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as name:
        folder = Path(name) / "archive"
        write_archive(str(folder), partitions=min(MANY_PARTITIONS, rows), segments=rows)
        _put_record(folder)
        with mount_briefly(folder) as mounted:
            ready_s = time.monotonic() - mounted.began
            consumer = KafkaConsumer(bootstrap_servers=mounted.bootstrap)
            try:
                place = TopicPartition(_TOPIC, 0)
                consumer.assign([place])
                consumer.seek(place, 0)
                while not consumer.poll(100):
                    pass
                first_s = time.monotonic() - mounted.began
            finally:
                consumer.close()
            metadata_s = _metadata_time(mounted.bootstrap)
            peak = peak_bytes(mounted.pid)
        with mount_briefly(folder, "--topic", "topic-000[0-9][0-9]") as mounted:
            some_s = _metadata_time(mounted.bootstrap)
    partitions = min(MANY_PARTITIONS, rows)
    return [
        at_most(f"ready, {rows:,} rows", ready_s, "seconds", _FIRST_RECORD_S),
        at_most(f"first record, {rows:,} rows", first_s, "seconds", _FIRST_RECORD_S),
        at_most(f"Metadata of {min(partitions, 10_000):,} partitions", some_s, "seconds", None),
        at_most(f"Metadata of {partitions:,} partitions", metadata_s, "seconds", None),
        at_most(f"peak memory, {rows:,} rows", peak, "bytes", None),
    ]


def _put_record(folder: Path) -> None:
    """Put a record at the start of an object that the catalog names. The rest of it is empty, and never asked for."""
    path = folder / "segments" / _TOPIC / _TOPIC / "0" / f"{0:020d}-0123456789abcdef.log"
    path.parent.mkdir(parents=True)
    records = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1000)
    records.append(timestamp=0, key=b"first", value=b"record")
    records.close()
    path.write_bytes(records.buffer())
    os.truncate(path, SEGMENT_BYTES)


def _metadata_time(bootstrap: str) -> float:
    """From a request for all topics to the last byte of its answer, the second time."""
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        for _ in range(2):
            request = struct.pack(">hhih", 3, 9, 1, -1) + b"\0" + b"\0" + b"\0\0\0" + b"\0"
            began = time.monotonic()
            connection.sendall(struct.pack(">i", len(request)) + request)
            left = struct.unpack(">i", _received(connection, 4))[0]
            _received(connection, left)
            took = time.monotonic() - began
    return took


def _received(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise UnavailableError("the mount has closed the connection", operation="bench")
        data += part
    return bytes(data)
