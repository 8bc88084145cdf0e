"""Two instances take turns on a real cluster, through its coordination topic. Every run is a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.backup.follow import open_backup
from maxbrod.backup.plan.turns import Mailbox
from maxbrod.backup.turns import CoordinationTopic, TurnsBackup
from maxbrod.check.foreign import check_foreign
from maxbrod.config import KafkaConfig
from maxbrod.errors import EXIT_REFUSED, RefusedError, UsageError
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.layouts.avro.instances import TOPIC as COORDINATION
from maxbrod.layouts.avro.instances import Event, InstanceStage, read_instances
from maxbrod.layouts.registry import layout_of
from maxbrod.sandbox.surgery import compact
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import Message, produce
from maxbrod.storage.stores import open_storage
from support.backups import config_of
from support.restores import read_all
from support.sparkless import without_spark
from support.topics import COMPACTED, write_keys

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.backup.report import BackupReport
    from maxbrod.sandbox.cluster import Cluster


class Pair:
    """Two instances of a topic, named after it: others use the same coordination topic."""

    def __init__(self, cluster: Cluster, archive: Path, topic: str) -> None:
        self.archive, self.topic = archive, topic
        self._cluster = cluster

    def open(self, role: str, *, over: bool = False, **request: Any) -> TurnsBackup:
        """`over`: whether the time of an active instance is over."""
        length = "1ms" if over else "1h"
        options: dict[str, Any] = {"generation_every": length, "generation_name": self.topic, **request}
        config = config_of(self._cluster, self.archive, self.topic, generation_role=role, **options)
        opened = open_backup(config.model_copy(update={"layout": "avro"}))
        assert isinstance(opened, TurnsBackup)
        return opened

    def run(self, role: str, **request: Any) -> BackupReport:
        with without_spark(), self.open(role, **request) as work:
            return work.run()

    def stages(self) -> dict[str, tuple[InstanceStage, int]]:
        found = read_instances(open_storage(str(self.archive)))
        return {name.rpartition("-")[2]: (each.stage, each.generation) for name, each in found.items()}

    def files(self, instance: str) -> int:
        return len(list((self.archive / self.topic / f"{self.topic}-{instance}").rglob("*.avro")))

    def holds(self) -> dict[tuple[int, int], bytes | None]:
        """By partition and offset, the values that a reader of the archive gets."""
        archive, layout = open_archive(str(self.archive)), layout_of("avro")
        assert archive.survey is not None
        held = {}
        for segment in archive.survey.segments:
            for batch in layout.read(archive.storage, segment, columns=["offset", "value"]):
                values = zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
                held.update({(segment.where.partition, offset): value for offset, value in values})
        return held

    def log(self) -> dict[tuple[int, int], bytes | None]:
        return {
            (partition, offset): value
            for partition in range(3)
            for offset, value in read_all(self._cluster, self.topic, partition)
        }

    def mail(self) -> Mailbox:
        with KafkaClient(KafkaConfig(bootstrap=self._cluster.bootstrap)) as client:
            topic = CoordinationTopic(client, Mailbox(), patience_s=30)
            topic.look()
        return topic.mail


@pytest.fixture
def pair(cluster: Cluster, topic: str, tmp_path: Path) -> Pair:
    """Three partitions, of which one is quiet."""
    create_topic(cluster, topic, partitions=3, config=COMPACTED)
    write_keys(cluster, topic, 200, turn=1)
    write_keys(cluster, topic, 50, turn=1, partition=1)
    return Pair(cluster, tmp_path / "avro", topic)


def test_two_instances_pass_a_compacted_topic_to_each_other(pair: Pair, cluster: Cluster) -> None:
    assert pair.run("active").exit_code == 0
    assert pair.run("passive").records == 0
    assert pair.stages() == {"activate": (InstanceStage.ACTIVE, 1), "passivate": (InstanceStage.WAITING, 0)}
    before = pair.log()
    assert pair.holds() == before
    write_keys(cluster, pair.topic, 100, turn=2)
    compact(cluster, pair.topic)
    # The time of the active one is over. It goes on until the other one has caught up.
    cleaned = pair.log()
    pair.run("active", over=True)
    assert pair.holds() == before | cleaned
    pair.run("passive")
    assert pair.stages() == {"activate": (InstanceStage.ACTIVE, 1), "passivate": (InstanceStage.ACTIVE, 1)}
    # The newer one is read from now on: it lacks what compaction has removed. Brokers may compact again at any time.
    assert pair.log().items() <= pair.holds().items() <= cleaned.items()
    assert pair.holds() != before | cleaned
    pair.run("active")
    assert pair.stages()["activate"] == (InstanceStage.WAITING, 1)
    assert (pair.files("activate"), pair.files("passivate") > 0) == (0, True)
    # And back, after which nothing is left to be read in the coordination topic.
    write_keys(cluster, pair.topic, 10, turn=3, partition=1)
    written = pair.log()
    assert pair.run("passive", over=True).exit_code == 0
    for role in ("active", "passive"):
        assert pair.run(role).exit_code == 0
    assert pair.stages() == {"activate": (InstanceStage.ACTIVE, 2), "passivate": (InstanceStage.WAITING, 1)}
    assert pair.log().items() <= pair.holds().items() <= written.items()
    mail = pair.mail()
    assert not any(
        mail.to(f"{pair.topic}-{each}", pair.topic, event) for each in ("activate", "passivate") for event in Event
    )
    archive = open_archive(str(pair.archive))
    assert check_foreign(archive).exit_code == 0


def test_messages_stand_in_the_coordination_topic_as_the_original_writes_them(pair: Pair, cluster: Cluster) -> None:
    start = offsets(cluster, COORDINATION)[1] if _exists(cluster) else 0
    pair.run("active", over=True)
    sent = [value for offset, value in read_all(cluster, COORDINATION) if offset >= start]
    name = f"{pair.topic}-passivate-0".encode()
    zigzag_199 = b"\x8e\x03"
    head = bytes.fromhex("c30160ca86f8cd2aabcf") + b"\0" + bytes([2 * len(name)]) + name
    topic = pair.topic.encode()
    assert sent[0][:-6] == head + bytes([2 * len(topic)]) + topic + b"\0" + zigzag_199
    assert len(sent) == 3, "the quiet partition is announced, too"


def _exists(cluster: Cluster) -> bool:
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        return COORDINATION in client.metadata().topics


def test_a_process_that_was_replaced_writes_nothing_that_counts(pair: Pair, cluster: Cluster) -> None:
    with without_spark(), pair.open("active") as zombie:
        zombie.run()
        write_keys(cluster, pair.topic, 30, turn=2)
        assert pair.run("active").records == 30
        write_keys(cluster, pair.topic, 30, turn=3)
        with pytest.raises(RefusedError, match="another process works as the instance"):
            zombie.run()
    assert pair.run("active").exit_code == 0
    assert pair.holds() == pair.log()


@pytest.mark.parametrize("role", ["active", "passive"])
def test_a_process_that_was_replaced_stops_at_its_next_interval_though_it_has_nothing_to_write(
    role: str, pair: Pair
) -> None:
    """Neither new records nor a message: only its document says that it was replaced."""
    pair.run("active")
    with without_spark(), pair.open(role) as older:
        assert older.run().exit_code == 0
        assert older.run().exit_code == 0
        with pair.open(role) as newer:
            newer.run()
            with pytest.raises(RefusedError, match="another process works as the instance") as caught:
                older.run()
            assert caught.value.exit_code == EXIT_REFUSED
            assert newer.run().exit_code == 0


def test_topics_that_cannot_be_passed_on_are_refused(pair: Pair, cluster: Cluster, topic: str) -> None:
    other = f"{topic}-other"
    create_topic(cluster, other, config={"cleanup.policy": "delete"})
    with pytest.raises(RefusedError, match="not compacted"):
        pair.run("active", topics=(other,))
    with pytest.raises(UsageError, match="2 topics are chosen"):
        pair.run("active", topics=(topic, other))
    pair.run("active")
    produce(cluster, topic, [Message(key=b"k", value=b"v")])
    third = f"{topic}-third"
    create_topic(cluster, third, config=COMPACTED)
    with pytest.raises(RefusedError, match="backs up the topic"):
        pair.run("active", topics=(third,))
    assert pair.run("active").records == 1
