"""Workers and the driver are killed under a backup: tasks run twice, and nothing is there twice.

`cluster/test_standalone.py` kills executors, with the machine that they run on.
"""

from __future__ import annotations

import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.backup import run as engine
from maxbrod.sandbox.topics import create_topic
from maxbrod.work.jobs import SparkExecutor
from support.archive_oracle import read_archive
from support.backups import back_up_on, config_of
from support.ledger import Ledger
from support.processes import environment, program
from support.programs.fateful_backup import fateful_run
from support.sparkless import run_here, without_spark

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

RECORDS = 200
PARTITIONS = 3


@pytest.fixture
def ledger(cluster: Cluster, topic: str) -> Ledger:
    create_topic(cluster, topic, partitions=PARTITIONS, config={"retention.ms": "-1"})
    written = Ledger()
    for partition in range(PARTITIONS):
        written.write(cluster, topic, RECORDS, partition=partition)
    return written


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("fate", ["in the middle", "at the end"])
def test_a_worker_that_is_killed_leaves_nothing_twice(
    cluster: Cluster,
    topic: str,
    tmp_path: Path,
    spark: Any,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    fate: str,
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setattr(SparkExecutor, "run", fateful_run(fate, marks))
    report = back_up_on(spark, config_of(cluster, tmp_path / "archive", topic))
    assert (report.exit_code, report.records) == (0, PARTITIONS * RECORDS), report.notices
    died = "0-0-killed" if fate == "in the middle" else "0-0-wrote"
    assert {died, "0-1-wrote"} <= names(marks)
    read_archive(str(tmp_path / "archive")).assert_equals(ledger)
    # Objects of the attempt that died are there, and nothing names them.
    if fate == "at the end":
        assert len(list((tmp_path / "archive" / "packs").iterdir())) == report.objects + 1


def test_a_driver_that_is_killed_before_its_commit_has_archived_nothing_and_the_next_completes(
    cluster: Cluster, topic: str, tmp_path: Path, spark: Any, ledger: Ledger
) -> None:
    archive = tmp_path / "archive"
    config = {"archive": str(archive), "kafka": {"bootstrap": cluster.bootstrap}, "backup": {"topics": [topic]}}
    died = subprocess.run(
        program("fateful_backup", json.dumps(config)),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=300,
    )
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, "{}\n")
    assert list((archive / "packs").iterdir())
    assert not read_archive(str(archive)).rows
    report = back_up_on(spark, config_of(cluster, archive, topic))
    assert (report.exit_code, report.records) == (0, PARTITIONS * RECORDS)
    read_archive(str(archive)).assert_equals(ledger)


def test_two_attempts_of_every_task_at_once_leave_nothing_twice(
    cluster: Cluster, topic: str, tmp_path: Path, ledger: Ledger
) -> None:
    """As speculation does it, which Spark never does on one host: both write all, and one of them is heard."""

    def job(session: object, settings: Any, tasks: Any, **_: Any) -> list[Any]:
        with ThreadPoolExecutor(2) as both:
            attempts = [both.submit(run_here, session, settings, tasks) for _ in range(2)]
            return [each.result() for each in attempts][1]

    with without_spark(job), engine.Backup(config_of(cluster, tmp_path / "archive", topic)) as backup:
        report = backup.run()
    assert (report.exit_code, report.records) == (0, PARTITIONS * RECORDS)
    assert len(list((tmp_path / "archive" / "packs").iterdir())) == 2 * report.objects
    read_archive(str(tmp_path / "archive")).assert_equals(ledger)
