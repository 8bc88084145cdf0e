"""Signals stop a restore during its job, and it resumes exactly there. Each in a process of its own, as for users."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.restores import Command, read_all
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

BATCHES = 60


@pytest.fixture
def archive(cluster: Cluster, topic: str, tmp_path: Path) -> Path:
    """The archive of a topic with many small batches."""
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(BATCHES * 4), batch_size=1, max_in_flight_requests_per_connection=1)
    assert back_up(config_of(cluster, tmp_path / "archive", topic)).complete
    return tmp_path / "archive"


@contextmanager
def restoring(cluster: Cluster, topic: str, archive: Path, engine: str) -> Iterator[subprocess.Popen[str]]:
    """The command, in a group of its own as a shell starts it, that has written something and has much to write yet."""
    place = ("--archive", str(archive), "--bootstrap", cluster.bootstrap, "--master", "local[1]", "--engine", engine)
    process = subprocess.Popen(
        [sys.executable, "-m", "maxbrod", "restore", *place, "--suffix", "-new", "--rate", "100", "--batches", "keep"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )

    def has_begun() -> bool:
        assert process.poll() is None, process.communicate()
        with cluster.admin() as admin:
            there = f"{topic}-new" in admin.list_topics()
        return there and offsets(cluster, f"{topic}-new")[1] > 0

    try:
        with process:
            wait_for("the first records", has_begun, timeout_s=240)
            yield process
    finally:
        if process.poll() is None:
            process.kill()


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_ctrl_c_ends_a_restore_in_mid_job_and_it_goes_on_exactly_there(
    cluster: Cluster, topic: str, archive: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    with restoring(cluster, topic, archive, engine) as process:
        family = psutil.Process(process.pid).children(recursive=True)
        # The terminal sends it to everyone of the group: neither the JVM nor the workers may die of it.
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 3, (out, err)
    assert "stopping" in err
    assert "run the same command again" in err
    assert psutil.wait_procs(family, timeout=60)[1] == []
    there = offsets(cluster, f"{topic}-new")[1]
    assert 0 < there < BATCHES * 4

    with without_spark():
        report = Command(cluster, archive, capsys).json("restore", "--suffix", "-new")
    assert (report["resumed"], report["complete"]) == (True, True)
    assert read_all(cluster, f"{topic}-new") == read_all(cluster, topic)


def test_a_second_signal_ends_a_restore_at_once(cluster: Cluster, topic: str, archive: Path) -> None:
    with restoring(cluster, topic, archive, "spark") as process:
        (jvm,) = (each for each in psutil.Process(process.pid).children() if each.name() == "java")
        jvm.suspend()  # so that it cannot end well
        try:
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert any("stopping" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == -signal.SIGTERM
        finally:
            jvm.resume()
    assert psutil.wait_procs([jvm], timeout=60)[1] == [], "Spark ends with its driver"
