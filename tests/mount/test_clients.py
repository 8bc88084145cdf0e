"""Clients that others have written read from a mount exactly what they read from the source."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError

from maxbrod.sandbox.surgery import compact
from maxbrod.sandbox.topics import create_topic, delete_topic, set_topic_config
from maxbrod.sandbox.traffic import produce_transaction
from support.backups import back_up, config_of
from support.client_readers import (
    GO_READERS,
    LEVELS,
    Reader,
    SeenRecord,
    java_reader,
    read_with_franz_go,
    read_with_kcat,
    read_with_librdkafka,
    read_with_sarama,
    without_headers,
)
from support.java_oracle import CODECS, JavaRecord
from support.mounts import mounted
from support.topics import COMPACTED, dated_messages, write_keys

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster
    from support.java_oracle import JavaOracle

TOPIC, HOLES = "mount-everything", "mount-holes"
TRANSACTIONS, LARGE = len(CODECS), len(CODECS) + 1
PARTITIONS = LARGE + 2
"""One for each codec, one with transactions, one with records of 1 MB, and one that is empty."""
CONFIG = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
Content = dict[tuple[str, str], list[SeenRecord]]
"""What Java's consumer read from the source, by topic and isolation level."""


def _records() -> list[JavaRecord]:
    found = [
        JavaRecord(1_700_000_000_000, b"key", b"value", (("a", b"1"), ("a", None), ("", b""))),
        JavaRecord(1_700_000_000_001, None, b"without a key"),
        JavaRecord(0, b"", b""),
        JavaRecord(1_600_000_000_000, b"tombstone", None),
        JavaRecord(4_102_444_800_000, b"later", b"\0\xff\n"),
    ]
    return [*found, *(JavaRecord(1_700_000_000_000 + turn, b"%d" % turn, b"v" * turn) for turn in range(10))]


@pytest.fixture(scope="module")
def stage(
    cluster: Cluster, java: JavaOracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Content]]:
    """An archive of what a log can hold, and what the source's records were."""
    url: Path = tmp_path_factory.mktemp("clients") / "archive"
    create_topic(cluster, TOPIC, partitions=PARTITIONS, config=CONFIG)
    for partition, codec in enumerate(CODECS):
        for first in range(0, 15, 5):
            java.produce(cluster.bootstrap, TOPIC, partition, _records()[first : first + 5], codec)
    for turn, commit in enumerate([True, False, True, False]):
        messages = dated_messages(3 + turn)
        produce_transaction(cluster, TOPIC, messages, transactional_id=TOPIC, partition=TRANSACTIONS, commit=commit)
    large = random.Random(7)
    for codec in ("none", "zstd"):
        records = [JavaRecord(1_700_000_000_000 + turn, None, large.randbytes(1_000_000)) for turn in range(2)]
        java.produce(cluster.bootstrap, TOPIC, LARGE, records, codec, batch_size="1000000")
    create_topic(cluster, HOLES, config=COMPACTED)
    write_keys(cluster, HOLES, 200, turn=1)
    compact(cluster, HOLES)
    # From here on the source must stay as it is: it is read after the backup.
    set_topic_config(cluster, HOLES, {"min.compaction.lag.ms": str(10**12), "segment.ms": str(10**9)})
    write_keys(cluster, HOLES, 30, turn=2)
    assert back_up(config_of(cluster, url, TOPIC, HOLES)).complete
    read = java_reader(java)
    content = {(topic, level): read(cluster.bootstrap, topic, level) for topic in (TOPIC, HOLES) for level in LEVELS}
    assert len(content[TOPIC, LEVELS[0]]) == len(content[TOPIC, LEVELS[1]]) + 4 + 6
    assert len(content[HOLES, LEVELS[0]]) < 100
    yield url, content
    delete_topic(cluster, TOPIC)
    delete_topic(cluster, HOLES)


def reader_of(client: str, java: JavaOracle) -> Reader:
    if client in {"franz-go", "sarama"} and not GO_READERS.exists():
        pytest.skip("the readers in Go are not built; scripts/install-test-tools builds them")
    if client == "kcat" and not (shutil.which("kcat") or shutil.which("kafkacat")):
        pytest.skip("kcat is not installed")
    readers: dict[str, Reader] = {
        "java": java_reader(java),
        "librdkafka": read_with_librdkafka,
        "kcat": read_with_kcat,
        "franz-go": read_with_franz_go,
    }
    return readers[client]


@pytest.mark.parametrize(
    ("client", "ids"),
    [
        ("java", True),
        ("librdkafka", False),
        ("librdkafka", True),
        ("kcat", False),
        ("franz-go", False),
        ("franz-go", True),
    ],
)
def test_a_client_reads_exactly_what_the_source_had(
    stage: tuple[Path, Content], java: JavaOracle, client: str, ids: bool
) -> None:
    archive, content = stage
    read = reader_of(client, java)
    with mounted(archive, topic_ids=ids) as found:
        for (topic, level), expected in content.items():
            seen = read(found.bootstrap, topic, level)
            assert seen == (without_headers(expected) if client == "kcat" else expected), (topic, level)


@pytest.mark.skipif(not GO_READERS.exists(), reason="scripts/install-test-tools builds the readers in Go")
def test_sarama_reads_exactly_what_the_source_had(stage: tuple[Path, Content]) -> None:
    archive, content = stage
    with mounted(archive) as found:
        for (topic, level), expected in content.items():
            assert read_with_sarama(found.bootstrap, topic, level, expected=len(expected)) == expected, (topic, level)


def test_a_user_interface_sees_a_cluster_that_is_online(stage: tuple[Path, Content], java: JavaOracle) -> None:
    """The calls of Java's admin client without which kafka-ui shows a cluster as offline, or a page of it as empty."""
    kafka = java.jvm.org.apache.kafka
    archive, _ = stage
    with mounted(archive) as found:
        admin = kafka.clients.admin.Admin.create(java.properties({"bootstrap.servers": found.bootstrap}))
        try:
            cluster = admin.describeCluster()
            node = cluster.nodes().get().iterator().next()
            assert cluster.controller().get().id() == node.id()
            assert set(admin.listTopics().names().get()) == {TOPIC, HOLES}
            described = admin.describeTopics([TOPIC, HOLES]).allTopicNames().get()
            assert len(described[TOPIC].partitions()) == PARTITIONS
            kinds = java.jvm.org.apache.kafka.common.config.ConfigResource.Type
            resource = kafka.common.config.ConfigResource
            wanted = [resource(kinds.TOPIC, HOLES), resource(kinds.BROKER, node.idString())]
            configs = admin.describeConfigs(wanted).all().get()
            assert configs[wanted[0]].get("cleanup.policy").value() == "compact"
            assert configs[wanted[1]].get("delete.topic.enable").value() == "false"
            place = kafka.common.TopicPartition(TOPIC, LARGE)
            spec = kafka.clients.admin.OffsetSpec
            for at, offset in ((spec.earliest(), 0), (spec.latest(), 4), (spec.maxTimestamp(), 1)):
                assert admin.listOffsets({place: at}).partitionResult(place).get().offset() == offset
            assert admin.listConsumerGroups().all().get().size() >= 0
            assert admin.describeLogDirs([node.id()]).allDescriptions().get().size() == 1
            with pytest.raises(Py4JJavaError, match="read-only mount"):
                admin.createTopics(
                    [
                        kafka.clients.admin.NewTopic(
                            "new", java.jvm.java.util.Optional.empty(), java.jvm.java.util.Optional.empty()
                        )
                    ]
                ).all().get()
            # Others are not offered, and an interface does without.
            with pytest.raises(Py4JJavaError, match="UnsupportedVersionException"):
                admin.describeMetadataQuorum().quorumInfo().get()
        finally:
            admin.close()
