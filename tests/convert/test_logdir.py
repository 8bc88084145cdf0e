"""A cluster is killed under load, and its directories alone give everything back that it had acknowledged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPartition

from backup.oracle import read_archive
from convert import acknowledged
from convert.engine import convert
from maxbrod.api.archives import open_archive
from maxbrod.layouts.registry import layout_of
from maxbrod.model import TopicPartition, topic_id_text
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce_transaction
from maxbrod.sandbox.waiting import wait_for
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTITIONS = 3
ENOUGH = 1000
TAIL = {"uncommitted_tail": "true"}


@contextmanager
def load(cluster: Cluster, topic: str, out: Path) -> Iterator[None]:
    command = [sys.executable, acknowledged.__file__, cluster.bootstrap, topic, str(PARTITIONS)]
    with out.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def acknowledgements(out: Path) -> list[tuple[int, int, int]]:
    """Partition, offset and number of each record; a line that the end cut off does not count."""
    whole = out.read_text().rpartition("\n")[0]
    lines = (line.split() for line in whole.splitlines())
    return [(int(partition), int(offset), int(number)) for partition, offset, number in lines]


def commit(cluster: Cluster, group: str, topic: str, offset: int) -> None:
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=group, enable_auto_commit=False)
    try:
        consumer.commit({KafkaPartition(topic, 0): OffsetAndMetadata(offset, "", -1)})
    finally:
        consumer.close()


def kill_all(cluster: Cluster, out: Path) -> None:
    """One broker first: its disk lacks what the others acknowledge without it."""
    first, *others = cluster.broker_ids
    cluster.kill(first)
    wait_for_more(out, ENOUGH)
    for broker_id in others:
        cluster.kill(broker_id)
    for pid in cluster.pids:
        os.kill(pid, signal.SIGKILL)


def wait_for_more(out: Path, count: int) -> None:
    """Until every partition has acknowledged so many records more: each leader is one that lives."""
    wanted = {partition: found + count for partition, found in per_partition(out).items()}
    wait_for(
        "acknowledgements",
        lambda: all(found >= wanted[partition] for partition, found in per_partition(out).items()) or None,
        timeout_s=300,
    )


def per_partition(out: Path) -> dict[int, int]:
    counts = dict.fromkeys(range(PARTITIONS), 0)
    for partition, *_ in acknowledgements(out):
        counts[partition] += 1
    return counts


def test_every_acknowledged_record_is_on_the_disks_of_a_killed_cluster(tmp_path: Path) -> None:
    settings = {
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "offsets.topic.num.partitions": "4",
    }
    out = tmp_path / "acknowledged"
    with Cluster.start(tmp_path / "cluster", brokers=3, config=settings) as cluster:
        topic_id = topic_id_text(
            create_topic(
                cluster, "orders", partitions=PARTITIONS, replication_factor=3, config={"segment.bytes": "1048576"}
            )
        )
        create_topic(cluster, "ledger", replication_factor=3)
        produce_transaction(cluster, "ledger", numbered(20), transactional_id="t", commit=True)
        produce_transaction(cluster, "ledger", numbered(20), transactional_id="t", commit=False)
        # Markers follow the answer to the producer: two transactions of 20 records, each with its own.
        wait_for("markers", lambda: offsets(cluster, "ledger")[1] == 42 or None, timeout_s=120)
        with load(cluster, "orders", out):
            wait_for_more(out, ENOUGH)
            kill_all(cluster, out)
        promised = acknowledgements(out)
        disks = cluster.directory

        before = sorted((each, each.stat().st_mtime_ns) for each in disks.rglob("*"))
        report = convert(disks, tmp_path / "archive", "kafka", source_layout="logdir", source_extra=TAIL)
        assert sorted((each, each.stat().st_mtime_ns) for each in disks.rglob("*")) == before
        storage = open_storage(str(disks))
        noted = layout_of("logdir").survey(storage)
        whole = layout_of("logdir").survey(storage, TAIL)

    assert report.exit_code == 0, report.notices
    held = read_archive(str(tmp_path / "archive"))
    for partition, offset, number in promised:
        assert held.records[topic_id, partition][offset].value == str(number).encode()
    assert len(promised) >= 2 * ENOUGH * PARTITIONS
    # The watermark is noted every few seconds: never more is taken by it, and what is left out is told.
    for where, end in whole.positions.items():
        assert noted.positions[where] <= end
        left_out = noted.positions[where] < end
        assert left_out == any(f"{where}" in each.path and "left out" in each.message for each in noted.faults)
    archived = open_archive(str(tmp_path / "archive"))
    ledger = [each for each in whole.segments if each.where.topic == "ledger"]
    assert [len(each.aborted) for each in ledger] == [1]
    assert archived.catalog.runs()


def test_groups_are_on_the_disks_of_a_cluster_that_was_stopped(tmp_path: Path) -> None:
    settings = {"offsets.topic.num.partitions": "2"}
    with Cluster.start(tmp_path / "cluster", config=settings) as cluster:
        create_topic(cluster, "orders")
        produce_transaction(cluster, "orders", numbered(20), transactional_id="t", commit=True)
        commit(cluster, "readers", "orders", 7)
        for broker_id in cluster.broker_ids:
            cluster.stop(broker_id)
        opened = open_archive(str(cluster.directory))
        assert opened.survey is not None
        assert not [each for each in opened.survey.faults if each.fatal]
        (group,) = opened.survey.groups
        assert (group.group_id, dict(group.offsets)) == ("readers", {TopicPartition(topic="orders", partition=0): 7})
        report = convert(cluster.directory, tmp_path / "archive", "kafka")
        assert (report.source_layout, report.exit_code) == ("logdir", 0)
        assert {each.topic: each.equal for each in report.topics}["orders"]
