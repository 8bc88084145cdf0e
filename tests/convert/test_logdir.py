"""A cluster is killed under load, and its directories alone give everything back that it had acknowledged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pytest
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPartition

from maxbrod.archive.archive import open_archive
from maxbrod.batch.headers import walk
from maxbrod.errors import EXIT_REFUSED
from maxbrod.kafka.admin import create_acls, set_quotas
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.state.cluster_state import Acl, Quota, QuotaEntity
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.layouts.logdir import reader as scan
from maxbrod.layouts.logdir.metadata_log import (
    AclAdded,
    BrokerRegistered,
    ConfigSet,
    PartitionAssigned,
    QuotaSet,
    TopicAdded,
    decode_record,
)
from maxbrod.layouts.logdir.reader import MIDDLE_UNREAD
from maxbrod.layouts.reader import decode_committed
from maxbrod.layouts.registry import layout_of
from maxbrod.model import TopicPartition, topic_id_text
from maxbrod.sandbox.jars import DUMP_LOG_SEGMENTS, run_tool
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic, offsets, set_topic_config
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction
from maxbrod.storage.stores import open_storage
from support.archive_oracle import read_archive
from support.backups import config_of
from support.clusters import start_cluster
from support.conversions import convert
from support.processes import environment, program
from support.restores import Command, read_all, stand
from support.sparkless import without_spark
from support.sparkless import without_spark as compare_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.layouts.foreign import Survey
    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.storage.interface import Storage

pytestmark = pytest.mark.full

PARTITIONS = 3
ENOUGH = 1000
RATE = {"producer_byte_rate": 1e6}
TAIL = {"uncommitted_tail": "true"}


def client_of(cluster: Cluster) -> KafkaClient:
    config = config_of(cluster, "/nowhere").kafka
    assert config is not None
    return KafkaClient(config)


@contextmanager
def load(cluster: Cluster, topic: str, out: Path) -> Iterator[None]:
    command = program("acknowledged", cluster.bootstrap, topic, PARTITIONS)
    with (
        out.open("wb") as file,
        subprocess.Popen(command, env=environment(), stdout=file, stderr=subprocess.DEVNULL) as process,
    ):
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


def rule(topic: str) -> Acl:
    return Acl(
        resource_type="TOPIC",
        resource_name=topic,
        pattern_type="LITERAL",
        principal="User:bob",
        host="*",
        operation="READ",
        permission="ALLOW",
    )


def grant(cluster: Cluster, topic: str, user: str) -> None:
    """A rule about a topic, and a quota."""
    with client_of(cluster) as client:
        assert all(each.done for each in create_acls(client, [rule(topic)]).values())
        quota = Quota(entities=(QuotaEntity(type="user", name=user),), values=RATE)
        assert all(each.done for each in set_quotas(client, [quota]).values())


def test_every_acknowledged_record_is_on_the_disks_of_a_killed_cluster(
    tmp_path: Path, fenced: Cluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "offsets.topic.num.partitions": "4",
    }
    out = tmp_path / "acknowledged"
    with start_cluster(tmp_path / "cluster", brokers=3, config=settings, authorizer=True) as cluster:
        topic_id = topic_id_text(
            create_topic(
                cluster, "orders", partitions=PARTITIONS, replication_factor=3, config={"segment.bytes": "1048576"}
            )
        )
        create_topic(cluster, "ledger", replication_factor=3, config={"max.message.bytes": "700000"})
        set_topic_config(cluster, "ledger", {"retention.ms": "987654321"})
        grant(cluster, "ledger", topic)
        produce_transaction(cluster, "ledger", numbered(20), transactional_id="t", commit=True)
        produce_transaction(cluster, "ledger", numbered(20), transactional_id="t", commit=False)
        # Markers follow the answer to the producer: two transactions of 20 records, each with its own.
        wait_for("markers", lambda: offsets(cluster, "ledger")[1] == 42 or None, timeout_s=120)
        commit(cluster, f"{topic}-readers", "ledger", 7)
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
        assert_known_by_the_ends(storage, whole)

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
    restore_ledger(fenced, tmp_path / "archive", topic, capsys)


def assert_known_by_the_ends(storage: Storage, whole: Survey) -> None:
    """The indexes of a real broker lead to the ends of its files, and those say what a scan of everything says."""
    with patch.object(scan, "END_BYTES", 4096), patch.object(scan, "MIDDLE_BYTES_MIN", 1):
        found = layout_of("logdir").survey(storage, {**TAIL, "check_crc": "false"})
    facts = [
        [(each.where, each.path, each.base_offset, each.end_offset, each.records, each.bytes) for each in of.segments]
        for of in (found, whole)
    ]
    assert facts[0] == facts[1]
    assert found.positions == whole.positions
    assert any(MIDDLE_UNREAD in each.details for each in found.segments)


def restore_ledger(target: Cluster, archive: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings, rules, quotas and groups of a cluster that is gone come back in another one."""
    name = f"ledger-{suffix}"
    with without_spark():
        command = Command(target, archive, capsys)
        command(
            *("restore", "--topic", "ledger", "--suffix", f"-{suffix}", "--groups", f"{suffix}-readers"),
            *("--with-acls", "--with-quotas", "--yes"),
        )
    # One broker cannot have two replicas in sync, which the plan has told.
    configs = {"max.message.bytes": "700000", "retention.ms": "987654321", "min.insync.replicas": "1"}

    def is_back(client: KafkaClient) -> bool:
        restored = capture(client, [name])
        rates = {each.entities[0].name: each.values for each in restored.quotas or ()}
        has_rule, rate = rule(name) in (restored.acls or ()), rates.get(suffix)
        return [each.configs for each in restored.topics] == [configs] and has_rule and rate == RATE

    with client_of(target) as client:
        # A broker hears of what was changed a moment after the answer.
        wait_for("settings, the rule and the quota", lambda: is_back(client) or None, timeout_s=60)
    assert stand(target, f"{suffix}-readers") == {(name, 0): 7}
    assert [value for _, value in read_all(target, name, isolation_level="read_committed")] == [
        record.value for record in numbered(20)
    ]


def assert_told_as_by_kafka(disks: Path) -> None:
    """Kafka's own tool reads every record of the controllers' log as we do."""
    (log,) = disks.rglob("__cluster_metadata-0/*.log")
    dumped = run_tool(DUMP_LOG_SEGMENTS, "--cluster-metadata-decoder", "--files", str(log))
    payloads = [json.loads(line.partition("payload: ")[2]) for line in dumped.splitlines() if "payload: " in line]
    data = log.read_bytes()
    (records,) = decode_committed(np.frombuffer(data, np.uint8), walk(data), (), columns=["value"])
    values = [decode_record(value) for value in records.column("value").to_pylist()]
    assert len(values) == len(payloads) > 10
    for payload, value in zip(payloads, values, strict=True):
        told = payload["data"]
        if isinstance(value, TopicAdded):
            assert (value.name, value.topic_id) == (told["name"], told["topicId"])
        elif isinstance(value, PartitionAssigned) and "isr" in told and "leaderEpoch" in told:
            assert (value.topic_id, value.partition) == (told["topicId"], told["partitionId"])
            assert value.replicas == tuple(told["replicas"])
        elif isinstance(value, ConfigSet):
            assert (value.resource_type, value.resource_name) == (told["resourceType"], told["resourceName"])
            assert (value.name, value.value) == (told["name"], told["value"])
        elif isinstance(value, AclAdded):
            assert (value.acl.principal, value.acl.operation) == (told["principal"], told["operation"])
        elif isinstance(value, QuotaSet):
            assert (value.key, value.value) == (told["key"], told["value"])
        elif isinstance(value, BrokerRegistered):
            (endpoint,) = told["endPoints"]
            assert (value.broker.host, value.broker.port) == (endpoint["host"], endpoint["port"])
            assert [topic_id_text(each) for each in value.log_dirs] == told["logDirs"]
    seen = {type(each) for each in values}
    assert {TopicAdded, PartitionAssigned, ConfigSet, AclAdded, QuotaSet, BrokerRegistered} <= seen


def test_groups_are_on_the_disks_of_a_cluster_that_was_stopped(tmp_path: Path) -> None:
    settings = {"offsets.topic.num.partitions": "2"}
    with start_cluster(tmp_path / "cluster", config=settings, authorizer=True) as cluster:
        create_topic(cluster, "orders", partitions=2, config={"retention.ms": "5000000"})
        grant(cluster, "orders", "bob")
        produce_transaction(cluster, "orders", numbered(20), transactional_id="t", commit=True)
        commit(cluster, "readers", "orders", 7)
        for broker_id in cluster.broker_ids:
            cluster.stop(broker_id)
        opened = open_archive(str(cluster.directory))
        assert opened.survey is not None
        assert not [each for each in opened.survey.faults if each.fatal]
        assert_told_as_by_kafka(cluster.directory)
        (group,) = opened.survey.groups
        assert (group.group_id, dict(group.offsets)) == ("readers", {TopicPartition(topic="orders", partition=0): 7})
        report = convert(cluster.directory, tmp_path / "archive", "kafka")
        assert (report.source_layout, report.exit_code) == ("logdir", 0)
        assert {each.topic: each.equal for each in report.topics}["orders"]


def test_a_log_directory_is_compared_with_a_cluster_and_never_restored_from(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(30))
    disk = tmp_path / "disk"
    shutil.copytree(cluster.log_dir(cluster.broker_ids[0]) / f"{topic}-0", disk / f"{topic}-0")
    before = sorted(disk.rglob("*"))
    command = Command(cluster, disk, capsys)
    with without_spark(), compare_here():
        command("compare", "--topic", topic)
        refused = ("restore", "--topic", topic, "--suffix", "-x", "--yes")
        command(*refused, exits=EXIT_REFUSED)
    assert "maxbrod backup --from-logdir" in command.said
    with client_of(cluster) as client:
        assert not capture(client, [f"{topic}-x"]).topics
    assert sorted(disk.rglob("*")) == before
