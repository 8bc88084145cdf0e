"""Replicates within one cluster, under other names, without Spark: sources and mirrors have their own topics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backup.engine import config_of
from maxbrod.backup.run import Backup
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.replicate.egress import beat
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.sandbox.topics import offsets
from support.restore_oracle import assert_restored, log_of
from support.sparkless import without_spark

if TYPE_CHECKING:
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
