"""SIGTERM and Ctrl-C end a backup well, and twice end it at once. Each in a process of its own, as users have it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import Message, numbered, produce
from support.backups import back_up, config_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

PARTITIONS = 20


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, in a group of its own, as a shell starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "maxbrod", "backup", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        with process:
            yield process
    finally:
        if process.poll() is None:
            process.kill()


def family_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_ctrl_c_ends_a_run_with_what_is_being_read_committed(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(cluster, topic, numbered(10), partition=partition)
    archive, config = tmp_path / "archive", tmp_path / "maxbrod.yaml"
    # Each partition is a wave of its own, with a commit after it.
    config.write_text("backup: {commit_bytes: 1}\nspark: {master: 'local[1]'}\n")
    arguments = ("--bootstrap", cluster.bootstrap, "-a", str(archive), "--topic", topic)
    log = archive / "catalog" / "segments" / "_delta_log"
    with started(*arguments, "-c", str(config), "--json") as process:
        wait_for("the first commit", lambda: len(list(log.glob("*.json"))) > 1, timeout_s=240)
        family = family_of(process)
        # The terminal sends it to everyone of the group: neither the JVM nor the workers may die of it.
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 3, err
    assert "stopping" in err
    report = json.loads(out)
    assert [notice["kind"] for notice in report["notices"]] == ["stopped"]
    assert 0 < report["records"] < PARTITIONS * 10
    assert (report["recovery_point_ms"], report["waiting"]) == (None, PARTITIONS * 10 - report["records"])
    assert sum(open_archive(str(archive)).catalog.rows()["records"].to_pylist()) == report["records"]
    assert psutil.wait_procs(family, timeout=60)[1] == []

    rest = back_up(config_of(cluster, archive, topic))
    assert report["records"] + rest.records == PARTITIONS * 10
    assert rest.complete


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_ctrl_c_in_the_middle_of_a_wave_keeps_what_was_read_and_leaves_the_rest(
    cluster: Cluster, topic: str, tmp_path: Path, engine: str
) -> None:
    create_topic(cluster, topic)
    # 40 MB: at this rate the whole run would last for more than a minute.
    produce(cluster, topic, [Message(key=None, value=b"x" * 1000)] * 40_000, linger_ms=5)
    archive = tmp_path / "archive"
    where = ("--bootstrap", cluster.bootstrap, "-a", str(archive), "--topic", topic)
    slow = ("--engine", engine, "--rate", "500kB", "--json", "--progress")
    with started(*where, *slow) as process:
        assert process.stderr is not None
        # Bytes while they are read: of one task, which has not ended.
        seen: dict[str, Any] = {"bytes_done": 0}
        while not (seen.get("phase") == "reading" and seen["bytes_done"]):
            line = process.stderr.readline()
            assert line, "it has ended"
            seen = json.loads(line) if line.startswith("{") else seen
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 3, err
    report = json.loads(out)
    assert [notice["kind"] for notice in report["notices"]] == ["stopped"]
    assert 0 < report["records"] < 40_000
    assert (report["recovery_point_ms"], report["waiting"]) == (None, 40_000 - report["records"])

    rest = back_up(config_of(cluster, archive, topic))
    assert report["records"] + rest.records == 40_000
    assert rest.complete


def test_following_outlives_the_death_of_its_spark_and_sigterm_ends_it_with_everything_committed(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """One process for both: it starts Spark twice."""
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(10))
    archive = tmp_path / "archive"
    arguments = ("--bootstrap", cluster.bootstrap, "-a", str(archive), "--topic", topic, "--engine", "spark")
    with started(*arguments, "--follow", "--every", "1s", "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        (jvm,) = (child for child in family_of(process) if child.name() == "java")
        jvm.kill()
        produce(cluster, topic, numbered(5))
        failed = json.loads(process.stdout.readline())
        while failed["error"] is None:
            failed = json.loads(process.stdout.readline())
        again = json.loads(process.stdout.readline())
        family = family_of(process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=240)
    assert (first["report"]["records"], first["lag_offsets"]) == (10, 0)
    assert failed["error"]["retryable"], failed
    assert (again["error"], again["report"]["records"]) == (None, 5)
    assert again["recovery_point_ms"] > first["recovery_point_ms"]
    assert process.returncode == 0, err
    assert sum(open_archive(str(archive)).catalog.rows()["records"].to_pylist()) == 15
    assert psutil.wait_procs(family, timeout=60)[1] == []


@pytest.fixture
def mute_broker() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def told(process: subprocess.Popen[str], word: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return
    raise AssertionError(f"never told: {word}")


def test_a_second_signal_ends_it_at_once(mute_broker: str, tmp_path: Path) -> None:
    with started("--bootstrap", mute_broker, "-a", str(tmp_path / "archive"), "--patience", "10m") as process:
        told(process, "waiting for any broker")
        process.send_signal(signal.SIGTERM)
        told(process, "stopping")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM


def test_a_stop_does_not_wait_for_a_broker_that_is_away(tmp_path: Path) -> None:
    nobody = "127.0.0.1:1"
    with started("--bootstrap", nobody, "-a", str(tmp_path / "archive"), "--patience", "10m", "--json") as process:
        told(process, "waiting for any broker")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    report = json.loads(out)
    assert [notice["kind"] for notice in report["notices"]] == ["stopped"]
    assert (report["recovery_point_ms"], report["waiting"], report["verdict"]) == (None, None, "incomplete")
