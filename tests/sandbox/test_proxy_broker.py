"""A real broker behind the proxy, with a real client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import CorruptRecordError, KafkaError

from maxbrod.sandbox.proxy.faults import FlipAnswerBit, KafkaMatch, LoseAnswer
from support.clusters import proxied_broker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.proxy.server import FaultProxy

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, FaultProxy]]:
    """A cluster of one broker, which sends clients of its PROXIED listener to the proxy."""
    with proxied_broker(tmp_path_factory.mktemp("proxied")) as (cluster, proxy):
        yield cluster, proxy


@pytest.fixture
def partition(broker: tuple[Cluster, FaultProxy], topic: str) -> Iterator[TopicPartition]:
    cluster, proxy = broker
    with cluster.admin() as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    yield TopicPartition(topic, 0)
    proxy.clear()


def records(cluster: Cluster, partition: TopicPartition) -> list[bytes]:
    """What is in the log, read around the proxy."""
    return consume(cluster.bootstrap, partition)


def consume(bootstrap: str, partition: TopicPartition) -> list[bytes]:
    with KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        values: list[bytes] = []
        while consumer.position(partition) < end:
            for batch in consumer.poll(timeout_ms=1000).values():
                values += [record.value for record in batch]
        return values


def test_a_record_whose_produce_answer_is_lost_is_in_the_log(
    broker: tuple[Cluster, FaultProxy], partition: TopicPartition
) -> None:
    cluster, proxy = broker
    fault = proxy.add(LoseAnswer(on=KafkaMatch("Produce"), times=1))
    with (
        KafkaProducer(bootstrap_servers=proxy.bootstrap, acks="all", retries=0, enable_idempotence=False) as producer,
        pytest.raises(KafkaError),
    ):
        producer.send(partition.topic, b"value").get(timeout=60)
    assert proxy.fired[fault] == 1
    assert records(cluster, partition) == [b"value"]


def test_an_idempotent_producer_that_lost_an_answer_writes_no_record_twice(
    broker: tuple[Cluster, FaultProxy], partition: TopicPartition
) -> None:
    cluster, proxy = broker
    fault = proxy.add(LoseAnswer(on=KafkaMatch("Produce"), times=1))
    with KafkaProducer(bootstrap_servers=proxy.bootstrap, acks="all", enable_idempotence=True) as producer:
        producer.send(partition.topic, b"value").get(timeout=60)
    assert proxy.fired[fault] == 1
    assert records(cluster, partition) == [b"value"]


def test_a_bit_flipped_in_a_fetch_answer_fails_the_checksum_of_its_batch(
    broker: tuple[Cluster, FaultProxy], partition: TopicPartition
) -> None:
    cluster, proxy = broker
    with KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        producer.send(partition.topic, b"v" * 1000).get(timeout=60)
    fault = proxy.add(FlipAnswerBit(on=KafkaMatch("Fetch"), at=-100))
    with pytest.raises(CorruptRecordError):
        consume(proxy.bootstrap, partition)
    assert proxy.fired[fault] >= 1
