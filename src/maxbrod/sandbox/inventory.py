"""Counts the records of a topic with our own decoder, from the disks of the sandbox's brokers or from any other log."""

from __future__ import annotations

from collections import Counter
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

    from maxbrod.sandbox.cluster import Cluster


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
