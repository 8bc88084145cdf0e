"""`maxbrod backup` as people and programs use it, against a real cluster on the Spark session of the tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import maxbrod
from maxbrod.cli.main import run
from maxbrod.errors import UsageError
from maxbrod.sandbox.events import orders, produce_records
from maxbrod.sandbox.process import free_ports
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, open_transaction, produce

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.usefixtures("spark")


class Command:
    """`maxbrod backup` of one topic into one archive."""

    def __init__(self, cluster: Cluster, topic: str, archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.archive = archive
        self.arguments = ["backup", "--bootstrap", cluster.bootstrap, "--archive", str(archive), "--topic", topic]
        self._capsys = capsys

    def __call__(self, *more: str, exits: int = 0) -> str:
        assert run([*self.arguments, *more]) == exits, self._capsys.readouterr().err
        return self._capsys.readouterr().out

    def json(self, *more: str, exits: int = 0) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self(*more, "--json", exits=exits))
        return document


@pytest.fixture
def command(cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(cluster, topic, tmp_path / "archive", capsys)


def test_the_first_run_takes_everything_and_the_next_what_came_since(
    cluster: Cluster, topic: str, command: Command
) -> None:
    create_topic(cluster, topic, partitions=3)
    produce(cluster, topic, numbered(70))
    produce(cluster, topic, numbered(30), partition=2)
    first = command.json()
    assert (first["records"], first["complete"], first["exit_code"], first["notices"]) == (100, True, 0, [])
    assert first["topics"][0]["partitions"] == 3

    produce(cluster, topic, numbered(5), partition=2)
    assert command.json()["records"] == 5
    runs = [command.json() for _ in range(3)]
    assert {each["records"] for each in runs} == {0}
    # Groups of other tests may come to rest meanwhile, which is news as well.
    assert not all(each["committed"] for each in runs)


def test_a_cold_run_with_nothing_to_do_needs_no_java(
    cluster: Cluster, topic: str, command: Command, tmp_path: Path
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(3))
    assert command.json()["records"] == 3
    # A sitecustomize that refuses every child process: a JVM would be one.
    (tmp_path / "sitecustomize.py").write_text(
        "import subprocess\n\ndef refuse(*_, **__):\n    raise RuntimeError('a process was started')\n\n"
        "subprocess.Popen = refuse\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "maxbrod", *command.arguments, "--json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, json.loads(ran.stdout)["records"]) == (0, 0), ran.stderr


def test_a_person_gets_a_table_a_recovery_point_and_a_verdict(cluster: Cluster, topic: str, command: Command) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(1234))
    shown = command()
    assert "1,234" in shown
    assert f"in {command.archive}" in shown.replace("\n", "")
    assert "recovery point: 20" in shown
    assert shown.endswith("complete: every offset up to the end of this run is archived or explained\n")
    # A cluster without an authorizer has no ACLs: nothing to bother a person with.
    assert "ACL" not in shown
    again = command()
    assert "1 topic without anything new" in again
    assert "nothing new" in again


def test_what_waits_for_an_open_transaction_is_shown_with_its_producer(
    cluster: Cluster, topic: str, command: Command
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(10))
    with open_transaction(cluster, topic, numbered(3), transactional_id=f"tx-{topic}"):
        shown = command()
    assert "waiting" in shown
    assert "open transaction: " in shown
    assert f"tx-{topic}" in shown.replace("\n", "")


def test_quiet_says_nothing_when_all_is_well(cluster: Cluster, topic: str, command: Command) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(1))
    assert command("--quiet") == ""


@pytest.mark.parametrize("start", ["{topic}:0:150", "{time}"])
def test_a_start_within_a_batch_takes_that_batch_whole(
    cluster: Cluster, topic: str, command: Command, start: str
) -> None:
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    records = orders(300)
    for first in (0, 100, 200):
        produce_records(cluster, topic, records.slice(first, 100))
    time_ms = records.column("timestamp_ms")[150].as_py()
    report = command.json("--start", start.format(topic=topic, time=time_ms))
    assert report["topics"][0]["gaps"] == {}
    assert report["records"] == 200


def test_latest_takes_only_what_comes_from_then_on(cluster: Cluster, topic: str, command: Command) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(10))
    assert command.json("--start", "latest")["records"] == 0
    produce(cluster, topic, numbered(4))
    assert command.json("--start", "latest")["records"] == 4


def test_a_topic_that_is_named_and_missing_is_bad_usage(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--bootstrap", cluster.bootstrap, "--archive", str(tmp_path / "archive"), "--topic", topic]
    assert run(["backup", *arguments]) == 2
    assert topic in capsys.readouterr().err


def test_a_file_says_all_that_flags_say_and_flags_win(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(10))
    file = tmp_path / "maxbrod.yaml"
    file.write_text(
        f"archive: {tmp_path / 'archive'}\n"
        f"kafka: {{bootstrap.servers: '{cluster.bootstrap}'}}\n"
        f"backup: {{topics: [nonsense], start: latest, segment_bytes: 1MiB}}\n"
    )
    assert run(["backup", "-c", str(file), "--topic", topic, "--start", "earliest", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 10


def test_a_broker_that_is_away_is_waited_for_aloud_and_then_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maxbrod.kafka.wire.client._WARN_FIRST_S", 0.0)
    (port,) = free_ports(1)
    arguments = ["--bootstrap", f"127.0.0.1:{port}", "--archive", str(tmp_path / "archive"), "--patience", "1s"]
    assert run(["backup", *arguments]) == 1
    told = capsys.readouterr().err
    assert "waiting for any broker to answer" in told
    assert re.search(r"error: waited \d+ s for any broker", told)
    assert run(["backup", *arguments, "--quiet"]) == 1
    assert "waiting for" not in capsys.readouterr().err


def test_python_programs_get_the_same_report(cluster: Cluster, topic: str, tmp_path: Path, spark: Any) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(25))
    steps: list[str] = []
    report = maxbrod.backup(
        bootstrap=cluster.bootstrap,
        archive=tmp_path / "archive",
        topics=[topic],
        compression="zstd:3",
        session=spark,
        on_progress=lambda step: steps.append(step.phase),
    )
    assert isinstance(report, maxbrod.BackupReport)
    assert (report.complete, report.exit_code, report.records) == (True, 0, 25)
    assert report.as_dict()["records"] == 25
    assert steps[0] == "planning"
    assert steps[-1] == "committing"


def test_python_programs_get_errors_raised_by_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="segment_bytes"):
        maxbrod.backup(bootstrap="localhost:1", archive=tmp_path, segment_bytes="many")
    with pytest.raises(UsageError, match="no cluster"):
        maxbrod.backup(archive=tmp_path)
