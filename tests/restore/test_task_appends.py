"""What a task sends for a partition, before any of it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.kafka.wire.pacing import Pace
from maxbrod.layouts.kafka.compression import Compression
from maxbrod.layouts.kafka.writing import ArchiveWriter
from maxbrod.model import TopicPartition
from maxbrod.restore import task
from maxbrod.restore.plan.request import BatchesMode
from maxbrod.restore.task import RestoreItem, RestoreSettings
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.storage.interface import Storage

FIRST = 1_000
COUNT = 100
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"


def batches_of_ten(storage: Storage) -> tuple[Slice, ...]:
    columns = {
        "offset": pa.array(np.arange(FIRST, FIRST + COUNT)),
        "timestamp_ms": pa.array(np.arange(COUNT)),
        "key": pa.nulls(COUNT, pa.binary()),
        "value": pa.array([b"value"] * COUNT),
    }
    data = encode(pa.RecordBatch.from_pydict(columns), starts=np.arange(0, COUNT, 10))
    with ArchiveWriter(storage, run_id="run", compression=Compression.parse("source")) as archive:
        part = archive.partition(topic="t", topic_id=TOPIC_ID, partition=0, packed=False)
        part.append(data, walk(data))
        part.close()
    return part.slices


def partition_of(folder: Path, mode: BatchesMode) -> tuple[task._Partition, Storage]:
    storage = open_storage(str(folder), StorageConfig())
    item = RestoreItem(
        where=TopicPartition(topic="t", partition=0),
        topic_id=TOPIC_ID,
        exact=False,
        base=0,
        first_offset=FIRST,
        end_offset=FIRST + COUNT,
        batch_bytes_max=1 << 20,
        slices=batches_of_ten(storage),
    )
    settings = RestoreSettings(
        restore_id="r",
        archive_url=str(folder),
        kafka=KafkaConfig(bootstrap="localhost:1"),
        storage=StorageConfig(),
        producer_id=1,
        batches=mode,
    )
    return task._Partition(item, settings, request_bytes=1 << 20), storage


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(BatchesMode.KEEP, list(range(FIRST, FIRST + COUNT, 10))), (BatchesMode.JOIN, [FIRST])],
)
def test_every_batch_names_the_archived_offset_of_its_first_record(
    tmp_path: Path, mode: BatchesMode, expected: list[int]
) -> None:
    partition, storage = partition_of(tmp_path, mode)

    assert [each.source_offset for each in partition.appends(storage, Pace(None))] == expected


@pytest.mark.parametrize("mode", [BatchesMode.KEEP, BatchesMode.JOIN])
def test_a_resumed_partition_skips_what_the_log_has_where_batches_are_read_without_a_copy(
    tmp_path: Path, mode: BatchesMode
) -> None:
    partition, storage = partition_of(tmp_path, mode)
    partition._present = 50
    found = list(partition.appends(storage, Pace(None)))

    assert partition._failure is None
    assert found[0].source_offset == FIRST + 50
    assert sum(each.count for each in found) == 50
