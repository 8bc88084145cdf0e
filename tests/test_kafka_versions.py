"""Backup, restore, groups and log directories on old and new releases of Kafka: `make test-kafka-versions`.

Not part of the suite: each release is downloaded, and starts brokers and Spark. docs/kafka-versions.md has the results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka import TopicPartition as LibraryPartition
from kafka.admin import NewTopic

from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.surgery import compact, delete_records
from maxbrod.sandbox.topics import create_topic, delete_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction, read_as_group
from support.restores import stand
from support.zookeeper import old_broker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

VERSIONS = os.environ.get("MAXBROD_KAFKA_VERSIONS", "4.3.1 4.0.2 3.9.2 3.3.1").split()
OLD_VERSIONS = os.environ.get("MAXBROD_OLD_KAFKA_VERSIONS", "3.0.2 2.8.2").split()
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


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_a_cluster_of_the_time_of_zookeeper_moves_to_a_new_one(version: str, tmp_path: Path) -> None:
    """Kafka 2.8 is the first that has ids of topics; up to 3.0 records are fetched by the name of a topic."""
    archive = str(tmp_path / "archive")
    with old_broker(tmp_path / "old", version) as bootstrap:
        with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
            admin.create_topics([NewTopic("orders", 2, 1)])
        with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
            for number in range(1_000):
                producer.send("orders", value=b"%d" % number, partition=number % 2)
        with closing(KafkaConsumer(bootstrap_servers=bootstrap, group_id=GROUP)) as consumer:
            consumer.commit({LibraryPartition("orders", 0): OffsetAndMetadata(200, "", -1)})
        archived = maxbrod("backup", "--bootstrap", bootstrap, "--archive", archive)
        print(version, json.dumps(archived["notices"]))
        assert maxbrod("backup", "--bootstrap", bootstrap, "--archive", archive)["records"] == 0
        assert maxbrod("compare", "--archive", archive, "--bootstrap", bootstrap)["equal"] is True
    with Cluster.start(tmp_path / "new") as cluster:
        where = ("--archive", archive, "--bootstrap", cluster.bootstrap)
        restored = maxbrod("restore", *where, "--groups", GROUP, "--offsets", "exact", "--yes")
        print(version, json.dumps(restored["warnings"]))
        assert maxbrod("compare", *where)["equal"] is True
        assert offsets(cluster, "orders") == (0, 500)
        assert stand(cluster, GROUP) == {("orders", 0): 200}


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
