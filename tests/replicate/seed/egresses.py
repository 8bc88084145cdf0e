"""Egresses into a tree without Spark, and the records of a source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.config import Config, KafkaConfig
from maxbrod.kafka.state.groups import CLASSIC, ListedGroup, read_offsets
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.parquet.format import parse_name
from maxbrod.replicate.seed.egress import TreeEgress
from maxbrod.replicate.seed.options import EgressTreeOptions
from maxbrod.storage.stores import open_storage
from replicate.seed.trees import REGION
from support.sparkless import without_spark

if TYPE_CHECKING:
    from maxbrod.backup.plan.roll_limits import RollSchedule
    from maxbrod.backup.report import BackupReport
    from maxbrod.kafka.state.cluster_state import CommittedOffset
    from maxbrod.sandbox.cluster import Cluster


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
