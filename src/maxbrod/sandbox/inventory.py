"""Counts what a topic really holds, with our own decoder: from the sandbox's brokers' disks, or from any other log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.decode import decode
from maxbrod.batch.headers import BatchHeaders, walk
from maxbrod.batch.transactions import committed_records, from_markers
from maxbrod.model import Codec
from maxbrod.sandbox.topics import replicas

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.sandbox.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInventory:
    """All partitions of a topic together. `records` are those that an application sees."""

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
    """What the leader of each partition has on its disk."""
    return [b"".join(log.read_bytes() for log in _logs(cluster, topic, number)) for number in range(partitions)]


def visible_records(log: bytes, name: str) -> pa.RecordBatch:
    """What an application sees of one partition's log: offset, time, key, value and headers of each record."""
    headers = walk(log, object_name=name)
    records = decode(log, headers, columns=["offset", "timestamp_ms", "key", "value", "headers"])
    visible = committed_records(headers, from_markers(log, headers).aborted)
    return records.take(np.flatnonzero(visible))


def take_inventory(topic: str, logs: Sequence[bytes]) -> TopicInventory:
    """Of one log for each partition."""
    parts = [_partition(log, f"{topic}-{partition}") for partition, log in enumerate(logs)]
    partitions = len(logs)
    times = [time for part in parts for time in part.times]
    return TopicInventory(
        topic=topic,
        partitions=partitions,
        records=sum(part.records for part in parts),
        without_key=sum(part.without_key for part in parts),
        tombstones=sum(part.tombstones for part in parts),
        with_headers=sum(part.with_headers for part in parts),
        aborted=sum(part.aborted for part in parts),
        markers=sum(part.markers for part in parts),
        bytes=sum(part.bytes for part in parts),
        codecs=tuple(sorted({codec for part in parts for codec in part.codecs})),
        first_timestamp_ms=min(times, default=None),
        last_timestamp_ms=max(times, default=None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    records: int
    without_key: int
    tombstones: int
    with_headers: int
    aborted: int
    markers: int
    bytes: int
    codecs: frozenset[str]
    times: tuple[int, ...]


def _logs(cluster: Cluster, topic: str, partition: int) -> list[Path]:
    leader = replicas(cluster, topic, partition).leader
    folder = cluster.log_dir(leader or cluster.broker_ids[0]) / f"{topic}-{partition}"
    return sorted(folder.glob("*.log"))


def _partition(data: bytes, name: str) -> _Part:
    headers = walk(data, object_name=name)
    seen = committed_records(headers, from_markers(data, headers).aborted)
    records = decode(data, headers, columns=["timestamp_ms", "key", "value", "headers", "control"])
    return _count(records.filter(seen), headers, records.column("control").to_numpy(zero_copy_only=False), len(data))


def _count(seen: pa.RecordBatch, headers: BatchHeaders, control: NDArray[np.bool_], size: int) -> _Part:
    times = seen.column("timestamp_ms").to_numpy()
    ends = seen.column("headers").offsets.to_numpy()
    markers = int(np.count_nonzero(control))
    return _Part(
        records=seen.num_rows,
        without_key=seen.column("key").null_count,
        tombstones=seen.column("value").null_count,
        with_headers=int(np.count_nonzero(np.diff(ends))),
        aborted=len(control) - markers - seen.num_rows,
        markers=markers,
        bytes=size,
        codecs=frozenset(Codec(code).name.lower() for code in np.unique(headers.codec[~headers.control])),
        times=(int(times.min()), int(times.max())) if len(times) else (),
    )
