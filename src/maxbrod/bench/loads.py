"""Writes the topics of the benchmarks into a sandbox fast: batches are encoded once and sent many times."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from maxbrod.batch.columns import binary_array
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.batch.patch import patch
from maxbrod.config import KafkaConfig
from maxbrod.errors import MaxbrodError
from maxbrod.kafka.fetch.offsets import LATEST, list_offsets
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import Codec, TopicPartition
from maxbrod.sandbox.events import FIRST_TIMESTAMP_MS, orders
from maxbrod.sandbox.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from maxbrod.sandbox.cluster import Cluster

BATCH_BYTES: Final = 16_384
"""The size of a batch before compression: the default of Java's producer."""
PARTITIONS: Final = 4
TOPIC_CONFIG: Final = {"retention.ms": "-1", "file.delete.delay.ms": "1000"}
"""A deleted topic frees its disk space before the next round."""
_BLOCK_RECORDS: Final = 125_000
_IN_FLIGHT: Final = 8
_TIMEOUT_S: Final = 60.0
_VERSION: Final = 9  # the last one that names topics by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A topic as it was written."""

    topic: str
    partitions: int
    records: int
    bytes: int
    """Their size on the wire."""


def letters(count: int, *, size: int = 1024) -> pa.RecordBatch:
    """Records of random capital letters without a key, as Kafka's own ProducerPerformance sends."""
    rng = np.random.default_rng(4)
    data = rng.integers(65, 91, count * size, np.uint8)
    return pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(np.arange(count, dtype=np.int64)),
            "timestamp_ms": pa.array(FIRST_TIMESTAMP_MS + np.arange(count, dtype=np.int64)),
            "key": pa.nulls(count, pa.binary()),
            "value": binary_array(np.arange(count + 1, dtype=np.int32) * size, data, None),
        }
    )


def write_load(
    cluster: Cluster,
    topic: str,
    records: int,
    *,
    partitions: int = PARTITIONS,
    batch_bytes: int = BATCH_BYTES,
    json: bool,
) -> Load:
    """JSON in lz4 batches, or letters uncompressed; every partition gets the same number of records."""
    create_topic(cluster, topic, partitions=partitions, config=TOPIC_CONFIG)
    each = records // partitions
    block = min(_BLOCK_RECORDS, each)
    # Random bytes in headers would dominate the cost of compression.
    columns = orders(block).drop_columns(["headers"]) if json else letters(block)
    data = encode(columns, codec=Codec.LZ4 if json else Codec.NONE, batch_bytes_max=batch_bytes)
    # A broker assigns offsets itself, and accepts only batches with base offset 0.
    headers = patch(data, walk(data, check_crc=False), base_offset=0)
    batches = list(_batches(data, headers.position.tolist(), headers.size.tolist()))
    blocks = max(1, each // block)
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        _produce(client, topic, partitions, batches * blocks)
    return Load(
        topic=topic,
        partitions=partitions,
        records=blocks * block * partitions,
        bytes=len(data) * blocks * partitions,
    )


def _batches(data: NDArray[np.uint8], positions: list[int], sizes: list[int]) -> Iterator[bytes]:
    for position, size in zip(positions, sizes, strict=True):
        yield data[position : position + size].tobytes()


def _produce(client: KafkaClient, topic: str, partitions: int, batches: list[bytes]) -> None:
    """Send every batch to every partition, with several requests in flight."""
    deadline = Deadline.after(_TIMEOUT_S)
    places = [TopicPartition(topic=topic, partition=number) for number in range(partitions)]
    # Retries until it is answered: a new leader may not know yet that it leads.
    list_offsets(client, dict.fromkeys(places, LATEST), deadline=deadline)
    leader = client.leader(places[0], deadline=deadline)
    connection = client.connection(leader.node_id, deadline=deadline)
    waiting: deque[int] = deque()
    for batch in batches:
        waiting.append(connection.send(_request(topic, partitions, batch), Deadline.after(_TIMEOUT_S)))
        if len(waiting) >= _IN_FLIGHT:
            _check(connection.receive(waiting.popleft(), Deadline.after(_TIMEOUT_S)), topic)
    for ticket in waiting:
        _check(connection.receive(ticket, Deadline.after(_TIMEOUT_S)), topic)


def _request(topic: str, partitions: int, batch: bytes) -> ProduceRequest:
    topic_class = ProduceRequest.TopicProduceData
    each = [topic_class.PartitionProduceData(index=partition, records=batch) for partition in range(partitions)]
    return ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=int(_TIMEOUT_S * 1000),
        topic_data=[topic_class(name=topic, partition_data=each)],
        version=_VERSION,
    )


def _check(frame: NDArray[np.uint8], topic: str) -> None:
    # After the correlation id and no tagged fields, as of every flexible answer.
    answer = ProduceResponse.decode(frame[5:].tobytes(), version=_VERSION)
    for found in answer.responses[0].partition_responses:
        if found.error_code:
            raise MaxbrodError(
                f"the broker refused a batch with error {found.error_code}: {found.error_message}",
                operation="produce",
                object_name=f"{topic}-{found.index}",
            )
