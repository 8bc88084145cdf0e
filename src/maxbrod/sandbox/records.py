"""Records of a sandbox through our own codec: written as whole batches on a bare connection, counted from logs.

Unlike `traffic` it handles no single records, so hundreds of thousands take a second.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import BatchHeaders, walk
from maxbrod.batch.patch import patch
from maxbrod.batch.transactions import committed_records, from_markers
from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.model import Codec
from maxbrod.sandbox.probe import ask
from maxbrod.sandbox.spec import HOST, PLAINTEXT
from maxbrod.sandbox.topics import replicas

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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
    produce_batches(cluster, topic, encoded_batches(records, codec), partition=partition)
    return int(records.num_rows)


def encoded_batches(records: pa.RecordBatch, codec: Codec) -> list[bytes]:
    """Records in batches of up to a megabyte, with base offset 0: the broker assigns offsets itself."""
    data = encode(records, codec=codec)
    headers = patch(data, walk(data, check_crc=False), base_offset=0)
    spans = zip(headers.position.tolist(), headers.size.tolist(), strict=True)
    return [data[start : start + size].tobytes() for start, size in spans]


def produce_batches(cluster: Cluster, topic: str, batches: Sequence[bytes], *, partition: int = 0) -> list[int]:
    """Append batches to a partition, one after another; returns the base offset that the broker gave to each."""
    deadline = time.monotonic() + _TIMEOUT_S
    offsets: list[int] = []
    while len(offsets) < len(batches):
        with _leader(cluster, topic, partition) as connection:
            for batch in batches[len(offsets) :]:
                error, offset = _produce(connection, topic, partition, batch)
                if error:
                    break
                offsets.append(offset)
        if error:
            _wait_for_another_leader(error, f"{topic}-{partition}", deadline)
    return offsets


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


def _produce(connection: socket.socket, topic: str, partition: int, batch: bytes) -> tuple[int, int]:
    """Send one batch; returns the broker's error code and the offset of its first record."""
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
    return int(answer.error_code), int(answer.base_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInventory:
    """All partitions of a topic together. `records` are those that a read_committed consumer sees."""

    topic: str
    partitions: int
    records: int
    without_key: int
    tombstones: int
    with_headers: int
    aborted: int
    markers: int
    bytes: int
    codecs: tuple[str, ...]
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None


def broker_logs(cluster: Cluster, topic: str, *, partitions: int) -> list[bytes]:
    """The log of each partition as its leader has it on disk."""
    return [b"".join(log.read_bytes() for log in _logs(cluster, topic, number)) for number in range(partitions)]


def take_inventory(topic: str, logs: Sequence[bytes]) -> TopicInventory:
    """Count the records of a topic, from one log for each partition."""
    counts: Counter[str] = Counter()
    codecs: set[str] = set()
    times: list[int] = []
    for partition, log in enumerate(logs):
        headers = walk(log, object_name=f"{topic}-{partition}")
        counts.update(_count(log, headers, times))
        codecs.update(Codec(code).name.lower() for code in np.unique(headers.codec[~headers.control]))
    return TopicInventory(
        topic=topic,
        partitions=len(logs),
        **counts,
        codecs=tuple(sorted(codecs)),
        first_timestamp_ms=min(times, default=None),
        last_timestamp_ms=max(times, default=None),
    )


def _count(log: bytes, headers: BatchHeaders, times: list[int]) -> dict[str, int]:
    """The counts of one partition; adds its first and last timestamp to `times`."""
    records = decode(log, headers, columns=["timestamp_ms", "key", "value", "headers", "control"])
    visible = records.filter(committed_records(headers, from_markers(log, headers).aborted))
    if visible.num_rows:
        timestamps = visible.column("timestamp_ms").to_numpy()
        times += [int(timestamps.min()), int(timestamps.max())]
    markers = int(np.count_nonzero(records.column("control").to_numpy(zero_copy_only=False)))
    return {
        "records": visible.num_rows,
        "without_key": visible.column("key").null_count,
        "tombstones": visible.column("value").null_count,
        "with_headers": int(np.count_nonzero(np.diff(visible.column("headers").offsets.to_numpy()))),
        "aborted": records.num_rows - markers - visible.num_rows,
        "markers": markers,
        "bytes": len(log),
    }


def _logs(cluster: Cluster, topic: str, partition: int) -> list[Path]:
    leader = replicas(cluster, topic, partition).leader
    folder = cluster.log_dir(leader or cluster.broker_ids[0]) / f"{topic}-{partition}"
    return sorted(folder.glob("*.log"))
