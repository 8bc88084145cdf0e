"""What the target's own metadata says is believed: who has replicas, which topic is meant, how it is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from maxbrod.model import topic_id_of
from support.cold_restores import refused, restore
from support.log_directories import LOGS, TARGET_ID, put_source, put_target
from support.metadata_logs import batch, config, partition, put_metadata, topic

if TYPE_CHECKING:
    from pathlib import Path

TARGET = topic_id_of(TARGET_ID)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return put_source(tmp_path / "source")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return put_target(tmp_path / "disk")


def put(disk: Path, topic_id: UUID, *replicas: int, count: int = 2, settings: tuple[bytes, ...] = ()) -> None:
    assigned = [partition(topic_id, number, *replicas) for number in range(count)]
    put_metadata(disk, [batch(0, topic("orders", topic_id), *assigned, *settings)])


def test_a_broker_that_is_not_named_and_has_a_replica_is_refused(source: Path, disk: Path) -> None:
    put(disk, TARGET, 1, 3)
    assert "no directory of broker 3 is named" in refused(source, disk).message


def test_folders_that_the_clusters_metadata_does_not_mean_are_refused(source: Path, disk: Path) -> None:
    put(disk, UUID(int=9), 1)
    assert "different topic ids" in refused(source, disk).message


def test_a_topic_with_more_partitions_elsewhere_is_refused(source: Path, disk: Path) -> None:
    put(disk, TARGET, 1, count=3)
    assert "it has 3 partitions, the archived topic 2" in refused(source, disk).message


def test_segments_are_as_large_as_the_target_wants_them(source: Path, disk: Path) -> None:
    size = 3 * len(LOGS["orders-0"][0])
    put(disk, TARGET, 1, settings=(config("segment.bytes", str(size)),))
    assert restore(source, disk)["complete"]
    assert [each.stat().st_size for each in sorted((disk / "orders-0").glob("*.log"))] == [size, size, 0]


def test_a_retention_that_would_take_what_is_restored_is_told(source: Path, disk: Path) -> None:
    put(disk, TARGET, 1, settings=(config("retention.bytes", "100"),))
    assert any("retention.bytes is 100" in each for each in restore(source, disk)["warnings"])
