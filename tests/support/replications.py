"""Replicates within one cluster, under other names, without Spark: sources and mirrors have their own topics.

Either in this process, or in one of its own that can be stopped and killed.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as Place

from maxbrod.backup.run import Backup
from maxbrod.config import Config
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.replicate.egress import beat
from maxbrod.replicate.ingress.positions import put_mark, take_position
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.link import Link, LinkMark
from maxbrod.replicate.report import (
    IngressReport,
    PartitionStatus,
)
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import offsets
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import config_of
from support.processes import environment, program
from support.restore_oracle import assert_restored, log_of
from support.restores import Command
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.config import Config
    from maxbrod.replicate.report import IngressReport, PartitionStatus
    from maxbrod.sandbox.cluster import Cluster

SUFFIX = ".mirror"


def link_config(cluster: Cluster, archive: object, *topics: str, **options: Any) -> Config:
    """`options` are those of `replicate`; each topic is mirrored as `<topic>.mirror`."""
    config = config_of(cluster, archive, *topics)
    renamed = {"topics": topics, "rename": tuple(f"{each}={each}{SUFFIX}" for each in topics)}
    chosen = replace(config.replicate, **{"link": f"link-{topics[0]}", **renamed, **options})
    return config.model_copy(update={"replicate": chosen})


def carry(config: Config) -> IngressReport:
    """One interval of egress with its heartbeat, and one of a new ingress."""
    archive(config)
    return take_in(config)


def archive(config: Config) -> None:
    """One interval of egress, with its heartbeat."""
    with without_spark(), Backup(config) as backup:
        backup.run(demand_topics=False)
    assert config.kafka is not None
    with KafkaClient(config.kafka) as client:
        beat(config, client)


def take_in(config: Config) -> IngressReport:
    with Ingress(config) as ingress:
        return ingress.run()


def only(report: IngressReport, partition: int = 0) -> PartitionStatus:
    return next(each for each in report.partitions if each.partition == partition)


def assert_mirrored(cluster: Cluster, topic: str, partition: int = 0) -> None:
    """The mirror has the source's offsets and records, from the same start to the same end."""
    assert offsets(cluster, topic + SUFFIX, partition) == offsets(cluster, topic, partition)
    start = offsets(cluster, topic, partition)[0]
    wanted = {at: each for at, each in log_of(cluster, topic, partition).items() if at >= start}
    assert_restored(cluster, topic + SUFFIX, wanted, partition=partition)


def produce_small_batches(cluster: Cluster, topic: str, count: int, *, first: int = 0, **config: Any) -> None:
    produce(cluster, topic, numbered(count, first=first), batch_size=400, **config)


@contextmanager
def ingress_program(config: Config, *words: str, stop_at: int) -> Iterator[subprocess.Popen[str]]:
    document = config.model_dump(mode="json", include={"archive", "kafka", "replicate"})
    command = program("stopping_ingress", json.dumps(document), stop_at, *words)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@contextmanager
def egress_program(config: Config, flag: Path) -> Iterator[subprocess.Popen[str]]:
    """It stops itself before it commits records, once `flag` exists, and tells what became of that run."""
    document = config.model_dump(mode="json", include={"archive", "kafka", "backup", "replicate"})
    command = program("stopping_egress", json.dumps(document), flag)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            yield process
        finally:
            process.kill()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def told(process: subprocess.Popen[str]) -> dict[str, int]:
    assert process.stdout is not None
    states: dict[str, int] = json.loads(process.stdout.readline())
    return states


def wait_until_stopped(process: subprocess.Popen[str]) -> None:
    stat = Path(f"/proc/{process.pid}/stat")
    wait_for("a stopped process", lambda: stat.read_text().rpartition(") ")[2].startswith("T"), timeout_s=120)


class LinkCommand(Command):
    """`maxbrod replicate`, for one topic."""

    def __init__(self, cluster: Cluster, archive: Path, capsys: pytest.CaptureFixture[str], topic: str) -> None:
        super().__init__(cluster, archive, capsys)
        self.place += ["--topic", topic, "--link", f"link-{topic}", "--rename", f"{topic}={topic}{SUFFIX}"]


def committed(cluster: Cluster, topic: str, partition: int = 0) -> list[int]:
    """The numbers that a consumer of committed records sees."""
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, isolation_level="read_committed", enable_auto_commit=False
    )
    try:
        place = Place(topic, partition)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        found, end = list[int](), consumer.end_offsets([place])[place]
        while consumer.position(place) < end:
            for each in consumer.poll(timeout_ms=200).get(place, ()):
                found.append(int(each.value[6:]))
        return found
    finally:
        consumer.close()


def mark_of(config: Config, topic: str, mark: LinkMark | None = None) -> LinkMark:
    """The mark of the link, or another one in its place."""
    assert config.kafka is not None
    link, where = Link(name=f"link-{topic}"), TopicPartition(topic=topic + SUFFIX, partition=0)
    with KafkaClient(config.kafka) as client:
        position = take_position(client, link, (topic, where), joined=False, patience_s=60)
        assert position.mark is not None
        if mark is not None:
            put_mark(client, position, mark, patience_s=60)
    return position.mark
