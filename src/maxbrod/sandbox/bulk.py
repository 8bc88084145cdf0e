"""Writes records into a sandbox fast: whole batches of our own encoding, on a bare connection.

Unlike `traffic` it handles no single records, so hundreds of thousands take a second.
"""

from __future__ import annotations

import socket
import time
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
_PAUSE_S: Final = 0.1
_ELSEWHERE: Final = (3, 5, 6)  # unknown topic, no leader, another leader: a broker that has just come back
_VERSION: Final = 9  # the last one that names topics by name


def produce_records(
    cluster: Cluster, topic: str, records: pa.RecordBatch, *, partition: int = 0, codec: Codec = Codec.LZ4
) -> int:
    """Append all records to a partition in batches of up to a megabyte, each acknowledged; returns how many."""
    data = encode(records, codec=codec)
    # A broker assigns offsets itself, and accepts only batches with base offset 0.
    headers = patch(data, walk(data, check_crc=False), base_offset=0)
    deadline = time.monotonic() + _TIMEOUT_S
    spans = list(zip(headers.position.tolist(), headers.size.tolist(), strict=True))
    while spans:
        with _leader(cluster, topic, partition) as connection:
            while spans:
                start, size = spans[0]
                error = _produce(connection, topic, partition, data[start : start + size].tobytes())
                if error:
                    break
                spans.pop(0)
        if spans:
            _wait_for_another_leader(error, f"{topic}-{partition}", deadline)
    return int(records.num_rows)


def _leader(cluster: Cluster, topic: str, partition: int) -> socket.socket:
    leader = replicas(cluster, topic, partition).leader
    if leader is None:
        raise UnavailableError("the partition has no leader", object_name=f"{topic}-{partition}")
    return socket.create_connection((HOST, cluster.spec.broker(leader).ports[PLAINTEXT]), timeout=_TIMEOUT_S)


def _wait_for_another_leader(error: int, object_name: str, deadline: float) -> None:
    """A broker that is not the leader refuses before it writes anything, so the batch can be sent again."""
    if error not in _ELSEWHERE or time.monotonic() > deadline:
        raise MaxbrodError(
            f"the broker refused a batch with error {error}", operation="produce", object_name=object_name
        )
    time.sleep(_PAUSE_S)


def _produce(connection: socket.socket, topic: str, partition: int, batch: bytes) -> int:
    """Send one batch; returns the broker's error code."""
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
    return int(answer.error_code)
