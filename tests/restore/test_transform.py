"""Records are filtered, masked and rewritten on their way into a real cluster, by a real Spark."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.api import restore as engine
from maxbrod.sandbox.topics import offsets
from restore.faults import archive, renamed
from restore.oracle import assert_restored

if TYPE_CHECKING:
    from pathlib import Path

    from backup.plain import Record
    from maxbrod.api.restore_report import RestoreReport
    from maxbrod.config import Config
    from maxbrod.planning.restore.wish import Wish
    from maxbrod.sandbox.cluster import Cluster

PARTITIONS = 2
Archived = tuple["Config", list[dict[int, "Record"]]]


@pytest.fixture
def archived(cluster: Cluster, topic: str, tmp_path: Path) -> Archived:
    return archive(cluster, topic, tmp_path / "archive", partitions=PARTITIONS)


def restore(config: Config, wish: Wish, spark: Any) -> RestoreReport:
    with engine.Restore(config, wish, session=spark) as work:
        return work.run(work.plan())


def test_records_are_dropped_and_masked_and_all_else_stays_exactly_what_it_was(
    cluster: Cluster, topic: str, archived: Archived, spark: Any, tmp_path: Path
) -> None:
    config, truth = archived
    wish = renamed(
        where="key is null or length(key) < 12",
        select="sha2(value, 256) as value",
    )
    report = restore(config, wish, spark)
    assert report.exit_code == 0, report.partitions
    for partition, records in enumerate(truth):
        kept = {
            at: each._replace(value=None if each.value is None else hashlib.sha256(each.value).hexdigest().encode())
            for at, each in records.items()
            if each.key is None or len(each.key) < 12
        }
        assert 0 < len(kept) < len(records)
        assert_restored(cluster, f"new-{topic}", kept, partition=partition)
        assert offsets(cluster, f"new-{topic}", partition)[1] == offsets(cluster, topic, partition)[1]
    assert not list((tmp_path / "archive" / "restores").glob("*/staged/**/*.log*"))
    print(report.transform)
