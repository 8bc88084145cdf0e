"""What the tests of this folder share: a client for a sandbox, and what the broker has on its disk."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from maxbrod.config import KafkaConfig
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, list_offsets
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import Codec, TopicPartition
from maxbrod.sandbox.events import orders, produce_records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.kafka.fetch.request import Chunk
    from maxbrod.sandbox.cluster import Cluster

ROWS = 500


def client_of(cluster: Cluster, **options: Any) -> KafkaClient:
    return KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap), **options)


def partition_of(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic=topic, partition=partition)


def fill(cluster: Cluster, topic: str, count: int, *, codec: Codec = Codec.NONE, seed: int = 1) -> None:
    """So many records in batches of 500: about 130 KB each where nothing compresses them."""
    records = orders(count, seed=seed)
    for first in range(0, count, ROWS):
        produce_records(cluster, topic, records.slice(first, ROWS), codec=codec)


def log_bytes(cluster: Cluster, topic: str, *, broker: int | None = None, partition: int = 0) -> bytes:
    """All segments of a partition as they are on the broker's disk."""
    folder = cluster.log_dir(cluster.broker_ids[0] if broker is None else broker) / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def bounds(client: KafkaClient, where: TopicPartition) -> tuple[int, int]:
    """The log start offset and the last stable offset."""
    start = list_offsets(client, {where: EARLIEST})[where].offset
    return start, list_offsets(client, {where: LATEST}, read_committed=True)[where].offset


def joined(chunks: Iterable[Chunk]) -> bytes:
    return b"".join(chunk.data.tobytes() for chunk in chunks)


def read_all(client: KafkaClient, where: TopicPartition, **options: Any) -> bytes:
    chunks = list(read_range(client, where, *bounds(client, where), **options))
    assert_tiled(chunks)
    return joined(chunks)


def assert_tiled(chunks: list[Chunk]) -> None:
    for before, after in pairwise(chunks):
        assert before.end == after.start
    for chunk in chunks:
        base = chunk.headers["base_offset"]
        assert np.all((base >= chunk.start) & (base < chunk.end))
