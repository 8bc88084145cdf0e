"""A master and three workers on loopback, two of which are killed. One run serves all tests."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.s3 import S3Server
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.archive_oracle import read_archive
from support.ledger import Ledger
from support.processes import environment, program
from support.spark_cluster import spark_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

RECORDS, PARTITIONS = 300, 3


class Run:
    def __init__(self, said: dict[str, Any], archive: Path, ledger: Ledger) -> None:
        self.said, self.archive, self.ledger = said, archive, ledger


@pytest.fixture(scope="module")
def run(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("standalone")
    topic, ledger = "on-a-spark-cluster", Ledger()
    create_topic(cluster, topic, partitions=PARTITIONS, config={"retention.ms": "-1"})
    for partition in range(PARTITIONS):
        ledger.write(cluster, topic, RECORDS, partition=partition)
    with spark_cluster(folder, workers=3, env={}) as spark, S3Server.start(folder / "s3") as s3:
        server = {key: s3.store_options()[key] for key in ("bucket", "endpoint", "access_key_id", "secret_access_key")}
        python = folder / "python"
        # The driver's Python outside of its environment: of the same version, without a package.
        python.write_text(f'#!/bin/sh\nexec "{getattr(sys, "_base_executable", sys.executable)}" -S "$@"\n')
        python.chmod(0o755)
        ended = subprocess.run(
            program("standalone", spark.url, cluster.bootstrap, topic, folder, json.dumps(server), python),
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    return Run(json.loads(ended.stdout), folder / "archive", ledger)


def test_a_backup_survives_a_machine_of_the_cluster(run: Run) -> None:
    assert {"0-0-wrote", "0-1-wrote"} <= set(run.said["marks"])
    assert run.said["backup"] == [0, RECORDS * PARTITIONS]
    read_archive(str(run.archive)).assert_equals(run.ledger)


def test_a_restore_survives_a_machine_of_the_cluster(run: Run) -> None:
    """Its task had written everything, so the next attempt finds it there and adds nothing."""
    assert {"restore-0-0", "restore-0-1"} <= set(run.said["restore marks"])
    assert run.said["restore"] == 0


def test_compare_finds_every_record_once_on_the_worker_that_is_left(run: Run) -> None:
    assert run.said["compare"] == [0, RECORDS * PARTITIONS]


def test_checks_conversions_queries_and_the_table_work_there_too(run: Run) -> None:
    assert (run.said["check"], run.said["convert"]) == (0, 0)
    assert run.said["query"] == [{"n": RECORDS * PARTITIONS}]
    assert run.said["table"] == (RECORDS - 10) * PARTITIONS


def test_compactions_drills_repairs_and_replication_work_there_too(run: Run) -> None:
    assert (run.said["compact"], run.said["by key"]) == ([0, 6, 2], [0, 4, 2])
    assert (run.said["drill"], run.said["repair"]) == ("proven", [0, True, 1])
    assert run.said["replicate"] == [{"in step": PARTITIONS}, RECORDS * PARTITIONS, [True] * PARTITIONS]


def test_a_broker_that_workers_cannot_reach_is_named_with_their_host(run: Run) -> None:
    kind, message, _ = run.said["reach"][0]
    assert kind == "UnavailableError"
    assert message.startswith(f"from the Spark workers on {socket.gethostname()}: ")
    assert "127.0.0.1:1" in message


def test_keys_that_only_the_driver_has_are_missed_with_the_host_before_the_first_task(run: Run) -> None:
    _, message, hint = run.said["reach"][1]
    assert message.startswith(f"from the Spark workers on {socket.gethostname()}: no credentials were found")
    assert "maxbrod help cluster" in hint


def test_keys_in_the_configuration_travel_to_the_workers(run: Run) -> None:
    assert run.said["reach"][2] == []


def test_a_python_without_maxbrod_is_named_with_what_to_do(run: Run) -> None:
    kind, message, hint = run.said["bare"]
    assert kind == "EnvironmentMissingError"
    assert message.startswith(f"the Python of the Spark workers on {socket.gethostname()} lacks ")
    assert "maxbrod" in message
    assert "maxbrod cluster pack" in hint


def test_sigterm_ends_the_wait_for_executors_and_leaves_no_archive_behind(cluster: Cluster, tmp_path: Path) -> None:
    """A master without workers has no executors to give."""
    topic = "without-executors"
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(10))
    archive, log = tmp_path / "archive", tmp_path / "master.log"
    with spark_cluster(tmp_path, workers=0, env={}) as spark:
        words = ["--bootstrap", cluster.bootstrap, "--archive", str(archive), "--topic", topic, "--master", spark.url]
        command = [sys.executable, "-m", "maxbrod", "backup", *words, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                wait_for("the application", lambda: "Registered app" in log.read_text(), timeout_s=120)
                process.send_signal(signal.SIGTERM)
                said, _ = process.communicate(timeout=120)
            finally:
                process.kill()
    assert (process.returncode, [each["kind"] for each in json.loads(said)["notices"]]) == (3, ["stopped"])
    assert not [each for each in archive.rglob("*") if each.is_file()]
