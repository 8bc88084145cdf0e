"""The stage of a benchmark's races: a cluster, a warm Spark session, a folder, topics with data, and backups."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.archive.renames import parse_rename
from maxbrod.backup.options import BackupOptions
from maxbrod.backup.run import Backup
from maxbrod.batch.columns import binary_array
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.config import Config, KafkaConfig
from maxbrod.kafka.fetch.offsets import log_ends
from maxbrod.kafka.produce.appends import Append, Batch, Feed, sequence_after, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import ProducerIdentity, new_producer_id
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import Codec, TopicPartition
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.restore.run import Restore
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.events import FIRST_TIMESTAMP_MS, orders
from maxbrod.sandbox.topics import create_topic
from maxbrod.work.session import Session, open_session
from maxbrod.work.work import Work
from maxbrod_bench.race import Figure, Lap, Laps, at_most, peak_bytes_below, race_laps, require, time_lap

A_RECORDS: Final = 1_000_000
"""Data A: records of 1 KB, uncompressed."""
B_RECORDS: Final = 4_000_000
"""Data B: JSON of 270 bytes in lz4 batches."""
BATCH_BYTES: Final = 16_384
"""The size of a batch before compression: the default of Java's producer."""
PARTITIONS: Final = 4
WORKER_BYTES_WANTED: Final = 400e6
TOPIC_CONFIG: Final = {"retention.ms": "-1", "file.delete.delay.ms": "1000"}
"""A deleted topic frees its disk space before the next round."""
_BLOCK_RECORDS: Final = 125_000
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A topic as it was written."""

    topic: str
    partitions: int
    records: int
    bytes: int
    """Their size on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    cluster: Cluster
    session: Session
    disk: Path
    scale: float = 1.0
    rounds: int = 1
    warm_up: bool = True
    batch_bytes: int = BATCH_BYTES
    worker_bytes: list[int] = field(default_factory=list)
    """Peaks of Python workers that may have ended since: Spark ends them after a minute without work."""
    numbers: Iterator[int] = field(default_factory=count)
    """For names that no lap before has used."""

    def race(self, contenders: Mapping[str, Callable[[], object]]) -> dict[str, Laps]:
        uncounted = frozenset(self.cluster.pids)
        return race_laps(contenders, rounds=self.rounds, warm_up=self.warm_up, uncounted=uncounted)

    def time(self, contender: Callable[[], object], *, into: str | None = None) -> Lap:
        """A lap without the processor time of the brokers, which work for every contender.

        `into` is a topic that the contender makes, and that is deleted after the lap.
        """
        lap = time_lap(contender, uncounted=frozenset(self.cluster.pids))
        if into is not None:
            delete_topic(self.cluster, into)
        return lap

    def write(
        self, topic: str, records: int, *, json: bool, partitions: int = PARTITIONS, batch_bytes: int | None = None
    ) -> Load:
        size = max(int(records * self.scale), partitions)
        batch_bytes = batch_bytes or self.batch_bytes
        return write_load(self.cluster, topic, size, partitions=partitions, batch_bytes=batch_bytes, json=json)

    def config(self, topic: str, archive: Path, **backup: Any) -> Config:  # noqa: ANN401 - fields of `BackupOptions`
        return Config(
            kafka=KafkaConfig(bootstrap=self.cluster.bootstrap),
            archive=str(archive),
            backup=BackupOptions(topics=(topic,), **backup),
        )

    def run_backup(self, config: Config, *, records: int | None = None) -> None:
        """MaxbrodError: the backup is not complete, or has not this number of records."""
        with Backup(config, session=self.session) as backup:
            report = backup.run()
        whole = report.complete and records in {None, report.records}
        require(whole, f"the backup is not complete: it has {report.records} of {records or 'all'} records")

    def time_restore(self, config: Config, load: Load, *, exact: bool = False) -> Lap:
        """Restore a topic under another name. MaxbrodError: not all of its records are there."""
        prefix = f"lap-{next(self.numbers)}-"
        offsets = OffsetsMode.EXACT if exact else OffsetsMode.AUTO
        request = RestoreRequest(topics=(load.topic,), rename=parse_rename(prefix=prefix), offsets=offsets)

        def restore() -> None:
            with Restore(Work(config, session=self.session), request) as work:
                report = work.run(work.plan())
            whole = report.complete and report.records == load.records
            require(whole, f"the restore has {report.records} of {load.records} records")

        return self.time(restore, into=prefix + load.topic)

    def worker_memory(self) -> Figure:
        peak = max(peak_bytes_below("pyspark.daemon"), *self.worker_bytes, 0)
        return at_most("peak memory of a Python worker", peak, "bytes", WORKER_BYTES_WANTED)


@contextmanager
def open_cluster() -> Iterator[tuple[Cluster, Path]]:
    """A new cluster, and a folder that goes with it, for the length of a `with`."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder, Cluster.start(f"{folder}/cluster") as cluster:
        yield cluster, Path(folder)


@contextmanager
def open_stage(
    *, scale: float = 1.0, rounds: int = 1, batch_bytes: int = BATCH_BYTES, jvm_works: bool = False
) -> Iterator[Stage]:
    """A new cluster and a new session, for the length of a `with`."""
    with open_cluster() as (cluster, disk), open_session(jvm_works=jvm_works) as session:
        yield Stage(cluster=cluster, session=session, disk=disk, scale=scale, rounds=rounds, batch_bytes=batch_bytes)


def delete_topic(cluster: Cluster, topic: str) -> None:
    """Without waiting until its files are gone."""
    with cluster.admin() as admin:
        admin.delete_topics([topic])


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
    headers, blocks = walk(data, check_crc=False), max(1, each // block)

    def batches(identity: ProducerIdentity) -> Iterator[Batch]:
        for number in range(blocks):
            # A copy, because batches of the last block may be on their way.
            yield from stamped(data.copy(), headers, identity, first_sequence=sequence_after(0, number * block))

    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        places = [TopicPartition(topic=topic, partition=number) for number in range(partitions)]
        append_all(client, {where: batches(new_producer_id(client)) for where in places})
    return Load(
        topic=topic,
        partitions=partitions,
        records=blocks * block * partitions,
        bytes=len(data) * blocks * partitions,
    )


def append_all(client: KafkaClient, appends: Mapping[TopicPartition, Iterable[Append]]) -> None:
    """Append to partitions where their logs end, and wait until everything is acknowledged."""
    ends, deadline = log_ends(client, appends), Deadline.after(_TIMEOUT_S)
    feeds = [
        Feed(
            where=where,
            topic_id=client.topic(where.topic, deadline=deadline).topic_id,
            first_offset=ends[where],
            appends=given,
        )
        for where, given in appends.items()
    ]
    deque(produce_all(client, feeds), maxlen=0)
