"""Spark itself writes into a real cluster: every field of a record arrives, once, whatever tasks and drivers do."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

import maxbrod
from maxbrod.batch.encode import encode
from maxbrod.model import Codec
from maxbrod.sandbox.topics import create_topic
from support.java_oracle import JavaOracle, JavaRecord
from support.kafka_writes import KEEP, consumed, ends, values
from support.ledger import _columns, odd_records
from support.native_logs import NAME
from support.table_archives import write as write_archive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from maxbrod.sandbox.cluster import Cluster


@pytest.fixture
def session(spark: Any) -> Any:
    maxbrod.register(spark)
    return spark


def sorted_fields(found: list[JavaRecord]) -> list[tuple[Any, ...]]:
    return sorted((each[:4] for each in found), key=repr)


def failing_once() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """In every task the first attempt is lost, when rows of it are on their way. Workers cannot import this module."""

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - it runs in a worker

        context = TaskContext.get()
        for number, batch in enumerate(batches):
            if number and context is not None and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt is lost")
            yield batch

    return fails_once


def test_records_of_an_archive_come_into_kafka_with_every_field_and_once_though_tasks_fail(
    session: Any, cluster: Cluster, topic: str, java: JavaOracle, tmp_path: Path
) -> None:
    records = odd_records(400, seed=7)
    chunks = [encode(_columns(records), codec=Codec.LZ4, batch_bytes_max=4000).tobytes()]
    write_archive(tmp_path / "archive", chunks)
    create_topic(cluster, topic, partitions=NAME.partition + 2, config=KEEP)
    table = session.read.format("maxbrod").option("splitBytes", "16kB").load(str(tmp_path / "archive"))
    frame = table.selectExpr(f"'{topic}' as topic", "* except (topic)")
    with_failures = frame.mapInArrow(failing_once(), frame.schema)
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    try:
        with_failures.write.format("maxbrod").option("kafka.bootstrap.servers", cluster.bootstrap).option(
            "codec", "zstd"
        ).mode("append").save()
    finally:
        session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    found = consumed(java, cluster, topic, NAME.partition)
    expected = [
        (each.timestamp_ms, each.key, each.value, tuple((name.decode(), value) for name, value in each.headers))
        for each in records
    ]
    assert sorted_fields(found) == sorted(expected, key=repr)
    assert consumed(java, cluster, topic, NAME.partition + 1) == []


def test_keys_go_where_kafkas_own_producer_sends_them(
    session: Any, cluster: Cluster, topic: str, java: JavaOracle
) -> None:
    create_topic(cluster, topic, partitions=5, config=KEEP)
    other = f"{topic}-java"
    create_topic(cluster, other, partitions=5, config=KEEP)
    keys = [random.Random(3).randbytes(size % 9) for size in range(60)]
    rows = [(each, f"{number}") for number, each in enumerate(keys)]
    session.createDataFrame(rows, "key binary, value string").write.format("maxbrod").option(
        "kafka.bootstrap.servers", cluster.bootstrap
    ).option("topic", topic).mode("append").save()
    java.produce(cluster.bootstrap, other, None, [JavaRecord(1, key, b"") for key in keys])
    for partition in range(5):
        mine = sorted(each.key or b"" for each in consumed(java, cluster, topic, partition))
        assert mine == sorted(each.key or b"" for each in consumed(java, cluster, other, partition))


def test_a_stream_writes_each_batch_once_over_restarts(
    session: Any, cluster: Cluster, topic: str, java: JavaOracle, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    folder = tmp_path / "input"
    folder.mkdir()

    def run(*names: str) -> None:
        for name in names:
            (folder / f"{name}.txt").write_text(f"{name}-1\n{name}-2\n")
        source = session.readStream.schema("value string").option("maxFilesPerTrigger", "1").text(str(folder))
        query = (
            source.writeStream.format("maxbrod")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run("a", "b")
    # As if the driver had died when all was in Kafka, before Spark had noted it: the last batch comes again.
    for noted in sorted((tmp_path / "checkpoint" / "commits").glob("*1*")):
        noted.unlink()
    run("c")
    assert sorted(values(java, cluster, topic)) == ["a-1", "a-2", "b-1", "b-2", "c-1", "c-2"]
    assert ends(cluster, topic) == (9, 9)  # with a marker for each batch: what came again was not even written
