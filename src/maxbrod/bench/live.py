"""What the table is measured against: a plain PySpark job that reads a live topic record by record in Python."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from maxbrod.bench.loads import Load
    from maxbrod.engine.session import Session

_SCHEMA: Final = "key binary, value binary, partition int, offset bigint, timestampMs bigint"
_FETCH_BYTES: Final = 8 << 20
_POLL_RECORDS: Final = 5000


def live_frame(session: Session, bootstrap: str, load: Load) -> Any:  # noqa: ANN401 - a DataFrame
    """A task for each partition, with kafka-python's own consumer in it. Its rows are taken without a second look."""
    numbers = session.sparkContext.parallelize(range(load.partitions), load.partitions)
    end = load.records // load.partitions
    rows = numbers.mapPartitions(partial(_read_partitions, bootstrap, load.topic, end))
    return session.createDataFrame(rows, _SCHEMA, verifySchema=False)


def _read_partitions(bootstrap: str, topic: str, end: int, numbers: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    from kafka import KafkaConsumer, TopicPartition  # noqa: PLC0415 - of the worker

    for number in numbers:
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_FETCH_BYTES,
            max_poll_records=_POLL_RECORDS,
        )
        place = TopicPartition(topic, number)
        consumer.assign([place])
        consumer.seek(place, 0)
        for record in consumer:
            yield record.key, record.value, record.partition, record.offset, record.timestamp
            if record.offset + 1 >= end:
                break
        consumer.close()
