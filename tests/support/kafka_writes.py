"""A write into Kafka as Spark goes about it, in this process: tasks, attempts, commit, with all that Spark pickles."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import types as spark

from maxbrod.config import KafkaConfig
from maxbrod.kafka.fetch.offsets import LATEST, list_offsets
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.sandbox.process import wait_for
from maxbrod.table.source import ArchiveSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.table.sink.kafka import KafkaCommitMessage, KafkaSink
    from support.java_oracle import JavaOracle, JavaRecord

COLUMNS: Final = spark.StructType(
    [
        spark.StructField("topic", spark.StringType()),
        spark.StructField("partition", spark.IntegerType()),
        spark.StructField("key", spark.BinaryType()),
        spark.StructField("value", spark.BinaryType()),
        spark.StructField("timestampMs", spark.LongType()),
    ]
)
KEEP: Final = {"retention.ms": "-1"}
_ARROW: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestampMs", pa.int64()),
    ]
)
QUERY: Final = "a-query"


def rows(topic: str, values: Iterable[str], *, partition: int | None = 0) -> pa.RecordBatch:
    """One record for each value."""
    found = [
        {"topic": topic, "partition": partition, "key": b"k", "value": each.encode(), "timestampMs": 1_700_000_000_000}
        for each in values
    ]
    return pa.RecordBatch.from_pylist(found, schema=_ARROW)


def failing(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A task whose input breaks after its first rows have been taken."""
    yield batch
    raise RuntimeError("the task is lost")


class Query:
    """One start of a stream: Spark makes a writer before the tasks of a batch, and another to commit it."""

    def __init__(self, cluster: Cluster, state: Path, **options: str) -> None:
        (state / "metadata").touch()  # as in every checkpoint of Spark's
        self._source = ArchiveSource(
            {"kafka.bootstrap.servers": cluster.bootstrap, "checkpointLocation": str(state), **options}
        )
        self.sink: KafkaSink

    def begin(self) -> None:
        """What Spark does before the tasks of a batch."""
        self.sink = pickle.loads(cloudpickle.dumps(self._writer()))._sink

    def task(self, batches: Iterable[pa.RecordBatch], batch_id: int, query_id: str = QUERY) -> KafkaCommitMessage:
        return _sent(self.sink.fill(iter(batches), batch_id, query_id))

    def commit(self, messages: Sequence[KafkaCommitMessage | None], batch_id: int) -> None:
        self._writer().commit(list(messages), batch_id)

    def abort(self, messages: Sequence[KafkaCommitMessage | None], batch_id: int) -> None:
        self._writer().abort(list(messages), batch_id)

    def batch(self, batch_id: int, *tasks: pa.RecordBatch, query_id: str = QUERY) -> None:
        """A batch as it should go."""
        self.begin()
        self.commit([self.task([each], batch_id, query_id) for each in tasks], batch_id)

    def _writer(self) -> Any:
        return self._source.streamWriter(COLUMNS, False)


def writer_of(cluster: Cluster, schema: spark.StructType = COLUMNS, **options: str) -> Any:
    """The writer of a DataFrame that is not a stream."""
    source = ArchiveSource({"kafka.bootstrap.servers": cluster.bootstrap, **options})
    return pickle.loads(cloudpickle.dumps(source.writer(schema, False)))


def _sent(message: KafkaCommitMessage) -> KafkaCommitMessage:
    found: KafkaCommitMessage = pickle.loads(cloudpickle.dumps(message))
    return found


def write(cluster: Cluster, *tasks: pa.RecordBatch, schema: spark.StructType = COLUMNS, **options: str) -> None:
    writer = writer_of(cluster, schema, **options)
    writer.commit([_sent(writer.write(iter([each]))) for each in tasks])


def ends(cluster: Cluster, topic: str, partition: int = 0) -> tuple[int, int]:
    """The last stable offset, and where the log ends."""
    where = TopicPartition(topic=topic, partition=partition)
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        stable, last = (
            list_offsets(client, {where: LATEST}, read_committed=committed)[where].offset for committed in (True, False)
        )
    return stable, last


def released(cluster: Cluster, topic: str, partition: int = 0) -> None:
    """Waits until no transaction holds a reader back: markers are written soon after a transaction has ended."""

    def free() -> bool:
        stable, last = ends(cluster, topic, partition)
        return stable == last

    wait_for("every transaction to be over", free, timeout_s=60)


def consumed(java: JavaOracle, cluster: Cluster, topic: str, partition: int = 0) -> list[JavaRecord]:
    """What a Java consumer of committed records sees, when nothing holds it back any more."""
    released(cluster, topic, partition)
    return java.consume(cluster.bootstrap, topic, partition, isolation_level="read_committed")


def values(java: JavaOracle, cluster: Cluster, topic: str, partition: int = 0) -> list[str]:
    return [(each.value or b"").decode() for each in consumed(java, cluster, topic, partition)]
