"""Brokers before Kafka 3.1 are asked for records by the name of a topic: it is still the topic that was wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.errors import TopicGoneError
from maxbrod.kafka.fetch import ranges, request
from maxbrod.kafka.fetch.ranges import SmallRange, read_range, read_small_ranges
from maxbrod.kafka.wire.connection import ApiVersions
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.sandbox.topics import create_topic, recreate_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.kafka_reads import client_of, fill, log_bytes, partition_of, read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.sandbox.cluster import Cluster

FETCH, NEWEST = 1, 12


@pytest.fixture
def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaClient]:
    """A client that believes that brokers know no newer version of Fetch."""
    choose = ApiVersions.choose

    def older(versions: ApiVersions, request_class: Any) -> int:
        known = dict(versions.ranges)
        known[FETCH] = (known[FETCH][0], NEWEST)
        return choose(ApiVersions(broker=versions.broker, ranges=known), request_class)

    monkeypatch.setattr(ApiVersions, "choose", older)
    with client_of(cluster) as opened:
        yield opened


def test_records_fetched_by_name_are_those_of_the_log(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    fill(cluster, topic, 5_000)
    assert read_all(client, partition_of(topic), fetch_bytes=200_000) == log_bytes(cluster, topic)


def test_records_of_a_topic_that_took_the_name_never_arrive(
    cluster: Cluster, client: KafkaClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is recreated after the request was planned, and has records before the broker answers."""
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    read, recreated = request.read_answer, list[object]()

    def late(frame: np.ndarray, names: Any = None) -> Any:
        if not recreated:
            recreated.append(recreate_topic(cluster, topic))
            produce(cluster, topic, numbered(5, first=100))
        return read(frame, names)

    old = client.topic(topic, deadline=Deadline.after(60)).topic_id
    client.leader(partition_of(topic), deadline=Deadline.after(60))
    small = SmallRange(where=partition_of(topic), topic_id=old, start=0, end=5, bytes_estimate=100)
    monkeypatch.setattr(ranges, "read_answer", late)
    assert list(read_small_ranges(client, [small])) == []
    recreated.clear()
    now = client.topic(topic, deadline=Deadline.after(60)).topic_id
    with pytest.raises(TopicGoneError, match="created again"):
        list(read_range(client, partition_of(topic), 0, 5, topic_id=now))
