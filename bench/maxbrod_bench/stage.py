"""What the races of a benchmark share: a cluster, a warm Spark session, a folder, and backups into it."""

from __future__ import annotations

import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from maxbrod.backup.options import BackupOptions
from maxbrod.backup.run import Backup
from maxbrod.batch.columns import binary_array
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.batch.patch import patch
from maxbrod.config import Config, KafkaConfig
from maxbrod.errors import MaxbrodError
from maxbrod.kafka.fetch.offsets import LATEST, list_offsets
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import Codec, TopicPartition
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest, parse_rename
from maxbrod.restore.run import Restore
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.events import FIRST_TIMESTAMP_MS, orders
from maxbrod.sandbox.topics import create_topic
from maxbrod.work.session import Session, open_session
from maxbrod_bench.race import Figure, Lap, at_most, require, time_lap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack

    from numpy.typing import NDArray


WORKER_BYTES_WANTED: Final = 400e6

BATCH_BYTES: Final = 16_384
"""The size of a batch before compression: the default of Java's producer."""
PARTITIONS: Final = 4
TOPIC_CONFIG: Final = {"retention.ms": "-1", "file.delete.delay.ms": "1000"}
"""A deleted topic frees its disk space before the next round."""
_BLOCK_RECORDS: Final = 125_000
_IN_FLIGHT: Final = 8
_TIMEOUT_S: Final = 60.0
_VERSION: Final = 9  # the last one that names topics by name


def open_sandbox(undo: ExitStack, *, jvm_works: bool = False) -> tuple[Path, Cluster, Session]:
    """A temporary folder, a cluster in it, and a Spark session, until `undo` closes."""
    disk = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="maxbrod-bench-")))
    cluster = undo.enter_context(Cluster.start(disk / "cluster"))
    return disk, cluster, undo.enter_context(open_session(jvm_works=jvm_works))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    cluster: Cluster
    session: Session
    disk: Path
    scale: float
    rounds: int

    def time(self, contender: Callable[[], object]) -> Lap:
        """A lap without the processor time of the brokers, which work for every contender."""
        return time_lap(contender, uncounted=frozenset(self.cluster.pids))

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

    def run_restore(self, config: Config, load: Load, prefix: str, *, exact: bool = False) -> None:
        """Restore a topic under another name. MaxbrodError: not all of its records are there."""
        offsets = OffsetsMode.EXACT if exact else OffsetsMode.AUTO
        request = RestoreRequest(topics=(load.topic,), rename=parse_rename(prefix=prefix), offsets=offsets)
        with Restore(config, request, session=self.session) as work:
            report = work.run(work.plan())
        whole = report.complete and report.records == load.records
        require(whole, f"the restore has {report.records} of {load.records} records")

    def delete(self, topic: str) -> None:
        with self.cluster.admin() as admin:
            admin.delete_topics([topic])


def worker_memory(peak_bytes: int) -> Figure:
    return at_most("peak memory of a Python worker", peak_bytes, "bytes", WORKER_BYTES_WANTED)


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
