"""What a task sends for a partition, before any of it is sent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.errors import RefusedError, UnavailableError, UsageError
from maxbrod.kafka.wire.deadline import Pace
from maxbrod.layouts.kafka.format import Compression
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import TopicPartition
from maxbrod.restore import task
from maxbrod.restore.items import RestoreItem, RestoreSettings
from maxbrod.restore.plan.request import BatchesMode
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from maxbrod.layouts.kafka.format import Slice
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


def test_a_refused_partition_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition that a broker refuses is named, and the others of the task go on. What may come stops all."""
    partition, _ = partition_of(tmp_path, BatchesMode.KEEP)
    items = [replace(partition.item, where=TopicPartition(topic="t", partition=number)) for number in range(4)]
    refused = {"t-1", "t-3"}

    def restore(_: object, __: object, partitions: Sequence[task._Partition], ___: object) -> None:
        for each in partitions:
            if str(each.item.where) in refused:
                raise RefusedError("too large", object_name=str(each.item.where))
            each._read, each.reached = True, each.next_offset

    monkeypatch.setattr(task, "_restore", restore)
    settings = _settings(tmp_path)
    outcomes = task.run_restore_task(settings, items)
    assert [each.where.partition for each in outcomes] == [0, 1, 2, 3]
    failures = [each.failure and each.failure.object_name for each in outcomes]
    assert failures == [None, "t-1", None, "t-3"]

    def unavailable(_: object, __: object, ___: object, ____: object) -> None:
        raise UnavailableError("the broker is gone", object_name="t-1")

    monkeypatch.setattr(task, "_restore", unavailable)
    assert all(each.failure for each in task.run_restore_task(settings, items))


def test_a_topic_without_rights_is_tried_once_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each of its partitions, of which there may be hundreds."""
    partition, _ = partition_of(tmp_path, BatchesMode.KEEP)
    items = [
        replace(partition.item, where=TopicPartition(topic=name, partition=number))
        for name in ("closed", "open-1")
        for number in range(5)
    ]
    rounds = []

    def restore(_: object, __: object, partitions: Sequence[task._Partition], ___: object) -> None:
        rounds.append(len(partitions))
        for each in partitions:
            if each.item.where.topic == "closed":
                raise UsageError("this user may not write to the topic", object_name=str(each.item.where))
            each._read, each.reached = True, each.next_offset

    monkeypatch.setattr(task, "_restore", restore)
    outcomes = task.run_restore_task(_settings(tmp_path), items)
    assert [each.failure is None for each in outcomes] == [False] * 5 + [True] * 5
    assert rounds == [10, 5]


def _settings(archive: Path) -> RestoreSettings:
    return RestoreSettings(
        restore_id="r",
        archive_url=str(archive),
        kafka=KafkaConfig(bootstrap="localhost:1"),
        storage=StorageConfig(),
        producer_id=1,
    )
