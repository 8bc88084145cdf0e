"""Runs restores in this process, without Spark: the session is the only thing that is left out."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer
from kafka import TopicPartition as LibraryPartition

from maxbrod.cli.main import run
from maxbrod.config import KafkaConfig
from maxbrod.kafka.groups import commit_offsets, list_groups
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.sandbox.jars import (
    CONSOLE_CONSUMER,
    QUICK_OPTIONS,
    QUIET_OPTIONS,
    archive_options,
    java_command,
    kafka_release,
)
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.spec import CLIENTS_DIR, SASL_PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from maxbrod.sandbox.cluster import Cluster


class Command:
    """`maxbrod` with one archive and one cluster."""

    def __init__(
        self, cluster: Cluster, archive: object, capsys: pytest.CaptureFixture[str], *, user: str | None = None
    ) -> None:
        """`user`: logs in by SASL; None: a user with all rights."""
        self.place = ["--bootstrap", cluster.bootstrap, "--archive", str(archive)]
        if user is not None:
            properties = cluster.directory / CLIENTS_DIR / f"sasl_plaintext-{user}.properties"
            self.place[1] = cluster.bootstrap_for(SASL_PLAINTEXT)
            self.place += ["--command-config", str(properties)]
        self._capsys = capsys
        self.said = ""
        """On standard error."""

    def __call__(self, *words: str, exits: int = 0) -> str:
        code = run([*words, *self.place])
        told = self._capsys.readouterr()
        self.said = told.err
        assert code == exits, told
        return told.out

    def json(self, *words: str, exits: int = 0) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self(*words, "--json", exits=exits))
        return document


def read_all(cluster: Cluster, topic: str, partition: int = 0, **config: object) -> list[tuple[int, bytes]]:
    """What a consumer sees: offsets and values. `config` is kafka-python's."""
    where = LibraryPartition(topic, partition)
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, enable_auto_commit=False, **config)
    try:
        consumer.assign([where])
        consumer.seek_to_beginning(where)
        end = consumer.end_offsets([where])[where]
        found: list[tuple[int, bytes]] = []
        while consumer.position(where) < end:
            found += [(each.offset, each.value) for each in consumer.poll(1000).get(where, [])]
        return found
    finally:
        consumer.close()


def stand(cluster: Cluster, group_id: str) -> dict[tuple[str, int], int]:
    """The offsets of a group, as another client reads them."""
    with cluster.admin() as admin:
        told = admin.list_group_offsets([group_id])[group_id]
    return {(where.topic, where.partition): each.offset for where, each in told.items()}


def put(cluster: Cluster, group_id: str, where: dict[tuple[str, int], int]) -> None:
    """Commit these offsets for a group."""
    wanted = [
        CommittedOffset(topic=name, topic_id=None, partition=number, offset=offset, leader_epoch=-1, metadata="")
        for (name, number), offset in where.items()
    ]
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        assert all(each.done for each in commit_offsets(client, group_id, wanted).values())


def configs_of(cluster: Cluster, topic: str) -> dict[str, str | None] | None:
    """What is set on the topic itself."""
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        state = capture(client, [topic]).topic(topic)
    return None if state is None or state.configs is None else dict(state.configs)


@contextmanager
def joined(cluster: Cluster, group_id: str, topic: str) -> Iterator[None]:
    """A consumer that is a member of its group during the `with`.

    The broker is asked: kafka-python may join before it knows the topic's partitions, and is then given none of them.
    """
    config = KafkaConfig(bootstrap=cluster.bootstrap)
    consumer = KafkaConsumer(topic, group_id=group_id, bootstrap_servers=cluster.bootstrap, enable_auto_commit=False)

    def is_member() -> bool:
        consumer.poll(200)
        found = list_groups(client, deadline=Deadline.after(30))[0].get(group_id)
        return found is not None and found.state == "Stable"

    try:
        with KafkaClient(config) as client:
            wait_for("a member", is_member, timeout_s=60)
        yield
    finally:
        consumer.close()


@contextmanager
def joined_by_the_newer_protocol(cluster: Cluster, group_id: str, topic: str) -> Iterator[None]:
    """Kafka's own console consumer, a member of its group during the `with`."""
    release = kafka_release()
    words = ("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--group", group_id)
    command = java_command(
        release.jars,
        CONSOLE_CONSUMER,
        *(*words, "--command-property", "group.protocol=consumer"),
        options=(*QUIET_OPTIONS, *QUICK_OPTIONS, *archive_options(release)),
    )

    def is_member() -> bool:
        found = list_groups(client, deadline=Deadline.after(30))[0].get(group_id)
        return found is not None and (found.type, found.state) == ("consumer", "Stable")

    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
            wait_for("a member", is_member, timeout_s=120)
        yield
    finally:
        process.kill()
        process.wait()
