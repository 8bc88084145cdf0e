"""One request to one broker on a plain socket: raw record bytes in and out, with no client library in between."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from kafka.protocol.consumer import FetchRequest, FetchResponse, IsolationLevel
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from maxbrod.sandbox import topics

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster


def ask(cluster: Cluster, request: Any, response_class: Any) -> Any:
    host, _, port = cluster.bootstrap.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        return topics.ask(connection, request, response_class)


def produce(cluster: Cluster, topic: str, batch: bytes, *, partition: int = 0) -> tuple[int, str | None]:
    """Send one batch as it is; returns the broker's error code and message."""
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=batch)],
            )
        ],
        version=9,
    )
    answer = ask(cluster, request, ProduceResponse).responses[0].partition_responses[0]
    return answer.error_code, answer.error_message


def fetch(
    cluster: Cluster, topic: str, offset: int, *, partition: int = 0, max_bytes: int = 1 << 26
) -> tuple[bytes, list[tuple[int, int]]]:
    """Raw bytes from an offset on, cut wherever the broker cut them, and the aborted transactions in them."""
    topic_class = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=1000,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=IsolationLevel.READ_COMMITTED,
        session_id=0,
        session_epoch=-1,
        topics=[
            topic_class(
                topic=topic,
                partitions=[
                    topic_class.FetchPartition(
                        partition=partition, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=max_bytes
                    )
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id="",
        version=11,
    )
    answer = ask(cluster, request, FetchResponse).responses[0].partitions[0]
    assert answer.error_code == 0, answer
    aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or []]
    return bytes(answer.records or b""), aborted


FOREVER_MS = str((1 << 63) - 1)


# By default a broker refuses records from an hour ahead, deletes old ones, and rolls a segment where times jump.
ANY_TIME = {"message.timestamp.after.max.ms": FOREVER_MS, "retention.ms": "-1", "segment.ms": FOREVER_MS}
