"""MirrorMaker 2 mirrors a mounted archive into a cluster, as it would mirror a broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maxbrod.batch.decode import decode
from maxbrod.kafka.fetch.offsets import log_ends
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod_bench.mirror_maker import mirror_maker
from support.backups import back_up, config_of
from support.kafka_reads import log_bytes
from support.mounts import mounted

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.slow

PARTITIONS, RECORDS = 2, 500
FIELDS = ["offset", "timestamp_ms", "key", "value", "headers"]
ON_A_MOUNT = {
    # Nothing can be written to the mount.
    "mounted->target.offset-syncs.topic.location": "target",
    "emit.heartbeats.enabled": "false",
}


def test_mirror_maker_mirrors_every_record_of_a_mount(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(cluster, topic, numbered(RECORDS), partition=partition)
    assert back_up(config_of(cluster, tmp_path / "archive", topic)).complete
    mirrored = f"mounted.{topic}"
    places = [TopicPartition(topic=mirrored, partition=number) for number in range(PARTITIONS)]
    with (
        mounted(tmp_path / "archive") as found,
        mirror_maker(found.bootstrap, cluster, topic, "mounted", 1, tmp_path, ON_A_MOUNT) as process,
        KafkaClient(config_of(cluster, tmp_path / "archive", topic).cluster) as client,
    ):

        def arrived() -> bool:
            assert process.poll() is None
            known = client.metadata([mirrored]).topics.get(mirrored)
            ready = known is not None and len(known.partitions) == PARTITIONS
            return ready and sum(log_ends(client, places).values()) >= PARTITIONS * RECORDS

        wait_for("MirrorMaker to mirror all records", arrived, timeout_s=300)
    try:
        for partition in range(PARTITIONS):
            source, mirror = (
                decode(log_bytes(cluster, name, partition=partition), columns=FIELDS) for name in (topic, mirrored)
            )
            assert mirror.num_rows == RECORDS
            assert mirror.equals(source)
    finally:
        delete_topic(cluster, mirrored)
