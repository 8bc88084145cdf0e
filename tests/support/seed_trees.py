"""Trees of segments; ingresses that end by themselves, and what a destination holds then; egresses without Spark."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from maxbrod.batch.decode import decode
from maxbrod.batch.transactions import committed_batches, from_fetch
from maxbrod.config import Config, KafkaConfig
from maxbrod.kafka.fetch.offsets import LATEST, list_offsets
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.groups import CLASSIC, ListedGroup, read_offsets
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.parquet.events import Checkpoint, decode_checkpoint
from maxbrod.layouts.parquet.format import parse_name
from maxbrod.model import TopicPartition
from maxbrod.replicate.options import EgressTreeOptions, IngressTreeOptions
from maxbrod.replicate.seed.control_topics import ControlTopic
from maxbrod.replicate.seed.egress import TreeEgress
from maxbrod.replicate.seed.run import TreeIngress
from maxbrod.sandbox.topics import create_topic
from maxbrod.storage.stores import open_storage
from support.parquet_trees import rows, write
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maxbrod.backup.plan.ranges import RollSchedule
    from maxbrod.backup.report import BackupReport
    from maxbrod.kafka.state.cluster_state import CommittedOffset
    from maxbrod.layouts.foreign import ForeignSegment
    from maxbrod.replicate.seed.partition import TreeReport
    from maxbrod.sandbox.cluster import Cluster

REGION = "us-east-1"
KEPT = ("timestamp_ms", "key", "value", "headers")


def until(ingress: TreeIngress, condition: Callable[[], Any]) -> None:
    """Let an ingress work until the condition holds."""
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit
        ingress.tick()
        ingress.rest()


def ingress_from_tree(config: Config) -> TreeReport:
    """Follow a tree until everything in it is at the destination."""
    with TreeIngress(config) as ingress:
        return ingress.run()


class Link:
    """A tree, a cluster, and the options of an ingress from one to the other."""

    def __init__(self, cluster: Cluster, topic: str, tree: Path | str, **options: Any) -> None:
        self.cluster = cluster
        self.topic = topic
        self.tree = str(tree)
        given = {
            "sources": (f"{REGION}/{topic}",),
            "checkpoint_topic": f"{topic}.checkpoints",
            "group": f"{topic}.link",
            "first_segment_delay": 0.0,
            "worker_init_delay": 0.0,
            "poll_every": 0.2,
            "once": True,
            **options,
        }
        self.config = Config(
            archive=self.tree,
            kafka=KafkaConfig(bootstrap=cluster.bootstrap),
            ingress_tree=IngressTreeOptions(**given),
            patience=60.0,
        )

    @property
    def destination(self) -> str:
        return f"{self.topic}.ingress"

    def created(self, partitions: int = 1) -> Link:
        create_topic(self.cluster, self.destination, partitions=partitions)
        return self

    def where(self, partition: int = 0) -> TopicPartition:
        return TopicPartition(topic=self.topic, partition=partition)

    def add(self, start: int, count: int, *, partition: int = 0, batch: pa.RecordBatch | None = None) -> ForeignSegment:
        """One more segment, published as our egress publishes it."""
        where = self.where(partition)
        records = rows(count, start=start) if batch is None else batch
        storage = open_storage(self.tree)
        return write(storage, [records], where=where, extra={"region": REGION})[0]

    def run(self) -> TreeReport:
        return ingress_from_tree(self.config)

    def arrived(self, partition: int = 0, *, topic: str | None = None) -> pa.Table:
        """The committed records of the destination, or of another topic."""
        where = TopicPartition(topic=topic or self.destination, partition=partition)
        with KafkaClient(KafkaConfig(bootstrap=self.cluster.bootstrap)) as client:
            end = list_offsets(client, {where: LATEST}, read_committed=True)[where].offset
            found = []
            for chunk in read_range(client, where, 0, end) if end else ():
                aborted = from_fetch(chunk.data, chunk.headers, chunk.aborted)
                headers = chunk.headers.take(committed_batches(chunk.headers, aborted))
                found.append(decode(chunk.data, headers, columns=list(KEPT)))
        return pa.Table.from_batches(found, schema=found[0].schema) if found else pa.table({name: [] for name in KEPT})

    def numbers(self, partition: int = 0) -> list[int]:
        """The source offsets of the records of `rows`, as their values tell them."""
        return [int(value[1:]) for value in self.arrived(partition).column("value").to_pylist()]

    def checkpoints(self) -> list[Checkpoint]:
        with KafkaClient(KafkaConfig(bootstrap=self.cluster.bootstrap)) as client:
            records = ControlTopic(client, self.config.ingress_tree.checkpoint_topic).new_records()
        for record in records:
            assert record.value is not None
            assert decode_checkpoint(record.value).key == record.key
        return [decode_checkpoint(record.value) for record in records if record.value is not None]


def egress_config(cluster: Cluster, tree: object, *topics: str, **options: Any) -> Config:
    given = {"topics": topics, "region": REGION, "group": f"{topics[0]}.egress", **options}
    return Config(
        archive=str(tree),
        kafka=KafkaConfig(bootstrap=cluster.bootstrap),
        egress_tree=EgressTreeOptions(**given),
        patience=60.0,
    )


def write_segments(config: Config) -> BackupReport:
    """Everything that the source has now, by a new process."""
    with TreeEgress(config) as egress:
        return interval(egress)


def interval(egress: TreeEgress, waiting: RollSchedule | None = None) -> BackupReport:
    with without_spark():
        return egress.run(waiting=waiting)


def ranges(tree: object, topic: str, partition: int = 0) -> list[tuple[int, int]]:
    """The offsets of the segments in a tree, both inclusive."""
    names = [parse_name(each.path) for each in open_storage(str(tree)).list(f"data/{REGION}/{topic}/{partition}")]
    return sorted((each.start, each.end) for each in names if each is not None)


def committed(config: Config) -> dict[int, CommittedOffset]:
    """The offsets of the group, by partition of the only topic."""
    assert config.kafka is not None
    listed = ListedGroup(group_id=config.egress_tree.group, type=CLASSIC, state="", protocol_type="")
    with KafkaClient(config.kafka) as client:
        found = read_offsets(client, [listed], {}, deadline=Deadline.after(60)).found
    return {each.partition: each for each in found.get(config.egress_tree.group, ())}
