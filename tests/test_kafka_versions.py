"""Backup, restore, groups and log directories on old and new releases of Kafka: `make test-kafka-versions`.

Not part of the suite: each release is downloaded, and starts brokers and Spark. docs/kafka-versions.md has the results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.surgery import compact, delete_records
from maxbrod.sandbox.topics import create_topic, delete_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction, read_as_group

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

VERSIONS = os.environ.get("MAXBROD_KAFKA_VERSIONS", "4.3.1 4.0.2 3.9.2 3.3.1").split()
GROUP = "readers"


def maxbrod(*arguments: str, expect: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "maxbrod", *arguments, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == expect, ran.stdout + ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def fill(cluster: Cluster) -> None:
    """Topics with every kind of hole: of transactions, of compaction, and of deleted records at their start."""
    create_topic(cluster, "orders")
    produce(cluster, "orders", numbered(500))
    produce_transaction(cluster, "orders", numbered(50), transactional_id="t", commit=True)
    produce_transaction(cluster, "orders", numbered(50), transactional_id="t", commit=False)
    produce(cluster, "orders", numbered(100, first=500))
    delete_records(cluster, "orders", before_offset=40)
    create_topic(cluster, "customers", config={"cleanup.policy": "compact"})
    produce(cluster, "customers", numbered(300, keys=10))
    compact(cluster, "customers")
    read_as_group(cluster, GROUP, {"orders": 200})


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_and_groups_come_back_at_their_own_offsets_and_disks_are_read(version: str, tmp_path: Path) -> None:
    archive, of_disks = str(tmp_path / "archive"), str(tmp_path / "of-disks")
    with Cluster.start(tmp_path / "box", kafka_version=version) as cluster:
        fill(cluster)
        archived = maxbrod("backup", "--bootstrap", cluster.bootstrap, "--archive", archive)
        print(version, json.dumps(archived["notices"]))
        ends = {topic: offsets(cluster, topic) for topic in ("orders", "customers")}
        for topic in ends:
            delete_topic(cluster, topic)
        where = ("--archive", archive, "--bootstrap", cluster.bootstrap)
        restored = maxbrod("restore", *where, "--groups", GROUP, "--offsets", "exact", "--yes")
        print(version, json.dumps(restored["warnings"]))
        assert maxbrod("compare", *where)["equal"] is True
        assert {topic: offsets(cluster, topic) for topic in ends} == ends
        rest = read_as_group(cluster, GROUP, {"orders": None})["orders"]
        assert rest[0] == 240
        cluster.stop(1)
        maxbrod("backup", "--from-logdir", str(cluster.log_dir(1)), "--archive", of_disks)
        cluster.restart(1)
        assert maxbrod("compare", "--archive", of_disks, "--bootstrap", cluster.bootstrap)["equal"] is True
