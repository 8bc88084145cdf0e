"""A worker is killed under a restore: its task runs again, and nothing is there twice.

`cluster/test_standalone.py` kills an executor, with the machine that it runs on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.restore import run as engine
from maxbrod.work.jobs import SparkExecutor
from restore.fateful_job import fateful_run
from restore.faults import archive, renamed
from support.restore_oracle import assert_restored

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster
    from support.plain_log import Record

pytestmark = pytest.mark.full

PARTITIONS = 2
Archived = tuple["Config", list[dict[int, "Record"]]]


@pytest.fixture
def archived(cluster: Cluster, topic: str, tmp_path: Path) -> Archived:
    return archive(cluster, topic, tmp_path / "archive", partitions=PARTITIONS)


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def test_a_worker_that_is_killed_leaves_nothing_twice(
    cluster: Cluster, topic: str, archived: Archived, marks: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkExecutor, "run", fateful_run(marks))
    with engine.Restore(archived[0], renamed(), session=spark) as work:
        report = work.run(work.plan())
    assert report.exit_code == 0, report.partitions
    assert {"0-0-killed", "0-1-done", "1-0-done"} <= {path.name for path in marks.iterdir()}
    for partition, records in enumerate(archived[1]):
        assert_restored(cluster, f"new-{topic}", records, partition=partition)
