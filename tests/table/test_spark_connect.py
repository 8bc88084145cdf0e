"""The table, its stream and the verbs over Spark Connect: a real server, and clients with nothing of Spark but that."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.sandbox.topics import create_topic
from support.archive_oracle import read_archive
from support.ledger import Ledger
from support.native_logs import data_batch
from support.processes import environment, program
from support.table_archives import write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The port of a server. Nothing of it is left afterwards."""
    with subprocess.Popen(
        program("tables", "serve"), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the server has not started"
        started = psutil.Process(process.pid).children(recursive=True)
        try:
            yield port
        finally:
            process.stdin.close()
            process.wait()
    assert psutil.wait_procs(started, timeout=60)[1] == []


def client(*arguments: str) -> dict[str, Any]:
    ended = subprocess.run(program(*arguments), env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    said: dict[str, Any] = json.loads(ended.stdout)
    return said


def test_the_table_and_its_stream_work_over_spark_connect(server: str, tmp_path: Path) -> None:
    batches = [data_batch(base, 5) for base in range(0, 100, 5)]
    write(tmp_path / "whole", batches, limits=SegmentLimits(records_max=10))
    rows = write(tmp_path / "sparse", batches, limits=SegmentLimits(records_max=10))
    for row in rows:
        if not row.base_offset <= 57 < row.end_offset:
            (tmp_path / "sparse" / row.path).unlink()
    places = (str(tmp_path / name) for name in ("whole", "sparse", "scratch"))
    assert client("tables", "connect", server, *places) == {
        "unregistered": 10,
        "asked": [{"records": 100, "value": "value", "told": 100}],
        "point": [57],
        "twice": [30, 100, 10, 7] * 3,
        "written": 100,
        "stream": [*range(100)],
        "batches": 2,
    }


@pytest.fixture(scope="module")
def said(server: str, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    topic, ledger = "over-spark-connect", Ledger()
    create_topic(cluster, topic, partitions=2, config={"retention.ms": "-1"})
    for partition in range(2):
        ledger.write(cluster, topic, 100, partition=partition)
    folder = tmp_path_factory.mktemp("connect")
    said = client("standalone", "connect", server, cluster.bootstrap, topic, str(folder))
    read_archive(str(folder / "archive")).assert_equals(ledger)
    return said


def test_a_backup_and_its_restore_over_spark_connect_have_the_same_records(said: dict[str, Any]) -> None:
    assert (said["backup"], said["restore"], said["compare"]) == ([0, 200], 0, [0, 200])


def test_checks_conversions_and_queries_run_over_spark_connect(said: dict[str, Any]) -> None:
    assert (said["check"], said["convert"], said["query"], said["table"]) == (0, 0, [{"n": 200}], 180)


def test_compactions_drills_repairs_and_replication_run_over_spark_connect(said: dict[str, Any]) -> None:
    assert (said["compact"], said["by key"]) == ([0, 6, 2], [0, 4, 2])
    assert (said["drill"], said["repair"]) == ("proven", [0, True, 1])
    assert said["replicate"] == [{"in step": 2}, 200, [True, True]]


def test_a_server_in_the_configuration_is_used_as_a_session_that_is_handed_in(said: dict[str, Any]) -> None:
    assert said["configured"] == 0


def test_jobs_over_spark_connect_say_how_far_they_are_and_can_be_stopped(said: dict[str, Any]) -> None:
    assert said["jobs"] == {"seen": 1, "stopped": True}, "one of two, while the other waited for that"
