"""What a task holds in memory: little, whatever the size of what it restores."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.kafka.produce.appends import Append
from maxbrod.kafka.wire.deadline import Pace
from maxbrod.layouts.kafka.format import Compression
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import TopicPartition
from maxbrod.restore import task
from maxbrod.restore.items import RestoreItem, RestoreSettings
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.storage.interface import Storage

RECORDS = 48_000
RECORD_BYTES = 1000
PEAK_BYTES = 24 << 20


def small_batches(storage: Storage) -> tuple[Slice, ...]:
    """48 MB of records in batches of 16 KiB."""
    values = np.random.default_rng(1).integers(65, 91, RECORDS * RECORD_BYTES, np.uint8).tobytes()
    columns = {
        "offset": pa.array(np.arange(RECORDS)),
        "timestamp_ms": pa.array(np.arange(RECORDS)),
        "key": pa.nulls(RECORDS, pa.binary()),
        "value": pa.array([values[at : at + RECORD_BYTES] for at in range(0, len(values), RECORD_BYTES)]),
    }
    data = encode(pa.RecordBatch.from_pydict(columns), batch_bytes_max=16 << 10)
    with ArchiveWriter(storage, run_id="run", compression=Compression.parse("source")) as archive:
        part = archive.partition(topic="t", topic_id="AAAAAAAAAAAAAAAAAAAAAA", partition=0, packed=False)
        part.append(data, walk(data))
        part.close()
    return part.slices


def test_a_partition_takes_a_few_megabytes_whatever_its_size(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), StorageConfig())
    item = RestoreItem(
        where=TopicPartition(topic="t", partition=0),
        topic_id="AAAAAAAAAAAAAAAAAAAAAA",
        exact=True,
        base=0,
        first_offset=0,
        end_offset=RECORDS,
        batch_bytes_max=1 << 20,
        slices=small_batches(storage),
    )
    kafka = KafkaConfig(bootstrap="localhost:1")
    settings = RestoreSettings(
        restore_id="r", archive_url=str(tmp_path), kafka=kafka, storage=StorageConfig(), producer_id=1
    )
    restored(storage, item, settings)  # loads compiled code, which stays
    tracemalloc.start()
    try:
        joined = restored(storage, item, settings)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert joined < RECORDS // 16 // 20
    assert peak < PEAK_BYTES


def restored(storage: Storage, item: RestoreItem, settings: RestoreSettings) -> int:
    """The number of batches of a partition. The last five are in flight."""
    partition = task._Partition(item, settings, request_bytes=task._REQUEST_BYTES)
    batches, in_flight = 0, list[Append]()
    with ThreadPoolExecutor(2) as partition.ahead:
        for append in partition.appends(storage, Pace(None)):
            in_flight = [*in_flight[-4:], append]
            batches += 1
    assert partition.next_offset == RECORDS
    return batches
