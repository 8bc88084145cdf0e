"""A restore of many partitions: each from its own slices, the catalog read once for all, the work spread evenly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, patch

import pytest

from maxbrod.archive.renames import parse_rename
from maxbrod.catalog.catalog import Catalog
from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.restore import run as engine
from maxbrod.restore import task as restore_task
from maxbrod.restore.items import Restored, RestoreItem, RestoreSettings
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import Message, produce
from maxbrod.work.work import Work
from support.backups import back_up, config_of
from support.ledger import NOW_MS
from support.restores import read_all
from support.sparkless import run_here, without_spark

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

PARTITIONS = 6
HUGE = 2


def messages(partition: int) -> list[Message]:
    count = 400 if partition == HUGE else 5 + partition
    return [Message(value=b"%d of %d" % (each, partition), timestamp_ms=NOW_MS) for each in range(count)]


def test_partitions_never_get_each_others_records_and_a_huge_one_has_a_task_for_itself(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, partitions=PARTITIONS, config={"retention.ms": "-1"})
    for partition in range(PARTITIONS):
        produce(cluster, topic, messages(partition), partition=partition)
    config = config_of(cluster, tmp_path / "archive", topic)
    assert back_up(config).complete

    shares: list[list[int]] = []
    reads: list[int] = []
    rows = Catalog.rows

    def count_rows(self: Catalog, **wanted: Any) -> Any:
        reads.append(1)
        return rows(self, **wanted)

    def watch(session: object, settings: Any, tasks: Sequence[Sequence[RestoreItem]], **hears: Any) -> list[Restored]:
        shares.extend([item.where.partition for item in task] for task in tasks)
        return run_here(session, settings, tasks, **hears)

    request = RestoreRequest(rename=parse_rename(prefix="new-"))
    with without_spark(watch), patch.object(Catalog, "rows", count_rows), engine.Restore(Work(config), request) as work:
        report = work.run(work.plan())

    assert report.complete
    assert len(reads) <= 5, "two for the plan, which is made again before it runs, one for all slices"
    assert sorted(map(len, shares)) == [1, PARTITIONS - 1]
    assert [HUGE] in shares
    for partition in range(PARTITIONS):
        expected = [each.value for each in messages(partition)]
        assert [value for _, value in read_all(cluster, f"new-{topic}", partition)] == expected
    counts = {each.partition: each.records for each in report.partitions}
    assert counts == {partition: len(messages(partition)) for partition in range(PARTITIONS)}


@pytest.mark.parametrize("partitions", [1, 2, 8, 64, pytest.param(10_000, marks=pytest.mark.full)])
def test_what_a_task_reads_at_once_never_grows_with_its_partitions(partitions: int) -> None:
    seen: list[int] = []

    class Watched(restore_task._Partition):
        def __init__(self, item: Any, _: object, *, request_bytes: int) -> None:
            self.place = item.where
            seen.append(request_bytes)

        def outcome(self, failure: Any) -> Any:
            return MagicMock(where=self.place, failure=failure)

    kafka = KafkaConfig(bootstrap="127.0.0.1:1")
    settings = RestoreSettings(
        restore_id="r", archive_url="memory://", kafka=kafka, storage=StorageConfig(), producer_id=1
    )
    with patch.object(restore_task, "_Partition", Watched), patch.object(restore_task, "_restore"):
        restore_task.run_restore_task(settings, [MagicMock(where=number) for number in range(partitions)])
    assert len(seen) == partitions
    assert min(seen) >= 1 << 20, "small requests are slow"
    assert sum(seen[: restore_task.PARTITIONS_AT_ONCE]) <= 64 << 20
