"""Drills in processes of their own, on real Spark: ended by signals in the middle, and in a cluster of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from maxbrod.archive.archive import read_proofs
from maxbrod.cli.main import run
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.storage.stores import open_storage
from support.backups import back_up, config_of
from support.drills import remembered, scratch_topics
from support.restores import Command
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

PARTITIONS = 4


@pytest.fixture
def archive(cluster: Cluster, topic: str, tmp_path: Path) -> Path:
    create_topic(cluster, topic, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(cluster, topic, numbered(100), partition=partition)
    assert back_up(config_of(cluster, tmp_path / "archive", topic)).complete
    return tmp_path / "archive"


@contextmanager
def started(cluster: Cluster, archive: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = ["-a", str(archive), "--bootstrap", cluster.bootstrap, "--report-dir", str(archive.parent), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "maxbrod", "drill", *arguments],
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


def has_topics(archive: Path) -> bool:
    """It has created them, and not a record is in them yet: nearly all of the drill is still to come."""
    return any((archive / "restores").glob("*/topics.json.zst"))


def test_a_drill_ended_by_a_signal_in_the_middle_leaves_no_topics(
    cluster: Cluster, archive: Path, tmp_path: Path
) -> None:
    with started(cluster, archive) as process:
        wait_for("scratch topics", lambda: has_topics(archive), timeout_s=240)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=240)
    assert process.returncode == 3, said
    assert "removed first" in said
    report = json.loads(out)["report"]
    assert report["verdict"] == "stopped"
    assert (scratch_topics(cluster), remembered(archive)) == ([], [])
    assert len(list(tmp_path.glob("drill-*.html"))) == 1
    assert psutil.wait_procs(family, timeout=60)[1] == []


def test_a_mistyped_topic_is_no_failed_drill(
    cluster: Cluster, archive: Path, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-a", str(archive), "--bootstrap", cluster.bootstrap, "--report-dir", str(tmp_path / "reports")]
    assert run(["drill", *where, "--topic", topic[:-1]]) == 2
    assert f"did you mean {topic}" in capsys.readouterr().out
    assert read_proofs(open_storage(str(archive))) == []


def test_a_drill_killed_in_the_middle_is_cleaned_up_by_the_next(
    cluster: Cluster, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(cluster, archive) as process:
        wait_for("scratch topics", lambda: has_topics(archive), timeout_s=240)
        process.kill()
        process.communicate(timeout=60)
    left = scratch_topics(cluster)
    assert left
    with without_spark():
        command = Command(cluster, archive, capsys)
        report = command.json("drill", "--report-dir", str(tmp_path))["report"]
    assert (report["verdict"], report["leftovers"]) == ("proven", left)
    assert report["records"] == PARTITIONS * 100
    assert (scratch_topics(cluster), remembered(archive)) == ([], [])


@pytest.mark.usefixtures("spark")
def test_without_a_cluster_a_drill_brings_its_own(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    assert run(["drill", "-a", str(archive), "--report-dir", str(tmp_path), "--sample", "50%", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert (report["verdict"], report["cluster"], len(report["covered"])) == ("proven", "sandbox", 2)
    assert remembered(archive) == []
    assert list(scratch.iterdir()) == []
