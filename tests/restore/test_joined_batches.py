"""Small batches are joined on their way into a cluster: nothing else changes, and any attempt resumes any other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.renames import parse_rename
from maxbrod.batch.headers import walk
from maxbrod.config import Config, KafkaConfig
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.layouts.registry import FOREIGN
from maxbrod.model import TopicPartition
from maxbrod.restore import task
from maxbrod.restore.plan.request import BatchesMode, RestoreRequest
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.conversions import back_up_as
from support.restore_faults import CrashError, Wire, archive, renamed, restore
from support.restores import read_all

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

BATCHES = 40
RECORDS = 5
TOTAL = BATCHES * RECORDS
KEEP, AUTO, JOIN = BatchesMode.KEEP, BatchesMode.AUTO, BatchesMode.JOIN


def small_batches(cluster: Cluster, topic: str, folder: Path, codec: str | None = None) -> Config:
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    produce(cluster, topic, numbered(TOTAL), batch_records=RECORDS, compression_type=codec)
    config = config_of(cluster, folder / "archive", topic)
    assert back_up(config).complete
    return config


def batch_counts(cluster: Cluster, topic: str) -> list[int]:
    """The number of records in each batch of the log."""
    where = TopicPartition(topic=topic, partition=0)
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        chunks = list(read_range(client, where, *offsets(cluster, topic)))
    return [count for chunk in chunks for count in walk(chunk.data)["count"].tolist()]


def values(cluster: Cluster, topic: str) -> list[tuple[int, bytes]]:
    return read_all(cluster, topic)


@pytest.mark.parametrize("codec", [None, "lz4", "gzip"])
def test_small_batches_are_joined_and_every_record_keeps_its_offset(
    cluster: Cluster, topic: str, tmp_path: Path, codec: str | None
) -> None:
    config = small_batches(cluster, topic, tmp_path, codec)
    assert restore(config, renamed()).complete

    assert values(cluster, f"new-{topic}") == values(cluster, topic)
    # Compressing gzip again costs more than it saves.
    assert batch_counts(cluster, f"new-{topic}") == ([RECORDS] * BATCHES if codec == "gzip" else [TOTAL])


@pytest.mark.parametrize(("mode", "expected"), [(KEEP, [RECORDS] * BATCHES), (JOIN, [TOTAL])])
def test_batches_are_kept_or_joined_as_requested(
    cluster: Cluster, topic: str, tmp_path: Path, mode: BatchesMode, expected: list[int]
) -> None:
    config = small_batches(cluster, topic, tmp_path, "gzip")
    assert restore(config, renamed(batches=mode)).complete

    assert batch_counts(cluster, f"new-{topic}") == expected
    assert values(cluster, f"new-{topic}") == values(cluster, topic)


def test_batches_from_archives_of_other_tools_are_joined(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    small_batches(cluster, topic, tmp_path, "lz4")
    for layout in FOREIGN:
        config = config_of(cluster, tmp_path / layout, topic)
        assert back_up_as(config, layout, accept_loss=True).complete
        request = RestoreRequest(rename=parse_rename(prefix=f"{layout}-"))
        assert restore(config, request).complete

        assert batch_counts(cluster, f"{layout}-{topic}") == [TOTAL], layout
        assert values(cluster, f"{layout}-{topic}") == values(cluster, topic), layout


def test_the_archive_of_the_fault_tests_is_restored_in_joined_batches(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    config, _ = archive(cluster, topic, tmp_path)
    assert restore(config, renamed("append")).complete

    assert batch_counts(cluster, topic)[:10] == [10] * 10
    restored = batch_counts(cluster, f"new-{topic}")
    assert restored == [20, 10, 10, 20, 20, 40, 10, 10, 20, 20, 20], "those of gzip stay as they are"


@pytest.mark.parametrize("offsets_mode", ["exact", "append"])
@pytest.mark.parametrize(("first", "second"), [(KEEP, AUTO), (AUTO, KEEP), (AUTO, AUTO)])
def test_a_restore_resumes_what_another_has_written_in_batches_of_another_size(
    cluster: Cluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: BatchesMode,
    second: BatchesMode,
    offsets_mode: str,
) -> None:
    config = small_batches(cluster, topic, tmp_path)
    # Few batches in each group, so that there are several groups to be interrupted between.
    monkeypatch.setitem(task._RULES, AUTO, replace(task._RULES[AUTO], target_bytes=700))
    with Wire("Produce", crash_at=3).watched(), pytest.raises(CrashError):
        restore(config, renamed(offsets_mode, batches=first))
    assert 0 < offsets(cluster, f"new-{topic}")[1] < TOTAL

    assert restore(config, renamed(offsets_mode, batches=second)).complete
    assert [value for _, value in values(cluster, f"new-{topic}")] == [value for _, value in values(cluster, topic)]
    assert max(batch_counts(cluster, f"new-{topic}")) > RECORDS


@pytest.mark.parametrize("offsets_mode", ["exact", "append"])
def test_a_joined_batch_that_arrives_late_is_not_there_twice(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offsets_mode: str
) -> None:
    config = small_batches(cluster, topic, tmp_path)
    monkeypatch.setitem(task._RULES, AUTO, replace(task._RULES[AUTO], target_bytes=700))
    late = Wire("Produce", crash_at=3)
    with late.watched(), pytest.raises(CrashError):
        restore(config, renamed(offsets_mode))
    # The next attempt is about to send its first batch when the one before it reaches the broker.
    with Wire("Produce", before_first=late.arrive).watched():
        assert restore(config, renamed(offsets_mode)).complete
    assert [value for _, value in values(cluster, f"new-{topic}")] == [value for _, value in values(cluster, topic)]
