"""What the tests of producing share: stamped batches of known records, and what a partition holds afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.kafka.produce.appends import Append, Batch, Feed, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import Codec
from maxbrod.sandbox.events import orders
from support.kafka_reads import log_bytes, partition_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.sandbox.cluster import Cluster


def batches_of(
    records: pa.RecordBatch,
    identity: ProducerIdentity,
    *,
    rows: int = 100,
    codec: Codec = Codec.LZ4,
    first_sequence: int = 0,
) -> list[Batch]:
    """Batches of so many records each."""
    data = encode(records, codec=codec, starts=np.arange(0, records.num_rows, rows))
    return stamped(data, walk(data), identity, first_sequence=first_sequence)


def feed_of(
    client: KafkaClient, topic: str, appends: Iterable[Append], *, partition: int = 0, first_offset: int = 0
) -> Feed:
    topic_id = client.topic(topic, deadline=Deadline.after(30)).topic_id
    return Feed(where=partition_of(topic, partition), topic_id=topic_id, first_offset=first_offset, appends=appends)


def produce_orders(
    client: KafkaClient, topic: str, identity: ProducerIdentity, count: int, *, patience_s: float = 60
) -> pa.RecordBatch:
    """So many records in batches of 100, all of them acknowledged where they belong; returns the records."""
    records = orders(count)
    feed = feed_of(client, topic, batches_of(records, identity))
    done = list(produce_all(client, [feed], patience_s=patience_s))
    assert [each.base_offset for each in done] == list(range(0, count, 100))
    assert [each.source_offset for each in done] == list(range(0, count, 100))
    return records


def stored(cluster: Cluster, topic: str, *, partition: int = 0, broker: int | None = None) -> pa.RecordBatch:
    """What a consumer would see of the partition's log on a broker's disk."""
    log = np.frombuffer(log_bytes(cluster, topic, broker=broker, partition=partition), np.uint8)
    records = decode(log[: walk(log).end])
    return records.filter(pc.invert(records.column("control")))


def assert_stored(cluster: Cluster, topic: str, records: pa.RecordBatch, **where: int) -> None:
    """The partition holds exactly these records, each once, in order, at these offsets."""
    found = stored(cluster, topic, **where)
    for name in ("offset", "timestamp_ms", "key", "value", "headers"):
        assert found.column(name).equals(records.column(name)), name
