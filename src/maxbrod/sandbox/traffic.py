"""Clients of a sandbox: writes plain records and transactions that end in every way, and reads as a consumer group.

The producer is for hundreds of records; for more see `events`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata

from maxbrod.errors import UnavailableError
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import offsets

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster

LINGER_MS: Final = 60_000
"""A flush ends it sooner. With the timeout of a request it must stay below the delivery timeout, which is 120 s."""
_POLL_MS: Final = 200
_READ_TIMEOUT_S: Final = 120.0
_MARKER_TIMEOUT_S: Final = 60.0


class Message(NamedTuple):
    """A record to write. Null and empty are different things; no timestamp means now."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None


def numbered(count: int, *, first: int = 0, keys: int | None = None) -> list[Message]:
    """Messages that contain their own number; with `keys`, that many different keys in turn."""
    return [
        Message(key=b"key-%d" % (number % keys if keys else number), value=b"value-%d" % number)
        for number in range(first, first + count)
    ]


def produce(
    cluster: Cluster,
    topic: str,
    messages: Iterable[Message],
    *,
    partition: int = 0,
    batch_records: int | None = None,
    **config: object,
) -> list[int]:
    """Write messages, wait until all are acknowledged, and return their offsets. `config` is kafka-python's.

    The messages of a call form one batch, or one for each `batch_records` of them, unless `batch_size` (16 KiB) divides
    them: the producer lingers until the flush, so that no batch depends on when the sender thread wakes up.
    """
    with _producer(cluster, **config) as producer:
        if batch_records is None:
            return _send(producer, topic, partition, messages)
        given = list(messages)
        parts = (given[first : first + batch_records] for first in range(0, len(given), batch_records))
        return [offset for part in parts for offset in _send(producer, topic, partition, part)]


def produce_transaction(
    cluster: Cluster,
    topic: str,
    messages: Iterable[Message],
    *,
    transactional_id: str,
    partition: int = 0,
    commit: bool = True,
) -> list[int]:
    """Write messages in one transaction that is then committed or aborted, and return their offsets.

    Its marker is in the log when this returns: a broker answers before it writes one, and what is written next could
    come before it.
    """
    with _producer(cluster, transactional_id=transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        written = _send(producer, topic, partition, messages)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    wait_for("the marker", lambda: offsets(cluster, topic, partition)[1] > written[-1] + 1, timeout_s=_MARKER_TIMEOUT_S)
    return written


@contextmanager
def open_transaction(
    cluster: Cluster, topic: str, messages: Iterable[Message], *, transactional_id: str, partition: int = 0
) -> Iterator[list[int]]:
    """Write messages in a transaction that stays open during the `with` and holds back the last stable offset.

    It is aborted at the end of the `with`, or by Kafka after a minute.
    """
    with _producer(cluster, transactional_id=transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        yield _send(producer, topic, partition, messages)
        producer.abort_transaction()


def _producer(cluster: Cluster, **config: object) -> KafkaProducer:
    return KafkaProducer(**{"linger_ms": LINGER_MS, **cluster.running_client_properties(), **config})


def _send(producer: KafkaProducer, topic: str, partition: int, messages: Iterable[Message]) -> list[int]:
    futures = [
        producer.send(
            topic,
            key=message.key,
            value=message.value,
            headers=list(message.headers),
            partition=partition,
            timestamp_ms=message.timestamp_ms,
        )
        for message in messages
    ]
    producer.flush()
    return [future.get(timeout=60).offset for future in futures]


def read_as_group(cluster: Cluster, group_id: str, counts: Mapping[str, int | None]) -> dict[str, list[int]]:
    """Read committed records as a member of a group of the cluster: see `read_as_member`."""
    return read_as_member(cluster.running_client_properties(), group_id, counts)


def read_as_member(
    properties: Mapping[str, Any],
    group_id: str,
    counts: Mapping[str, int | None],
    on_read: Callable[[int], None] = lambda _: None,
) -> dict[str, list[int]]:
    """Read committed records as a member of a group, from the group's offsets on; returns the offsets read by topic.

    `properties` are those of a client of kafka-python. `counts` limits the records of each topic; None reads to the
    end. The member then commits and leaves. `on_read` is called with the number of records whenever some were read. For
    topics of one partition, in codecs that kafka-python reads without further packages.
    """
    consumer = KafkaConsumer(
        *counts,
        **properties,
        group_id=group_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_poll_records=5000,
        # A broker may learn of a topic after the members join: without partitions, they ask again after this time.
        metadata_max_age_ms=1000,
    )
    read: dict[str, list[int]] = {topic: [] for topic in counts}
    deadline = time.monotonic() + _READ_TIMEOUT_S
    try:
        while not _all_read(consumer, counts, read):
            if time.monotonic() > deadline:
                raise UnavailableError("a consumer group did not reach the end of its topics", hint="run it again")
            for where, records in consumer.poll(_POLL_MS).items():
                mine, count = read[where.topic], counts[where.topic]
                found = [record.offset for record in records]
                on_read(len(found))
                mine += found if count is None else found[: count - len(mine)]
                if len(mine) == count:
                    consumer.pause(where)
        ends = {where: read[where.topic][-1] + 1 for where in consumer.assignment() if read[where.topic]}
        consumer.commit({where: OffsetAndMetadata(end, "", -1) for where, end in ends.items()})
        return read
    finally:
        consumer.close(autocommit=False)


def _all_read(consumer: Any, counts: Mapping[str, int | None], read: Mapping[str, list[int]]) -> bool:  # noqa: ANN401 - untyped
    assigned = {where.topic: where for where in consumer.assignment()}
    if assigned.keys() != counts.keys():
        return False
    for topic, where in assigned.items():
        count = counts[topic]
        done, end = (
            (consumer.position(where), consumer.end_offsets([where])[where])
            if count is None
            else (len(read[topic]), count)
        )
        if int(done) < int(end):
            return False
    return True
