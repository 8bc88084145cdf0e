"""Writes records into a sandbox fast: whole batches of our own encoding, on a bare connection.

Unlike `traffic` it touches no record on its own, so hundreds of thousands take a second.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.batch.patch import patch
from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.model import Codec
from maxbrod.sandbox.spec import HOST, PLAINTEXT
from maxbrod.sandbox.topics import replicas
from maxbrod.sandbox.wire import ask

if TYPE_CHECKING:
    import pyarrow as pa

    from maxbrod.sandbox.cluster import Cluster

_TIMEOUT_S: Final = 60
_VERSION: Final = 9  # the last one that names topics by name


def produce_records(
    cluster: Cluster, topic: str, records: pa.RecordBatch, *, partition: int = 0, codec: Codec = Codec.LZ4
) -> int:
    """Append all records to a partition in batches of up to a megabyte, each acknowledged; returns how many."""
    leader = replicas(cluster, topic, partition).leader
    if leader is None:
        raise UnavailableError("the partition has no leader", object_name=f"{topic}-{partition}")
    data = encode(records, codec=codec)
    # A broker numbers what clients send, and takes a batch only if it says 0.
    headers = patch(data, walk(data, check_crc=False), base_offset=0)
    port = cluster.spec.broker(leader).ports[PLAINTEXT]
    with socket.create_connection((HOST, port), timeout=_TIMEOUT_S) as connection:
        for start, size in zip(headers.position.tolist(), headers.size.tolist(), strict=True):
            _produce(connection, topic, partition, data[start : start + size].tobytes())
    return int(records.num_rows)


def _produce(connection: socket.socket, topic: str, partition: int, batch: bytes) -> None:
    topic_class = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=_TIMEOUT_S * 1000,
        topic_data=[
            topic_class(name=topic, partition_data=[topic_class.PartitionProduceData(index=partition, records=batch)])
        ],
        version=_VERSION,
    )
    answer = ask(connection, request, ProduceResponse).responses[0].partition_responses[0]
    if answer.error_code:
        raise MaxbrodError(
            f"the broker refused a batch with error {answer.error_code}: {answer.error_message}",
            operation="produce",
            object_name=f"{topic}-{partition}",
        )
