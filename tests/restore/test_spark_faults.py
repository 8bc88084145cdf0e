"""A worker and an executor are killed under a restore: their tasks run again, and nothing is there twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.restore import run as engine
from restore.faults import archive, renamed
from restore.oracle import assert_restored
from restore.spark_program import fateful_job

if TYPE_CHECKING:
    from backup.plain import Record
    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster

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


def assert_whole(cluster: Cluster, topic: str, archived: Archived, marks: Path) -> None:
    assert {"0-0-killed", "0-1-done", "1-0-done"} <= {path.name for path in marks.iterdir()}
    for partition, records in enumerate(archived[1]):
        assert_restored(cluster, f"new-{topic}", records, partition=partition)


def test_a_worker_that_is_killed_leaves_nothing_twice(
    cluster: Cluster, topic: str, archived: Archived, marks: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "run_restore_job", fateful_job("worker", marks))
    with engine.Restore(archived[0], renamed(), session=spark) as work:
        report = work.run(work.plan())
    assert report.exit_code == 0, report.partitions
    assert_whole(cluster, topic, archived, marks)


def test_an_executor_that_is_killed_leaves_nothing_twice(
    cluster: Cluster, topic: str, archived: Archived, marks: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "restore.spark_program", archived[0].model_dump_json(), str(marks)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=900,
    )
    assert ended.returncode == 0
    report = json.loads(ended.stdout)
    assert report["exit_code"] == 0, report
    assert_whole(cluster, topic, archived, marks)
