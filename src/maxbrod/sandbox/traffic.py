"""Writes test data into a sandbox: plain, keyed for compaction, and in transactions that end in every way.

A small producer for hundreds of records; for millions use Kafka's own PRODUCER_PERFORMANCE of `tools`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from kafka import KafkaProducer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from maxbrod.sandbox.cluster import Cluster

LINGER_MS = 10_000


class Message(NamedTuple):
    """A record to write. Null and empty are different things; no timestamp means now."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None


def numbered(count: int, *, first: int = 0, keys: int | None = None) -> list[Message]:
    """Messages that tell their own number; with `keys`, so many different keys in turn."""
    return [
        Message(key=b"key-%d" % (number % keys if keys else number), value=b"value-%d" % number)
        for number in range(first, first + count)
    ]


def produce(
    cluster: Cluster, topic: str, messages: Iterable[Message], *, partition: int = 0, **config: object
) -> list[int]:
    """Write messages, wait until all are acknowledged, and return their offsets. `config` is kafka-python's.

    The messages of a call are in one batch, unless `batch_size` (16 KiB) divides them: the producer lingers until the
    flush, so that no batch depends on when the sender thread woke up.
    """
    with _producer(cluster, **config) as producer:
        return _send(producer, topic, partition, messages)


def produce_transaction(
    cluster: Cluster,
    topic: str,
    messages: Iterable[Message],
    *,
    transactional_id: str,
    partition: int = 0,
    commit: bool = True,
) -> list[int]:
    """Write messages in one transaction that is then committed or aborted, and return their offsets."""
    with _producer(cluster, transactional_id=transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        offsets = _send(producer, topic, partition, messages)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        return offsets


@contextmanager
def open_transaction(
    cluster: Cluster, topic: str, messages: Iterable[Message], *, transactional_id: str, partition: int = 0
) -> Iterator[list[int]]:
    """Messages of a transaction that stays open while the `with` lasts, holding back the last stable offset.

    Aborted at the end of the `with`, and by Kafka after a minute.
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
